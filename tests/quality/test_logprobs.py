"""Log-probabilities beside BF16: by hand, beside the noise, and from hostile files."""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.outcome_tables import answers, table
from support.run_cli import kvtrace

from kvtrace.errors import OutcomesError
from kvtrace.quality.divergence import survival
from kvtrace.quality.logprobs import compare_logprobs
from kvtrace.quality.logprobs_text import logprobs_lines
from kvtrace.quality.run.score_table import BASELINE_KEY, SCHEMA
from kvtrace.quality.run.steps import Step, forced_steps, free_steps, kl_at_least
from kvtrace.quality.scores import read_scores
from kvtrace.stats.bootstrap import mean_interval

if TYPE_CHECKING:
    from pathlib import Path


def lists(*probabilities: float) -> list[list[Any]]:
    return [[token, log(p)] for token, p in enumerate(probabilities)]


def row(variant: str, name: str, step: int, delta: float | None, **given: Any) -> dict[str, Any]:
    return {
        "variant": variant,
        "mode": "forced",
        "id": name,
        "step": step,
        "position": 10 + step,
        "logprob": None if delta is None else -1.0 + delta,
        "delta": delta,
        "is_flip": False,
        "kl": None,
    } | given


def write(path: Path, rows: list[dict[str, Any]], **columns: Any) -> Path:
    schema = SCHEMA.with_metadata({BASELINE_KEY: b"bf16-a"})
    content = pa.Table.from_pylist(rows, schema)
    for name, values in columns.items():
        content = content.set_column(content.column_names.index(name), schema.field(name), values)
    pq.write_table(content, path)
    return path


def test_the_kl_of_the_specification_by_hand() -> None:
    p, q = lists(0.7, 0.2, 0.06), lists(0.6, 0.28, 0.05)
    assert kl_at_least(p, q) == pytest.approx(0.0291657, abs=1e-7)
    # Without the third token the rest is one cell of 0.1 and 0.12.
    assert kl_at_least(p[:2], q) == pytest.approx(0.0223789, abs=1e-7)
    assert kl_at_least(p, q[:2]) == pytest.approx(0.0223789, abs=1e-7)
    assert kl_at_least(p, p) == 0
    assert kl_at_least(lists(0.7, 0.3), lists(0.6, 0.4)) is None  # no rest
    assert kl_at_least([[1, log(0.5)]], [[2, log(0.5)]]) is None  # nothing in both


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=3, max_size=12), st.data())
def test_a_kl_over_fewer_tokens_is_never_more_than_that_over_all(
    weights: list[tuple[float, float]], data: st.DataObject
) -> None:
    p, q = (np.array(side) / sum(side) for side in zip(*weights, strict=True))
    whole = float(np.sum(p * np.log(p / q)))
    kept = data.draw(st.integers(1, len(weights) - 1))
    found = kl_at_least(lists(*p[:kept]), lists(*q[:kept]))
    assert found is None or -1e-9 <= found <= whole + 1e-9


def test_forced_steps_are_those_of_the_baselines_answer() -> None:
    one = [[log(0.7), lists(0.7, 0.2)], [log(0.2), lists(0.7, 0.2)]]
    other = [[log(0.35), [[1, log(0.4)], [0, log(0.35)]]], [log(0.4), [[1, log(0.4)], [0, log(0.35)]]]]
    first, second = forced_steps(one, other)
    assert (first.step, first.is_flip, second.is_flip) == (0, True, True)
    assert first.delta == pytest.approx(log(0.5))
    assert second.delta == pytest.approx(log(2))
    assert first.logprob == pytest.approx(log(0.35))
    # By hand: 0.7 ln(0.7/0.35) + 0.2 ln(0.2/0.4) + 0.1 ln(0.1/0.25)
    assert first.kl == pytest.approx(0.7 * log(2) - 0.2 * log(2) + 0.1 * log(0.4))


