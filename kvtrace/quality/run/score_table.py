"""Scores of all variants as one table: a row a variant, mode, request and generation step, without tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.quality.run.steps import Step, forced_steps, free_steps
from kvtrace.quality.run.work import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kvtrace.quality.run.work import Work

Mode = Literal["forced", "free"]
SCORES_FILE: Final = "scores.parquet"
BASELINE_KEY: Final = b"kvtrace_baseline"
SCHEMA: Final = pa.schema(
    [
        pa.field("variant", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("mode", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("logprob", pa.float64()),
        pa.field("delta", pa.float64()),
        pa.field("is_flip", pa.bool_(), nullable=False),
        pa.field("kl", pa.float64()),
    ]
)
"""forced: the baseline's answer as a prompt. free: each its own, as far as both are the same and a step more.
step: of generation, from 0. position: of the token, prompt included. logprob, delta, kl: see `Step`."""
_ROWS_HELD: Final = 100_000


def write_scores(work: Work, baseline: str, others: list[str], out: Path) -> int:
    """Write the scores of `others` beside the baseline's to a new file `out`; return how many rows.

    Raises OSError: it cannot be written.
    """
    num_rows = 0
    schema = SCHEMA.with_metadata({BASELINE_KEY: baseline.encode()})
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        held: list[dict[str, Any]] = []
        for variant in others:
            for row in _rows(work, baseline, variant):
                held.append(row)
                num_rows += 1
                if len(held) >= _ROWS_HELD:
                    writer.write_table(pa.Table.from_pylist(held, schema))
                    held = []
        writer.write_table(pa.Table.from_pylist(held, schema))
    return num_rows


def _rows(work: Work, baseline: str, variant: str) -> Iterator[dict[str, Any]]:
    files = [work.file(baseline, f"{name}.jsonl") for name in ("answers", "scores")]
    with _Lines(files[0]) as answers, _Lines(files[1]) as scores:
        for line in lines_of(work.file(variant, "scores.jsonl")):
            before = scores[line["id"]]
            num_prompt = len(answers[line["id"]]["prompt_token_ids"])
            for step in forced_steps(before["top"], line["top"]):
                yield _row(variant, "forced", line["id"], num_prompt, step)
        for line in lines_of(work.file(variant, "answers.jsonl")):
            before = answers[line["id"]]
            steps = free_steps(before["token_ids"], before["top"], line["token_ids"], line["top"])
            for step in steps:
                yield _row(variant, "free", line["id"], len(before["prompt_token_ids"]), step)


def _row(variant: str, mode: Mode, name: str, num_prompt: int, step: Step) -> dict[str, Any]:
    return {
        "variant": variant,
        "mode": mode,
        "id": name,
        "position": num_prompt + step.step,
        **step._asdict(),
    }


class _Lines:
    """Lines of a file by their id, read when they are asked for: log-probabilities of all are many."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._starts = dict(self._found())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        self._file.seek(self._starts[name])
        found: dict[str, Any] = json.loads(self._file.readline())
        return found

    def _found(self) -> Iterator[tuple[str, int]]:
        start = 0
        for line in self._file:
            yield json.loads(line)["id"], start
            start += len(line)
