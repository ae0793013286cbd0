"""What a trace says of speculative decoding, as data and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from support.fabricate import bits, fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.trace.draft_summary import DraftsSummary, draft_lines
from kvtrace.trace.format import RANK_FILE, RankRecord, seal, unseal
from kvtrace.trace.reader import open_trace
from kvtrace.trace.summary import summarize

if TYPE_CHECKING:
    from pathlib import Path


def with_drafts(
    path: Path, counts: list[tuple[int | None, int | None]], left_out: tuple[str, ...] = ()
) -> Path:
    requests = [
        request(number, prompt_tokens=4, drafts_proposed=proposed, drafts_accepted=accepted)
        for number, (proposed, accepted) in enumerate(counts)
    ]
    fabricate_trace(
        path,
        {(0, tensor): np.ones((4, 2, 4)) for tensor in "kv"},
        request_of_row=[0] * 4,
        position_of_row=[0, 1, 2, 3],
        requests=requests,
    )
    file = path / "rank-0.zarr" / RANK_FILE
    record = unseal(file.read_bytes(), RankRecord)
    file.write_text(seal(record.model_copy(update={"draft_layers": left_out})))
    return path


def test_inspect_says_how_many_drafts_were_accepted_and_which_layers_are_not_there(tmp_path: Path) -> None:
    left_out = tuple(f"mtp.layers.{number}.self_attn.attn" for number in range(3))
    path = with_drafts(tmp_path / "a.kvtrace", [(30, 12), (10, 8), (0, 0), (None, None)], left_out)
    found = summarize(open_trace(path)).drafts
    assert found == DraftsSummary(num_proposed=40, num_accepted=20, num_requests=2, layers_left_out=left_out)
    printed = kvtrace("inspect", str(path)).stdout
    assert "drafts    40 proposed, 20 accepted (50.0 %) in 2 requests\n" in printed
    assert "          3 layer(s) of the draft model are not captured:\n" in printed
    assert "          mtp.layers.1.self_attn.attn\n          and 1 more\n" in printed


def test_a_trace_without_speculative_decoding_says_nothing_of_it(tmp_path: Path) -> None:
    path = with_drafts(tmp_path / "a.kvtrace", [(None, None)])
    assert summarize(open_trace(path)).drafts is None
    assert list(draft_lines(None)) == []
    assert "drafts" not in kvtrace("inspect", str(path)).stdout


def test_where_nothing_was_proposed_no_share_is_made_up(tmp_path: Path) -> None:
    path = with_drafts(tmp_path / "a.kvtrace", [(0, 0)])
    assert list(draft_lines(summarize(open_trace(path)).drafts)) == ["drafts    0 proposed, 0 accepted"]


def stored_with_drafts(path: Path, *, rejected: tuple[tuple[int, int], ...], status: str) -> list[int]:
    """Return the positions of a request's rows that count, and check that each has its last step's values."""
    positions, steps = [4, 5, 6, 5, 6, 7], [1, 1, 1, 2, 2, 2]
    values = np.array(steps, dtype=float)[:, None, None] * np.ones((1, 2, 4))
    fabricate_trace(
        path,
        {(0, tensor): values for tensor in "kv"},
        request_of_row=[0] * 6,
        position_of_row=positions,
        step_of_row=steps,
        requests=[request(0, prompt_tokens=4, output_tokens=5, rejected=rejected, status=status)],
        settings={"speculative_config": {"num_speculative_tokens": 1}},
    )
    trace = open_trace(path)
    (block, *_) = trace.blocks()
    found = dict(zip(trace.tokens.position[block.row].tolist(), block.values[:, 0, 0].tolist(), strict=True))
    last = dict(zip(positions, bits(np.array(steps, dtype=float)).tolist(), strict=True))
    assert all(last[position] == value for position, value in found.items())
    summary = summarize(trace)
    assert summary.completeness.num_rejected == len(set(positions)) - len(found)
    return sorted(found)


def test_a_rejected_draft_never_stands_though_the_row_that_replaces_it_was_lost(tmp_path: Path) -> None:
    # Of position 7 nothing but the draft's row is there; that of 6 in step 1 was replaced in step 2.
    found = stored_with_drafts(tmp_path / "a.kvtrace", rejected=((6, 1), (7, 2)), status="length")
    assert found == [4, 5, 6]


def test_of_a_request_without_an_end_the_rows_that_may_be_drafts_do_not_count(tmp_path: Path) -> None:
    # Two steps of one draft each may be on their way: its last two generated positions.
    assert stored_with_drafts(tmp_path / "a.kvtrace", rejected=(), status="running") == [4, 5]
    assert stored_with_drafts(tmp_path / "b.kvtrace", rejected=(), status="length") == [4, 5, 6, 7]