def test_free_answers_count_until_they_differ_and_that_step_is_a_flip() -> None:
    same = [-0.5, lists(0.6, 0.3)]
    found = list(free_steps([7, 8, 9], [same] * 3, [7, 4, 9], [same] * 3))
    assert [one.step for one in found] == [0, 1]
    assert found[1] == Step(1, None, None, is_flip=True, kl=None)
    assert [one.is_flip for one in free_steps([7, 8], [same] * 2, [7, 8], [same] * 2)] == [False, False]
    # One ends where the other goes on: that is a difference.
    assert [one.delta for one in free_steps([7], [same], [7, 8], [same] * 2)] == [0.0, None]


def test_a_request_counts_once_however_long_it_is(tmp_path: Path) -> None:
    rows = [
        *(row("fp8", "long", step, -0.1) for step in range(8)),
        row("fp8", "short", 0, 0.5, is_flip=True),
        *(row("bf16-b", "long", step, 0.02 * (-1) ** step) for step in range(8)),
        row("bf16-b", "short", 0, 0.0),
    ]
    found = compare_logprobs(read_scores(write(tmp_path / "s", rows)), "bf16-b", 0.95)
    (fp8,) = found.modes
    assert (fp8.variant, fp8.mode, fp8.num_requests, fp8.num_steps) == ("fp8", "forced", 2, 9)
    assert fp8.abs_delta.variant == pytest.approx((0.1 + 0.5) / 2)
    assert fp8.abs_delta.noise == pytest.approx(0.01)
    assert fp8.abs_delta.excess == pytest.approx(0.29)
    assert fp8.delta.variant == pytest.approx((-0.1 + 0.5) / 2)
    assert fp8.delta.excess == pytest.approx(0.2)
    assert fp8.flip_frac.variant == 0.5
    assert fp8.flip_frac.excess == 0.5
    assert (fp8.abs_delta.low, fp8.abs_delta.high) == (None, None)  # two requests are too few
    # Over tokens: eight of -1.1 and one of -0.5; the baseline's are all -1.
    assert fp8.perplexity == pytest.approx(exp(9.3 / 9))
    assert fp8.baseline_perplexity == pytest.approx(exp(1))
    assert fp8.kl is None
    assert [(one.first, one.last, one.num_steps) for one in fp8.by_step] == [
        (0, 0, 2), (1, 1, 1), (2, 3, 2), (4, 7, 4),
    ]  # fmt: skip
    assert [(one.first, one.last, one.num_steps) for one in fp8.by_position] == [(8, 15, 7), (16, 31, 2)]
    assert fp8.by_step[0].abs_delta.variant == pytest.approx((0.1 + 0.5) / 2)
    assert fp8.by_step[0].abs_delta.noise == pytest.approx(0.01)


def test_an_excess_has_an_interval_from_30_requests_on_and_none_is_a_zero_without_noise(
    tmp_path: Path,
) -> None:
    deltas = np.random.default_rng(5).normal(0.03, 0.01, 40).tolist()
    rows = [row("fp8", f"r{n}", 0, delta) for n, delta in enumerate(deltas)]
    alone = compare_logprobs(read_scores(write(tmp_path / "a", rows)), "bf16-b", 0.95).modes[0]
    assert (alone.abs_delta.noise, alone.abs_delta.excess, alone.abs_delta.low) == (None, None, None)
    rows += [row("bf16-b", f"r{n}", 0, 0.001 * (-1) ** n) for n in range(40)]
    found = compare_logprobs(read_scores(write(tmp_path / "b", rows)), "bf16-b", 0.95).modes[0]
    excess = found.abs_delta
    assert excess.low is not None
    assert excess.high is not None
    # The law of large numbers as an oracle: mean ± 1.96 sd/√n, to a tenth of its width.
    values = np.abs(deltas) - 0.001
    half = 1.96 * values.std(ddof=1) / np.sqrt(40)
    assert excess.low == pytest.approx(values.mean() - half, abs=half / 5)
    assert excess.high == pytest.approx(values.mean() + half, abs=half / 5)
    fewer = compare_logprobs(read_scores(write(tmp_path / "c", rows[:69])), "bf16-b", 0.95).modes[0]
    assert (fewer.abs_delta.low, fewer.abs_delta.num_requests) == (None, 40)  # 29 in both


