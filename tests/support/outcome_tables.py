"""Tables of outcomes of made variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.outcome_files import own_line, write_lines
from support.run_cli import kvtrace

if TYPE_CHECKING:
    from pathlib import Path

VARIANTS = ("bf16-a", "bf16-b", "fp8")


def answers(
    pairs: int,
    *,
    lost: int = 0,
    won: int = 0,
    noise: tuple[int, int] = (0, 0),
    failing: int = 0,
    **fields: Any,
) -> list[dict[str, Any]]:
    """Lines of two runs of BF16 and one of FP8: each kind of pair is at places of its own.

    noise: (answers that only bf16-a passes, that only bf16-b passes); failing: that all fail.
    """
    lines = []
    only_a, only_b = noise
    ends = [lost, won, only_a, only_b, failing]
    for place in range(pairs):
        kind = next((k for k in range(5) if sum(ends[:k]) <= place < sum(ends[: k + 1])), None)
        passed = {
            None: (True, True, True),
            0: (True, True, False),
            1: (False, False, True),
            2: (True, False, True),
            3: (False, True, False),
            4: (False, False, False),
        }[kind]
        lines += [
            own_line(f"{place:05}", "pass" if ok else "fail", variant=name, prompt=f"p{place}") | fields
            for name, ok in zip(VARIANTS, passed, strict=True)
        ]
    return lines


def table(folder: Path, lines: list[dict[str, Any]], name: str = "t") -> Path:
    path = write_lines(folder / f"{name}.jsonl", lines)
    made = kvtrace("outcomes", path, "-o", folder / name, "--force")
    assert made.returncode == 0, made.stderr
    return folder / name
