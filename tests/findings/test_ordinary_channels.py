"""What is said of heads in which outlier channels hold nearly all of Σ x²."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.examples import run_of

from kvtrace.findings.diagnose import diagnose
from kvtrace.findings.run.example import FLUSHES, HIDDEN_LOSS, ORDINARY, RunExample
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.findings.finding import Finding

HEAD = (0, 0, "k")
WIDE = {HEAD: {"max_abs": 1.0}, (0, 1, "k"): {"max_abs": 2.0}}
"""The scales cover 448 of these: narrower ones would fit."""


def findings_of(example: RunExample, folder: Path) -> dict[str, Finding]:
    return {one.id: one for one in diagnose(open_run(run_of(example, folder / "run"))).findings}


def test_both_kinds_of_channels_and_the_whole_are_told(tmp_path: Path) -> None:
    """6.5 of 1,000 is 21.9 dB, 700 of 1,000,000 is 31.5; the outliers have all but 1,000 of 1,000,000."""
    found = findings_of(RunExample(ordinary={HEAD: HIDDEN_LOSS}), tmp_path)["ordinary-channels"]
    assert found.severity == "warning"
    assert "the outliers hold 99.9 % of Σ x²" in found.message
    assert "The other 9 channels are at 21.9 dB where rounding alone leaves 32.2" in found.message
    assert "all channels together at 31.5" in found.message
    assert found.evidence[0]["ordinary_sqnr_db"] < 22 < 31 < found.evidence[0]["outlier_sqnr_db"]


def test_a_scale_that_fits_the_outliers_is_not_to_be_made_again(tmp_path: Path) -> None:
    found = findings_of(RunExample(ordinary={HEAD: HIDDEN_LOSS}), tmp_path)["ordinary-channels"]
    assert (found.remedy, found.layers, found.heads) == ("leave layers", (0,), (HEAD,))
    assert "--kv-cache-dtype-skip-layers 0" in found.action


def test_a_scale_that_is_too_wide_for_the_outliers_too_is(tmp_path: Path) -> None:
    found = findings_of(RunExample(sums=WIDE, ordinary={HEAD: HIDDEN_LOSS}), tmp_path)["ordinary-channels"]
    assert found.remedy == "recalibrate"
    assert found.command is not None


@pytest.mark.parametrize(("max_abs", "remedy"), [(112.0, "recalibrate"), (224.0, "leave layers")])
def test_a_scale_some_times_too_wide_is_to_be_made_again_where_that_is_enough(
    max_abs: float, remedy: str, tmp_path: Path
) -> None:
    """Of 6.5 in 1,000, 5.8 lie beyond the floor and fall with the square of the scale: to 0.36, to 1.45."""
    sums = {HEAD: {"max_abs": max_abs}, (0, 1, "k"): {"max_abs": 100.0}}
    found = findings_of(RunExample(sums=sums, ordinary={HEAD: HIDDEN_LOSS}), tmp_path)
    assert found["ordinary-channels"].remedy == remedy


def test_a_scale_that_another_head_sets_is_that_heads(tmp_path: Path) -> None:
    found = findings_of(RunExample(sums={HEAD: {"max_abs": 1.0}}, ordinary={HEAD: HIDDEN_LOSS}), tmp_path)
    assert found["outlier-head"].heads == (HEAD,)
    assert "ordinary-channels" not in found


def test_outliers_at_the_floor_are_no_reason_to_call_the_head_so(tmp_path: Path) -> None:
    assert "rounding-floor" in findings_of(RunExample(ordinary={HEAD: ORDINARY}), tmp_path / "sound")
    lost = dict.fromkeys([(0, h, t) for h in range(2) for t in "kv"], HIDDEN_LOSS)
    assert "rounding-floor" not in findings_of(RunExample(ordinary=lost), tmp_path / "hidden")


def test_flushed_values_that_cost_the_ordinary_channels_nothing_are_no_loss(tmp_path: Path) -> None:
    """Without channels told apart, 30 % of the values flushed stand for an error that Σ x² does not show."""
    assert "no-scale-helps" in findings_of(RunExample(sums={HEAD: FLUSHES}), tmp_path / "as one")
    fine = findings_of(RunExample(sums={HEAD: FLUSHES}, ordinary={HEAD: ORDINARY}), tmp_path / "apart")
    assert all(one.severity == "note" for one in fine.values())


def test_where_one_heads_numbers_show_the_loss_the_hidden_ones_are_told_with_it(tmp_path: Path) -> None:
    shown = {(0, 1, "k"): {"sum_sq_error": 3e3, "num_flushed": 100}}
    found = findings_of(RunExample(sums=shown, ordinary={HEAD: HIDDEN_LOSS}), tmp_path)
    assert set(found["no-scale-helps"].heads) == {HEAD, (0, 1, "k")}
    assert "ordinary-channels" not in found
