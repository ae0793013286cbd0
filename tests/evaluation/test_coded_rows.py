"""Rows through cache formats: compiled and in torch, over one read, and a coding that is shared once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request

from kvtrace.candidates import OnlineScales
from kvtrace.candidates.scaled_format import FormatScales
from kvtrace.evaluation import ReplayRequest, coded_block, coded_rows, replay
from kvtrace.evaluation.coded_block import BlockWork
from kvtrace.formats import FORMATS, parse_format
from kvtrace.formats.coding import RowCoding
from kvtrace.trace.cells import find_cells
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.reader import Trace


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    rng = np.random.default_rng(3)
    values = {(0, tensor): rng.normal(size=(40, 2, 64)) * 300 for tensor in "kv"}
    values[0, "k"][3, 0, 5], values[0, "k"][4, 1, 6] = np.nan, np.inf
    path = fabricate_trace(
        tmp_path / "day.kvtrace",
        values,
        request_of_row=[row // 8 for row in range(40)],
        position_of_row=[row % 8 for row in range(40)],
        requests=[request(number, prompt_tokens=6) for number in range(5)],
    )
    return open_trace(path)


def works() -> list[BlockWork]:
    return [
        BlockWork(coding, [0.1, 0.7] if coding.uses_scale else None)
        for form in FORMATS.values()
        for coding in (form.k, form.v)
        if isinstance(coding, RowCoding)
    ]


def test_torch_gives_the_sums_that_the_compiled_form_gives(trace: Trace) -> None:
    cells = find_cells(trace)
    for ref in trace.block_refs():
        block = ref.load()
        compiled, in_torch = works(), works()
        coded_block.block_sums(block, cells, compiled, "cpu")
        for one in in_torch:
            one.counts, one.squares = (
                np.zeros_like(part) for part in (compiled[0].counts, compiled[0].squares)
            )
        cell = cells.of_token[block.row].astype(np.int64)
        coded_block._in_torch(block, cell, in_torch, "cpu")
        for one, other in zip(compiled, in_torch, strict=True):
            np.testing.assert_array_equal(one.counts[..., :2], other.counts[..., :2], err_msg=str(one.coding))
            assert np.abs(one.counts[..., 2] - other.counts[..., 2]).max() <= 2  # near-zeros of a rotation
            np.testing.assert_allclose(one.squares, other.squares, rtol=0.02, err_msg=str(one.coding))
    assert any(one.counts[..., 1].any() for one in compiled)


def test_rows_are_read_once_and_a_shared_coding_is_worked_out_once(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = coded_block.block_sums

    def counted(block, cells, works, device):
        read.append(len(works))
        real(block, cells, works, device)

    monkeypatch.setattr(coded_rows, "block_sums", counted)
    names = ("lmdeploy_int8", "nvfp4", "k=lmdeploy_int8,v=nvfp4")
    candidates = [
        OnlineScales(name) if not parse_format(name).uses_scales else FormatScales(name, parse_format(name))
        for name in names
    ]
    replay(ReplayRequest([trace], candidates, device="cpu"), tmp_path / "run")
    assert len(read) == len(trace.block_refs())
    assert set(read) == {2}  # of three candidates, in K as in V
