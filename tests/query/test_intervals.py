"""Intervals in SQL are those of kvtrace.stats: the same method, computed twice."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import special
from support.fabricate_run import fabricate_run, read_tables, run_record, write_record, write_table
from support.gate_runs import CANDIDATES, Traffic, gate_run
from support.maxima_oracle import expected_maximum
from support.random_run import Tables, random_tables

from kvtrace.query import connect_with_views, find_query, run_query
from kvtrace.runs.open import open_run
from kvtrace.runs.schema import CELLS
from kvtrace.stats.fractions import fraction_intervals, request_sums
from kvtrace.stats.jackknife import jackknife_ratios
from kvtrace.trace.cells import request_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.query import RunConnection

SMALL = Path(__file__).parents[1] / "queries" / "input"
Stratum = tuple[Any, ...]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunConnection:
    """A connection that has the macros of intervals.sql."""
    run = fabricate_run(tmp_path_factory.mktemp("macros") / "small.run", read_tables(SMALL))
    return connect_with_views(open_run(run))


def asked(connection: RunConnection, sql: str, **columns: Any) -> list[tuple[Any, ...]]:
    """The rows of a SELECT over a table `given` of these columns."""
    made = ", ".join(f"unnest(${name}) AS {name}" for name in columns)
    values = {name: pa.array(column).to_pylist() for name, column in columns.items()}
    connection.execute(f"CREATE OR REPLACE TEMP TABLE given AS SELECT {made}", values)
    rows: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
    return rows


FRACTIONS = """
SELECT stratum, fraction_low(sums), fraction_high(sums)
FROM (SELECT stratum, request_sums(x, n) AS sums FROM given GROUP BY stratum) ORDER BY stratum
"""


def test_without_an_event_the_high_end_is_the_one_that_clopper_and_pearson_give_to_requests(
    small: RunConnection,
) -> None:
    ((_, low, high),) = asked(small, FRACTIONS, stratum=[0] * 20, x=[0.0] * 20, n=[7.0] * 20)
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / 20), rel=1e-8)


def test_too_few_requests_have_no_interval(small: RunConnection) -> None:
    stratum = [size for size in (2, 3, 4, 5) for _ in range(size)]
    found = asked(small, FRACTIONS, stratum=stratum, x=[1.0] * 14, n=[8.0] * 14)
    assert [(low is None, high is None) for _, low, high in found] == [
        (True, True),
        (False, True),
        (False, True),
        (False, False),
    ]


def test_sql_gives_the_fraction_intervals_of_the_statistics(small: RunConnection) -> None:
    rng = np.random.default_rng(2)
    strata, sizes = 60, rng.integers(5, 90, 60)
    stratum = np.repeat(np.arange(strata), sizes)
    trials = rng.integers(1, 400, len(stratum))
    share = rng.choice([0.0, 0.001, 0.02, 0.3, 1.0], strata)[stratum]
    events = np.where(
        share == 1, trials, rng.binomial(trials, rng.beta(share * 9 + 1e-9, 9 - share * 9 + 1e-9))
    )
    found = asked(small, FRACTIONS, stratum=stratum, x=events * 16.0, n=trials * 16.0)
    for number, low, high in found:
        here = stratum == number
        wanted = fraction_intervals(request_sums(events[here] * 16.0, trials[here] * 16.0))
        assert low == pytest.approx(float(wanted.low), rel=1e-7, abs=1e-12)
        assert high == pytest.approx(float(wanted.high), rel=1e-7)


def test_the_beta_law_of_sql_is_that_of_scipy(small: RunConnection) -> None:
    rng = np.random.default_rng(3)
    # Requests that are alike make a law as narrow as their number squared.
    a, b = np.exp(rng.uniform(-3, 14, 300)), np.exp(rng.uniform(-2, 14, 300))
    found = asked(small, "SELECT beta_quantile(0.975, a, b), beta_cdf(0.01, a, b) FROM given", a=a, b=b)
    quantile, share = np.array(found).T
    np.testing.assert_allclose(quantile, special.betaincinv(a, b, 0.975), rtol=1e-7)
    np.testing.assert_allclose(share, special.betainc(a, b, 0.01), atol=1e-10)


def test_sql_gives_the_jackknife_of_the_statistics(small: RunConnection) -> None:
    rng = np.random.default_rng(4)
    above = rng.gamma(0.8, 1, (40, 16)) * (rng.random((40, 16)) < 0.9)
    below = rng.gamma(3, 1, (40, 16))
    for row, groups in enumerate(rng.integers(6, 17, 40)):
        above[row, groups:] = below[row, groups:] = 0
    sql = "SELECT ratio_low(above, below), ratio_high(above, below) FROM given"
    wanted = jackknife_ratios(above, below)
    found = asked(small, sql, above=list(above), below=list(below))
    for (low, high), *ends, few in zip(found, wanted.low, wanted.high, wanted.too_few_groups, strict=True):
        assert (low is None, high is None) == (few, few)
        assert few or (low, high) == pytest.approx(tuple(ends), rel=1e-9)
    assert 0 < wanted.too_few_groups.sum() < 40


def test_equal_groups_leave_no_doubt_about_a_ratio(small: RunConnection) -> None:
    sql = "SELECT ratio_low(above, below), ratio_high(above, below) FROM given"
    assert asked(small, sql, above=[[1.0] * 8], below=[[4.0] * 8]) == [(0.25, 0.25)]


def of_workload(row: dict[str, Any], request: dict[str, Any], vector: dict[str, Any]) -> Stratum:
    return (request["workload"],)


def of_all(row: dict[str, Any], request: dict[str, Any], vector: dict[str, Any]) -> Stratum:
    return ()


def of_octave(row: dict[str, Any], request: dict[str, Any], vector: dict[str, Any]) -> Stratum:
    return row["phase"], row["position_octave"]


def of_head(row: dict[str, Any], request: dict[str, Any], vector: dict[str, Any]) -> Stratum:
    return vector["layer"], vector["kv_head"]


def of_width(row: dict[str, Any], request: dict[str, Any], vector: dict[str, Any]) -> Stratum:
    return row["phase"], row["position"] // 256 * 256


def of_step(row: dict[str, Any], request: dict[str, Any], vector: dict[str, Any]) -> Stratum | None:
    step = row["position"] - request["prompt_tokens"]
    return (1 << max(step, 1).bit_length() - 1 if step > 1 else 0,) if step >= 0 else None


@pytest.mark.parametrize(
    ("name", "columns", "stratum_of"),
    [
        ("by_workload", ("workload",), of_workload),
        ("by_position", ("phase", "position_octave"), of_octave),
        ("by_exact_position", ("phase", "position_from"), of_width),
        ("by_generation_step", ("step_from",), of_step),
        ("rank_heads", ("layer", "kv_head"), of_head),
        ("compare_candidates", (), of_all),
    ],
)
def test_a_query_gives_the_interval_of_its_fraction(
    name: str, columns: tuple[str, ...], stratum_of: Callable[..., Stratum | None], tmp_path: Path
) -> None:
    tables = random_tables(5)
    run = open_run(fabricate_run(tmp_path / "random.run", tables))
    query = find_query(name)
    given = {"intervals": "true"} if "intervals" in query.parameters else {}
    rows = list(run_query(connect_with_views(run), query, given).records())
    told = 0
    for row in rows:
        events, trials = request_counts(tables, row, columns, stratum_of)
        wanted = fraction_intervals(request_sums(events, trials))
        assert row["vectors_clipped_frac"] == pytest.approx(float(wanted.fraction))
        assert (row["vectors_clipped_low"] is None) == (len(events) < 3)
        assert (row["vectors_clipped_high"] is None) == (len(events) < 5)
        if len(events) >= 5:
            told += 1
            ends = row["vectors_clipped_low"], row["vectors_clipped_high"]
            assert ends == pytest.approx((float(wanted.low), float(wanted.high)), rel=1e-7, abs=1e-12)
    assert told > 0


def request_counts(
    tables: Tables,
    shown: dict[str, Any],
    columns: tuple[str, ...],
    stratum_of: Callable[..., Stratum | None],
) -> tuple[list[float], list[float]]:
    """Weighted clipped vectors and vectors of each request in the stratum of one row, counted by loops."""
    requests = {(one["source"], one["request"]): one for one in tables["requests"]}
    rows = {(one["source"], one["row"]): one for one in tables["rows"]}
    weights = {
        (one["source"], one["sampling_id"]): one["position_stride"] / one["request_fraction"]
        for one in tables["sampling"]
    }
    limits = {
        (one["source"], one["layer"], one["kv_head"], one["tensor"]): one["max_unclipped_code"]
        for one in tables["scales"]
        if one["candidate"] == shown["candidate"]
    }
    events: dict[Any, float] = defaultdict(float)
    trials: dict[Any, float] = defaultdict(float)
    for vector in tables["vectors"]:
        row = rows[vector["source"], vector["row"]]
        request = requests[row["source"], row["request"]]
        if vector["absmax_code"] is None or vector["tensor"] != shown["tensor"]:
            continue
        if stratum_of(row, request, vector) != tuple(shown[column] for column in columns):
            continue
        key = row["source"], row["request"]
        weight = weights[row["source"], row["sampling_id"]]
        limit = limits[vector["source"], vector["layer"], vector["kv_head"], vector["tensor"]]
        trials[key] += weight
        events[key] += weight * (limit is not None and vector["absmax_code"] > limit)
    return [events[key] for key in trials], list(trials.values())


def group_rows(rng: np.random.Generator, workload: str, num_groups: int) -> list[dict[str, Any]]:
    return [
        {
            "source": "day",
            "candidate": "cal",
            "layer": 0,
            "kv_head": kv_head,
            "tensor": "k",
            "workload": workload,
            "phase": phase,
            "request_group": group,
            "num_values": 1000,
            "num_clipped": int(rng.integers(1, 30)),
            "sum_sq_signal": 1000 * rng.random(),
            "sum_sq_error": rng.random(),
            "sum_sq_clip_error": 0.1 * rng.random(),
        }
        for group in range(num_groups)
        for kv_head in range(2)
        for phase in ("prefill", "decode")
    ]


def test_ratios_of_values_get_the_jackknife_of_their_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    groups = group_rows(rng, "chat", 16) + group_rows(rng, "code", 7)
    values = {"num_values": 100, "num_clipped": 1, "sum_sq_signal": 1.0, "sum_sq_error": 0.1}
    traffic = [Traffic(name, 3, values=values) for name in ("chat", "code")]
    run = open_run(gate_run(tmp_path / "groups.run", *traffic, groups=groups))
    rows = list(run_query(connect_with_views(run), find_query("by_workload")).records())
    chat, code = (
        next(row for row in rows if (row["tensor"], row["workload"]) == ("k", name))
        for name in ("chat", "code")
    )
    for numerator, denominator, name in (
        ("num_clipped", "num_values", "clipped"),
        ("sum_sq_clip_error", "sum_sq_error", "clip_error"),
        ("sum_sq_signal", "sum_sq_error", "sqnr"),
    ):
        above, below = (
            [
                math.fsum(
                    one[column] for one in groups if (one["workload"], one["request_group"]) == ("chat", g)
                )
                for g in range(16)
            ]
            for column in (numerator, denominator)
        )
        wanted = jackknife_ratios(above, below)
        ends = [float(wanted.low), float(wanted.high)]
        unit = "_db" if name == "sqnr" else ""
        if unit:
            ends = [10 * math.log10(end) for end in ends]
        assert [chat[f"{name}_{end}{unit}"] for end in ("low", "high")] == pytest.approx(ends)
        assert code[f"{name}_low{unit}"] is None, "seven groups are too few to tell"


OTHER = CANDIDATES[1] | {"candidate": "other", "ordinal": 2}


def test_a_change_of_sqnr_gets_the_jackknife_of_both_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    here = group_rows(rng, "chat", 16)
    there = [
        one | {"candidate": "other", "sum_sq_error": one["sum_sq_error"] * (1 + rng.random())} for one in here
    ]
    values = {"num_values": 100, "sum_sq_signal": 1.0, "sum_sq_error": 0.1}
    path = gate_run(
        tmp_path / "pairs.run",
        Traffic("chat", 3, values=values),
        candidates=[*CANDIDATES, OTHER],
        groups=here + there,
    )
    given = {"baseline": "other", "candidate": "cal", "tensor": "k"}
    rows = run_query(connect_with_views(open_run(path)), find_query("paired_candidates"), given).records()
    for row in rows:
        errors = [
            [
                math.fsum(
                    one["sum_sq_error"]
                    for one in side
                    if (one["kv_head"], one["request_group"]) == (row["kv_head"], group)
                )
                for group in range(16)
            ]
            for side in (there, here)
        ]
        wanted = jackknife_ratios(*errors)
        ends = [10 * math.log10(float(end)) for end in (wanted.low, wanted.high)]
        assert [row["sqnr_change_low_db"], row["sqnr_change_high_db"]] == pytest.approx(ends)
        assert row["sqnr_change_low_db"] > 0


def test_candidates_are_paired_on_the_traces_that_have_both(tmp_path: Path) -> None:
    def traffic(source: str, error: float) -> Traffic:
        values = {"num_values": 100, "sum_sq_signal": 1.0, "sum_sq_error": error}
        return Traffic("chat", 3, values=values, source=source)

    path = gate_run(
        tmp_path / "two.run",
        traffic("day", 0.1),
        traffic("night", 0.9),
        candidates=[*CANDIDATES, OTHER],
        sources_of={"cal": ["day"]},
    )
    cells = pq.read_table(path / "cells.parquet").to_pylist()
    write_table(path, CELLS, [one for one in cells if (one["candidate"], one["source"]) != ("cal", "night")])
    write_record(path, run_record())
    given = {"baseline": "cal", "candidate": "other"}
    rows = run_query(connect_with_views(open_run(path)), find_query("paired_candidates"), given).records()
    assert {(row["sqnr_change_db"], row["num_values"]) for row in rows} == {(0.0, 100)}


def test_maxima_are_rarefied_as_the_statistics_do(small: RunConnection) -> None:
    amax = sorted(np.random.default_rng(7).gamma(2, 1, 50).tolist())
    sql = """
    SELECT sum(amax * exp(log_choose(place - 1, 7 - 1) - log_choose(50, 7))) FROM given WHERE place >= 7
    """
    ((found,),) = asked(small, sql, amax=amax, place=range(1, 51))
    assert found == pytest.approx(expected_maximum(amax, 7))


def test_request_groups_are_even_over_every_arithmetic_progression_of_numbers() -> None:
    for step in (1, 2, 3, 4, 8, 16, 100, 1000):
        sizes = np.bincount(request_group(5 + step * np.arange(320)), minlength=16)
        assert sizes.size == 16
        assert sizes.min() >= 10
        assert sizes.max() <= 30
