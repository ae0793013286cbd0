"""What it costs that counts are not believed unseen: replays of one trace, checks on and off in turn.

    python tests/bench/validation_cost.py [--trace NAME.kvtrace] [--repeats 7]

In one process, over counts that were made here: with all checks (the seal, SHA-256, bounds, order, sums), and
with none. Then what a profile from elsewhere costs: its tensors are counted again, once. CPU seconds of all
threads; without --trace the bundled sample, under four artifacts.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from kvtrace import api
from kvtrace.profile import store
from kvtrace.trace.format import seal, unseal
from kvtrace.trace.profile_format import PROFILE_DIRECTORY, PROFILE_FILE, ProfileRecord
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES = Path(__file__).parents[2] / "samples"
ARTIFACTS = ("chat-per-tensor", "chat-per-head", "all-per-head", "halved")


def main() -> None:
    """Print medians, and the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, default=SAMPLES / "smollm2-135m.kvtrace")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as scratch:
        trace = shutil.copytree(options.trace, Path(scratch) / options.trace.name)

        def replayed() -> None:
            with tempfile.TemporaryDirectory(dir=scratch) as run:
                scales = [SAMPLES / "scales" / name for name in ARTIFACTS]
                api.replay(open_trace(trace), scales, out=Path(run) / "run")

        replayed()
        replayed()
        checked, unchecked = [], []
        for _ in range(options.repeats):  # in turn: what else the machine does falls on both
            checked.append(_cpu_seconds(replayed))
            with _no_checks():
                unchecked.append(_cpu_seconds(replayed))
        _show("counts made here, checked", checked)
        _show("the same, believed unseen", unchecked)
        each = [one / other for one, other in zip(checked, unchecked, strict=True)]
        print(f"{'checked ÷ unseen':<34}{statistics.median(each):>8.3f}{min(each):>9.3f} to {max(each):.3f}")
        _spoil(trace / PROFILE_DIRECTORY / PROFILE_FILE)
        _show("counts made elsewhere, first time", [_cpu_seconds(replayed)])
        _show("and from then on", [_cpu_seconds(replayed)])


@contextmanager
def _no_checks() -> Iterator[None]:
    """Believe whatever a profile holds."""
    read = store.read_array

    def unseen(*arguments: Any, mend: str | None = None) -> Any:
        *first, _crc, _sha256 = arguments
        return read(*first, mend=mend)

    with ExitStack() as stack:
        for name, instead in (
            ("read_array", unseen),
            ("problem_of_arrays", lambda *_: None),
            ("problem_of_record", lambda *_: None),
            ("is_own", lambda *_: True),
        ):
            stack.enter_context(patch.object(store, name, instead))
        yield


def _spoil(file: Path) -> None:
    """Give a profile the seal of nobody."""
    record = unseal(file.read_bytes(), ProfileRecord)
    file.write_text(seal(record.model_copy(update={"seal": "0" * 64})))


def _cpu_seconds(action: Callable[[], None]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def _show(name: str, seconds: list[float]) -> None:
    spread = f"{min(seconds):>9.2f} to {max(seconds):.2f}" if len(seconds) > 1 else ""
    print(f"{name:<34}{statistics.median(seconds):>8.2f}{spread}  CPU s")


if __name__ == "__main__":
    main()
