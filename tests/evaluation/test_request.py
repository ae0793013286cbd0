"""What a replay is asked for, and the notes that it leaves."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from contextlib import suppress
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request

from kvtrace.calibration.save import save_scales
from kvtrace.candidates import Bf16, GivenScales, OnlineScales, UnitScales
from kvtrace.candidates.applied import AppliedScales
from kvtrace.commands.candidate_options import ReplayOptions, request_for
from kvtrace.commands.notes import notes_on_stderr
from kvtrace.errors import InputError
from kvtrace.evaluation import ReplayRequest, replay, standard_request
from kvtrace.evaluation.magnitudes import MagnitudeCounts
from kvtrace.evaluation.source import SourceReplay
from kvtrace.evaluation.sums import CellSums, Vectors
from kvtrace.evaluation.sweep import SweepSums
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from kvtrace.trace.reader import Trace

ROOT = Path(__file__).parents[2]
NUM_LAYERS, NUM_ROWS = 3, 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fabricate_trace(
        tmp_path / "day.kvtrace",
        {(layer, tensor): np.ones((NUM_ROWS, 1, 8)) for layer in range(NUM_LAYERS) for tensor in "kv"},
        request_of_row=[0] * NUM_ROWS,
        position_of_row=range(NUM_ROWS),
        requests=[request(0, prompt_tokens=NUM_ROWS)],
    )


@pytest.fixture
def trace(path: Path) -> Trace:
    return open_trace(path)


def test_a_request_cannot_be_changed(trace: Trace) -> None:
    with pytest.raises(FrozenInstanceError):
        ReplayRequest([trace], [Bf16()]).intervals = True  # type: ignore[misc]


def test_a_request_that_no_run_can_follow_cannot_be_made(trace: Trace) -> None:
    with pytest.raises(InputError, match="no trace was given"):
        ReplayRequest([], [Bf16()])
    with pytest.raises(InputError, match="is of the same capture as"):
        ReplayRequest([trace, open_trace(trace.path)], [Bf16()])
    with pytest.raises(InputError, match="2 candidates are called 'unit'"):
        ReplayRequest([trace], [UnitScales(), UnitScales()])


def test_a_command_and_a_notebook_ask_for_the_same(path: Path, tmp_path: Path) -> None:
    save_scales(tmp_path / "half", {(n, t): (0.5,) for n in range(NUM_LAYERS) for t in "kv"})
    by_options = request_for([path], ReplayOptions(scales=[tmp_path / "half"]))
    by_hand = standard_request([open_trace(path)], [tmp_path / "half"])
    assert [one.name for one in by_options.candidates] == ["bf16", "unit", "half"]
    assert list(by_options.candidates) == list(by_hand.candidates)
    assert [one.digest for one in by_options.traces] == [one.digest for one in by_hand.traces]


def values_of(trace: Trace, candidates: list[Any], **options: Any) -> list[Any]:
    asked = ReplayRequest([trace], candidates, **options)
    applied = [one.scales_for(trace) for one in candidates]
    return list(SourceReplay(asked, "day", trace, applied, "cpu").values())


def test_a_replay_yields_plain_values_and_needs_no_run(trace: Trace) -> None:
    values = values_of(trace, [Bf16(), UnitScales()], intervals=True)
    kinds = [type(value) for value in values]
    tensors = 2 * NUM_LAYERS
    assert {kind: kinds.count(kind) for kind in kinds} == {
        AppliedScales: 2,
        SweepSums: 1,
        MagnitudeCounts: 2,
        Vectors: tensors,
        CellSums: 2 * tensors,  # by cell, and by group of requests
    }
    sums = [value for value in values if isinstance(value, CellSums)]
    assert [one.sums.layer for one in sums] == 2 * [0, 0, 1, 1, 2, 2]
    assert [one.cells.request_group is None for one in sums] == tensors * [True] + tensors * [False]
    assert sums[0].candidates == ("bf16", "unit")
    assert sums[0].sums.values.num_values.sum() == NUM_ROWS * 8


@pytest.mark.parametrize("method", ["profile", "direct"])
def test_vectors_come_while_tensors_are_read_and_not_after(trace: Trace, method: Any) -> None:
    asked = ReplayRequest([trace], [UnitScales()], method=method)
    applied = [UnitScales().scales_for(trace)]
    replayed = SourceReplay(asked, "day", trace, applied, "cpu")
    order = [type(value) for value in replayed.values() if isinstance(value, Vectors | CellSums)]
    assert order.count(Vectors) == order.count(CellSums) == 2 * NUM_LAYERS
    if method == "direct":  # sums are whole once all was read
        assert order == 2 * NUM_LAYERS * [Vectors] + 2 * NUM_LAYERS * [CellSums]
    else:
        assert order[0] is Vectors
        assert order[-1] is CellSums


def test_one_module_of_the_replay_knows_the_tables() -> None:
    """Whatever is worked out is a value; tables.py alone makes rows of it."""
    knowing = set()
    for file in (ROOT / "kvtrace/evaluation").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{one.name}" for one in node.names} | {node.module}
                if "kvtrace.runs.schema" in names:
                    knowing.add(file.name)
    assert knowing == {"tables.py"}


def test_notes_are_logged_with_the_sources_name(trace: Trace, caplog: pytest.LogCaptureFixture) -> None:
    folder = trace.path.parent
    tiny = GivenScales("tiny", dict.fromkeys([(0, 0, "k")], 0.5))
    caplog.set_level(logging.INFO, logger="kvtrace")
    replay(ReplayRequest([trace], [Bf16(), OnlineScales("int8-per-token-head")], device="cpu"), folder / "a")
    assert caplog.messages == []
    replay(ReplayRequest([trace], [Bf16()], device="cpu"), folder / "b")
    assert caplog.messages == ["day: its profile was used, tensors were not reread (inspect --verify does)"]
    caplog.clear()
    good = GivenScales("good", {(n, 0, t): 0.5 for n in range(NUM_LAYERS) for t in "kv"})
    replay(ReplayRequest([trace], [tiny, good], method="verify", device="cpu"), folder / "c")
    levels = [(record.levelname, record.getMessage().split(", which")[0]) for record in caplog.records]
    assert levels == [
        ("INFO", "tiny: invalid, not scored: no v scale for layer 0, KV head 0"),
        ("INFO", "day: verified: profile and element-wise replay agree"),
    ]


def test_a_block_prints_its_notes_from_a_level_on_as_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("kvtrace.evaluation.made_up")
    level = logging.getLogger("kvtrace").level
    with notes_on_stderr(logging.WARNING):
        logger.warning("a %s", "warning")
        logger.info("a detail")
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "a warning\n"
    with notes_on_stderr(logging.INFO):
        logger.info("a detail")
    assert capsys.readouterr().err == "a detail\n"
    with suppress(InputError), notes_on_stderr(logging.INFO):
        logger.warning("what the error makes pointless")
        raise InputError("wrong")
    assert capsys.readouterr().err == ""
    assert logging.getLogger("kvtrace").level == level
    assert logging.getLogger("kvtrace").handlers == []


def test_a_replay_over_a_ready_profile_loads_neither_torch_nor_duckdb(trace: Trace, tmp_path: Path) -> None:
    replay(ReplayRequest([trace], [Bf16()], device="cpu"), tmp_path / "first")
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from kvtrace.commands.replay import replay\n"
        f"replay(traces=[Path({str(trace.path)!r})], output=Path({str(tmp_path / 'b')!r}), device='cpu')\n"
        "assert not {'torch', 'duckdb', 'polars'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
