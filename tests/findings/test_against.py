"""`--against CHECKPOINT`: whether more than the scales changed reaches the verdict."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from support.checkpoints import checkpoint
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace import api
from kvtrace.calibration.save import save_checkpoint
from kvtrace.errors import InputError
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS = {f"model.layers.{n}.self_attn.k_proj.weight": torch.ones(4, 4) for n in range(2)}
NUM_REQUESTS = 6
NOWHERE = "nowhere: no such file or directory; expected the checkpoint that --against compares with"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values that scales of 0.5 cover with room to spare."""
    values = np.linspace(0.5, 1, NUM_REQUESTS * 2 * 8).reshape(NUM_REQUESTS, 2, 8)
    return fabricate_trace(
        tmp_path_factory.mktemp("against") / "day.kvtrace",
        {(layer, tensor): values for layer in range(2) for tensor in ("k", "v")},
        request_of_row=list(range(NUM_REQUESTS)),
        position_of_row=[3] * NUM_REQUESTS,
        requests=[request(number, prompt_tokens=4, missing=((0, 3),)) for number in range(NUM_REQUESTS)],
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with scales; `original` beside it has the same weights, `tuned` one other weight."""
    folder = tmp_path_factory.mktemp("checkpoints")
    original = checkpoint(folder / "original", WEIGHTS)
    (original / "tokenizer.json").write_text("{}")
    scales = {(layer, tensor): (0.4 + 0.1 * layer,) for layer in range(2) for tensor in ("k", "v")}
    save_checkpoint(folder / "served", original, scales)
    weight = torch.ones(4, 4)
    weight[3, 3] = 1.5
    checkpoint(folder / "tuned", WEIGHTS | {"model.layers.1.self_attn.k_proj.weight": weight})
    shutil.copytree(original, folder / "other-tokens")
    (folder / "other-tokens" / "tokenizer.json").write_text('{"version": "2"}')
    return folder / "served"


def test_weights_that_differ_from_another_checkpoint_are_the_verdict(trace: Path, served: Path) -> None:
    text = told("report", trace, "--scales", served, "--against", served.parent / "tuned")
    assert "FAULT · what-if The weights changed after the calibration" in text
    assert "such as model.layers.1.self_attn.k_proj.weight" in text
    same = told("report", trace, "--scales", served, "--against", served.parent / "original")
    assert "SOUND · what-if" in same
    assert "weights-changed" not in same


def test_equal_weights_are_among_the_findings_and_not_in_the_answer(trace: Path, served: Path) -> None:
    same = told("report", trace, "--scales", served, "--against", served.parent / "original")
    assert "weights-equal (served)" in same.split("noted:")[1]
    assert "weights-equal" not in same.split("RANGE USED")[0]


def test_a_tokenizer_that_differs_from_another_checkpoint_is_a_stale_artifact(
    trace: Path, served: Path
) -> None:
    text = told("report", trace, "--scales", served, "--against", served.parent / "other-tokens")
    assert "WARNING · what-if The scales are not of this model's state" in text
    assert "warning stale-artifact under served" in text


def test_a_run_keeps_what_replay_found_against_another_checkpoint(
    trace: Path, served: Path, tmp_path: Path
) -> None:
    run, tuned = tmp_path / "day.run", served.parent / "tuned"
    assert kvtrace("replay", trace, "--scales", served, "--against", tuned, "-o", run).returncode == 0
    assert "FAULT · what-if The weights changed after the calibration" in told("report", run)


def test_a_notebook_compares_with_another_checkpoint_too(trace: Path, served: Path) -> None:
    run = api.replay(open_trace(trace), [served], against=served.parent / "tuned")
    assert "FAULT · what-if The weights changed after the calibration" in " ".join(str(run.report()).split())
    with pytest.raises(InputError, match="nothing to compare with it"):
        api.replay(open_trace(trace), against=served)


def test_a_comparison_that_cannot_be_made_is_one_line_and_exit_code_2(
    trace: Path, served: Path, tmp_path: Path
) -> None:
    only_scales = tmp_path / "only-scales"
    only_scales.mkdir()
    for name in ("config.json", "model-kv-scales.safetensors"):
        shutil.copy(served / name, only_scales)
    for arguments, expected in (
        ((trace, "--against", served), "nothing to compare with it"),
        ((trace, "--scales", only_scales, "--against", served), "holds no weights to compare"),
        ((trace, "--scales", served, "--against", only_scales), "holds no weights to compare"),
        ((trace, "--scales", served, "--against", tmp_path / "nowhere"), NOWHERE),
        ((trace, "--against", tmp_path / "nowhere"), NOWHERE),
    ):
        result = kvtrace("report", *arguments)
        assert (result.returncode, result.stdout) == (2, ""), result
        assert result.stderr.count("\n") == 1, result.stderr
        assert expected in result.stderr


def test_an_audit_against_nothing_names_the_path(served: Path, tmp_path: Path) -> None:
    result = kvtrace("scales", served, "--against", tmp_path / "nowhere")
    assert (result.returncode, result.stdout) == (2, "")
    assert NOWHERE in result.stderr


def told(*arguments: object) -> str:
    """Return what a command prints, without its line breaks."""
    result = kvtrace(*arguments)
    assert result.returncode == 0, result.stderr
    return " ".join(result.stdout.split())