def test_the_interval_of_a_mean_covers_as_often_as_it_says() -> None:
    random = np.random.default_rng(11)
    covered = 0
    for _ in range(400):
        ends = mean_interval(random.exponential(1.0, 200), 0.9)
        assert ends is not None
        covered += ends.low <= 1.0 <= ends.high
    # 90 %, less some of a skewed law at n = 200; ± 3 standard errors of 400 draws.
    assert 0.85 <= covered / 400 <= 0.945


def test_kaplan_and_meier_by_hand() -> None:
    # Six answers: differ at 1, 3, 3; end the same at 2, 4, 4. S = 5/6, then × 2/4.
    lengths = np.array([1, 3, 3, 2, 4, 4])
    diverged = np.array([True, True, True, False, False, False])
    assert survival(lengths, diverged).tolist() == pytest.approx([1, 5 / 6, 5 / 6, 5 / 12, 5 / 12])


def test_first_divergence_counts_answers_that_ended_the_same_as_censored(tmp_path: Path) -> None:
    rows = []
    for n in range(40):  # half differ at the third step, half are the same for four
        rows += [row("fp8", f"r{n}", step, 0.0, mode="free") for step in range(2 if n % 2 else 4)]
        if n % 2:
            rows.append(row("fp8", f"r{n}", 2, None, mode="free", is_flip=True))
    found = compare_logprobs(read_scores(write(tmp_path / "s", rows)), None, 0.95)
    (one,) = found.divergence
    assert (one.num_requests, one.num_identical) == (40, 20)
    assert [(at.steps, at.frac, at.num_at_risk) for at in one.identical] == [
        (1, 1.0, 40), (2, 1.0, 40), (4, 0.5, 20),
    ]  # fmt: skip
    assert one.median_step == 3
    assert one.low == 3
    assert "20 of 40 answers are the same to their end" in " ".join(logprobs_lines(found))
    free = found.modes[0]
    assert (free.mode, free.num_steps) == ("free", 120)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        ([row("x", "a", 0, 0.0), row("x", "a", 0, 0.1)], {}, "a step of a request twice"),
        ([row("x", "a", -1, 0.0)], {}, "below 0"),
        ([row("x", "a", 0, 0.0, kl=-1.0)], {}, "below 0"),
        ([row("x", "a", 0, 3.0)], {}, "a probability above 1"),
        ([row("x", "a", 0, 0.0, mode="dreamt")], {}, "the modes dreamt"),
        ([row("x", "a", 0, 0.0)], {"delta": pa.array([float("nan")])}, "a value that is not a number"),
        ([row("x", "a", 0, 0.0)], {"delta": pa.array([float("inf")])}, "a value that is not a number"),
    ],
)
def test_a_table_that_holds_what_none_can_hold_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], columns: dict[str, Any], expected: str
) -> None:
    with pytest.raises(OutcomesError, match=expected):
        read_scores(write(tmp_path / "s", rows, **columns))


def test_a_file_that_is_no_table_of_scores_is_one_line(tmp_path: Path) -> None:
    outcomes = table(tmp_path, answers(40))
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other")
    write(tmp_path / "cut", [row("x", "a", n, 0.0) for n in range(50)])
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:-40])
    (tmp_path / "empty").touch()
    for name in ("other", "cut", "empty", "absent"):
        arguments = ("--margin", "0.05", "--floor", "0.5", "--scores", tmp_path / name)
        done = kvtrace("quality", "compare", outcomes, *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), name
        assert name in done.stderr
