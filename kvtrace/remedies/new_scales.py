"""New scales of traces: how they are made, served, and held against what ran before."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvtrace.calibration.kv_scheme import takes_scales_per_head
from kvtrace.calibration.save import takes_scales
from kvtrace.numerics.backends import find_backend, honours_per_head, is_known
from kvtrace.plain_text import plain
from kvtrace.remedies.serve import serve_command
from kvtrace.remedies.step import Step
from kvtrace.trace.fingerprint import weights_digest
from kvtrace.trace.format import TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.scales.artifact import Granularity
    from kvtrace.trace.format import EngineRecord, ModelRecord

SERVED_AS: Final = "fp8"
"""E4M3: the one format that vLLM takes scales of a checkpoint for; for e5m2 it takes none."""
NO_CHECKPOINT: Final = (
    "Scales alone cannot be served. With --checkpoint, the directory of the served model, the same command "
    "writes one that can"
)
_PATH: Final = 1_000


@dataclass(frozen=True, slots=True)
class NewScales:
    """What to calibrate on, how, and into what."""

    traces: tuple[str, ...]
    model: ModelRecord
    engine: EngineRecord
    """Of the first trace."""
    granularity: Granularity
    headroom: float
    checkpoint: str | None
    """To write the scales into a copy of; None: the scales alone."""
    output: str

    @property
    def calibrate_command(self) -> str:
        """Return the command that makes them."""
        words = ["kvtrace", "calibrate", *self.traces, "--headroom", f"{self.headroom:g}"]
        if self.granularity == "tensor":
            words += ["--granularity", "tensor"]
        if self.checkpoint is not None:
            words += ["--checkpoint", self.checkpoint]
        return _line([*words, "-o", self.output])

    def steps(self) -> tuple[Step, ...]:
        """Return all steps: calibrate, serve with capture on, compare."""
        made = Step("calibrate", "Make scales of this traffic.", self.calibrate_command)
        if self.checkpoint is None:
            return (made, Step("serve", f"{NO_CHECKPOINT}.", None))
        return (made, *self.after())

    def after(self) -> tuple[Step, ...]:
        """Return the steps from a checkpoint that is written: serve it with capture on, compare."""
        traces = f"{self.output}-traces"
        serve = serve_command(self.output, SERVED_AS, self.model, self.engine, capture_into=traces)
        before = self.traces if len(self.traces) == 1 else ()
        return (
            Step("serve", "Serve it with capture on, and send it traffic.", plain(serve, 4 * _PATH)),
            Step(
                "report",
                "Compare before and after." if before else "Look at what it captured.",
                _line(["kvtrace", "report", *before, traces]),
            ),
        )


def output_for(trace: str, *, is_checkpoint: bool) -> str:
    """Return a name for what is made of a trace, in the working directory.

    >>> output_for("/var/traces/monday.kvtrace", is_checkpoint=True)
    'monday-mended'
    """
    return Path(trace).name.removesuffix(TRACE_SUFFIX) + ("-mended" if is_checkpoint else "-scales")


def granularity_for(model: ModelRecord, backends: Iterable[str], engine: str | None) -> Granularity:
    """Return what one scale can serve where the scales will run.

    backends: of the captured layers. engine: whose numerics; a backend that it cannot run says nothing of it.
    tensor where a backend takes no scale per head, or the weights' quantization method has no place for it.
    """
    if not takes_scales_per_head(model.hf_config):
        return "tensor"
    apply = [one for one in backends if engine is None or _runs(one, engine)]
    return "attn_head" if all(honours_per_head(one) for one in apply) else "tensor"


def checkpoint_among(paths: Iterable[str | None], model: ModelRecord, granularity: Granularity) -> str | None:
    """Return the first path that is a checkpoint of the traced model which scales can be written into.

    None: none is here, holds these weights, and has a place for scales.
    """
    for path in dict.fromkeys(paths):
        if path is None or model.weights_digest is None or not Path(path).is_dir():
            continue
        folder = Path(path)
        if weights_digest(folder) == model.weights_digest and takes_scales(folder, granularity):
            return path
    return None


def _runs(backend: str, engine: str) -> bool:
    return not is_known(backend) or engine in find_backend(backend).engines


def _line(words: list[str]) -> str:
    """Return words for a shell. One with control characters is shown escaped, which is no path to copy."""
    return shlex.join(plain(word, _PATH) for word in words)
