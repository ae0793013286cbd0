"""The measures that every query asks: chosen rows and their sums, worked out by hand on the small run.

Its numbers are in tests/queries/input/README.md: request 1 (code) weighs 3, all else 1.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.fabricate_run import fabricate_run, read_tables

from kvtrace.errors import QueryError
from kvtrace.query import connect_with_views, find_query, run_query, run_sql
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from kvtrace.query import RunConnection

SMALL = Path(__file__).parents[1] / "queries" / "input"
HEAD = "candidate = 'shipped' AND tensor = 'k' AND kv_head = 0"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunConnection:
    tables = read_tables(SMALL)
    tables["groups"] = [
        {"source": "day", "candidate": "shipped", "tensor": "k", "workload": workload, "phase": "prefill"}
        | {"sampling_id": rule, "request_group": group, "num_values": 10, "num_clipped": group}
        for group in range(2)
        for workload, rule in (("chat", 0), ("code", 1))
    ]
    path = fabricate_run(tmp_path_factory.mktemp("measures") / "small.run", tables)
    return connect_with_views(open_run(path))


def asked(connection: RunConnection, sql: str, **parameters: str) -> list[dict[str, Any]]:
    """The rows of a user's SELECT: measures are for everybody."""
    return list(run_sql(connection, sql, parameters).records())


def test_values_of_a_head_are_summed_and_weighted(small: RunConnection) -> None:
    (head,) = asked(small, f"SELECT * FROM value_sums(chosen_cells) WHERE {HEAD}")
    counts = ("num_rows", "num_values", "num_out_of_range", "num_clipped", "num_flushed", "num_nonfinite")
    assert [head[name] for name in counts] == [5, 50, 6, 3, 0, 0]
    weighted = ("w_values", "w_out_of_range", "w_clipped", "w_sq_signal", "w_sq_error", "w_sq_clip_error")
    assert [head[name] for name in weighted] == [70, 10, 5, 500, 5, 2]
    assert head["w_sq_other_error"] == 3
    assert head["max_abs"] == 280
    assert head["clipped_frac"] == pytest.approx(5 / 70)
    assert head["clip_error_frac"] == pytest.approx(2 / 5)
    assert head["sqnr_db"] == pytest.approx(20)


def test_an_error_that_is_all_clip_error_but_for_its_last_digit_leaves_none(tmp_path: Path) -> None:
    cell = {"source": "day", "candidate": "shipped", "tensor": "k", "num_values": 10, "sum_sq_signal": 1.0}
    tables = read_tables(SMALL)
    tables["cells"] = [cell | {"sum_sq_error": 0.1, "sum_sq_clip_error": math.nextafter(0.1, 1)}]
    connection = connect_with_views(open_run(fabricate_run(tmp_path / "all.run", tables)))
    (head,) = asked(connection, "SELECT w_sq_other_error AS rest FROM value_sums(chosen_cells)")
    assert head["rest"] == 0


def test_a_query_says_what_its_strata_are(small: RunConnection) -> None:
    rows = asked(
        small,
        "WITH by_workload AS (SELECT * REPLACE (workload AS stratum) FROM chosen_cells) "
        f"SELECT stratum, w_values, w_clipped FROM value_sums(by_workload) WHERE {HEAD} ORDER BY stratum",
    )
    assert [tuple(row.values()) for row in rows] == [("chat", 40, 2), ("code", 30, 3)]


def test_totals_name_the_worst_head(small: RunConnection) -> None:
    (found,) = asked(
        small, "SELECT * FROM value_totals(chosen_cells) WHERE candidate = 'shipped' AND tensor = 'k'"
    )
    assert (found["num_heads"], found["num_heads_out_of_range"], found["num_heads_clipped"]) == (2, 2, 1)
    assert (found["worst_layer"], found["worst_kv_head"]) == (0, 0)
    assert found["worst_clipped_frac"] == pytest.approx(5 / 70)
    assert found["clipped_frac"] == pytest.approx(5 / 140)
    assert found["relative_error"] == pytest.approx(0.1)
    assert found["worst_sqnr_db"] == pytest.approx(20)


def test_vectors_are_counted_by_their_widest_value(small: RunConnection) -> None:
    (head,) = asked(small, f"SELECT * FROM vector_sums(chosen_tokens) WHERE {HEAD}")
    names = ("num_vectors", "num_vectors_out_of_range", "num_vectors_clipped")
    assert [head[name] for name in names] == [5, 3, 2]
    assert [head["w" + name[3:]] for name in names] == [7, 5, 4]
    assert head["vectors_clipped_frac"] == pytest.approx(4 / 7)
    assert head["covered_amax"] == 224
    (total,) = asked(
        small, "SELECT * FROM vector_totals(chosen_tokens) WHERE candidate = 'shipped' AND tensor = 'k'"
    )
    assert [total[name] for name in names] == [10, 4, 2]
    assert total["vectors_clipped_frac"] == pytest.approx(4 / 14)
    assert (total["worst_kv_head"], total["worst_vectors_clipped_frac"]) == (0, pytest.approx(4 / 7))


def test_vectors_are_counted_by_request(small: RunConnection) -> None:
    sql = "SELECT request, n, out_of_range, clipped, num_nonfinite FROM request_vectors(chosen_tokens) "
    rows = asked(small, f"{sql} WHERE {HEAD} ORDER BY request")
    assert [tuple(row.values()) for row in rows] == [(0, 4, 2, 1, 0), (1, 3, 3, 3, 0)]
    rows = asked(
        small, f"{sql} WHERE candidate = 'shipped' AND tensor = 'v' AND kv_head = 1 ORDER BY request"
    )
    assert [row["num_nonfinite"] for row in rows] == [0, 1]


def test_what_intervals_need_of_requests_are_columns(small: RunConnection) -> None:
    (sums,) = asked(
        small,
        f"WITH requests AS (SELECT * FROM request_vectors(chosen_tokens) WHERE {HEAD}) "
        "SELECT * EXCLUDE (candidate, tensor, stratum) FROM request_columns(requests)",
    )
    assert sums == {
        "num_nonfinite": 0, "num_requests": 2, "sum_trials": 7, "sum_trials_sq": 25,
        "num_affected_clipped": 2, "sum_clipped": 4, "sum_clipped_sq": 10, "sum_clipped_trials": 13,
        "max_request_clipped": 1, "num_affected_out_of_range": 2, "sum_out_of_range": 5,
        "sum_out_of_range_sq": 13, "sum_out_of_range_trials": 17, "max_request_out_of_range": 1,
    }  # fmt: skip


def test_what_was_captured_is_counted_with_its_ends(small: RunConnection) -> None:
    (found,) = asked(small, "SELECT * FROM coverage(chosen_tokens)")
    assert list(found.values()) == [0, 2, 1, 5, 0, 3, 2, 3, 0, 2]


def test_groups_of_requests_are_summed_apart(small: RunConnection) -> None:
    rows = asked(
        small, "SELECT request_group, w_values, w_clipped FROM group_sums(chosen_groups) ORDER BY ALL"
    )
    assert [tuple(row.values()) for row in rows] == [(0, 40, 0), (1, 40, 4)]


def test_parameters_choose_rows_once_for_every_measure(small: RunConnection) -> None:
    sql = (
        "SELECT (SELECT sum(num_values) FROM value_sums(chosen_cells)) AS num_values, "
        "(SELECT sum(num_vectors) FROM vector_sums(chosen_tokens)) AS num_vectors, "
        "(SELECT count(*) FROM chosen_tokens) AS num_tokens"
    )

    def found(**parameters: str) -> tuple[int, ...]:
        return tuple(asked(small, sql, **parameters)[0].values())

    assert found() == (585, 60, 5)
    assert found(candidate="shipped") == (195, 20, 5)
    assert found(candidate="shipped", tensor="k", layer="0", kv_head="1") == (50, 5, 5)
    assert found(candidate="shipped", workload="code") == (35, 4, 1)
    assert found(candidate="shipped", phase="decode") == (80, 8, 2)
    assert found(source="night") == (None, None, 0)


def test_a_parameter_of_a_query_does_not_choose_for_the_next_one(small: RunConnection) -> None:
    run_query(small, find_query("by_workload"), {"candidate": "shipped", "workload": "code"})
    assert asked(small, "SELECT count(*) AS n FROM chosen_cells") == [{"n": 36}]
    # rank_heads takes no workload: that of the last query must not reach it either.
    run_query(small, find_query("by_workload"), {"workload": "code"})
    (first, *_) = run_query(small, find_query("rank_heads"), {"tensor": "k"}).records()
    assert first["num_values"] == 50


def test_what_the_scales_cover_is_the_smallest_over_sources(small: RunConnection) -> None:
    rows = asked(small, f"SELECT covered_amax, calibrated_amax, scale FROM covered_heads WHERE {HEAD}")
    assert rows == [{"covered_amax": 224, "calibrated_amax": 200, "scale": 0.5}]
    assert asked(small, "SELECT count(*) AS n, min(effective_scale) AS least FROM effective_scales") == [
        {"n": 4, "least": 1}
    ]


def test_layers_that_a_candidate_leaves_in_every_head_are_named(tmp_path: Path) -> None:
    tables = read_tables(SMALL)
    tables["scales"] += [
        row | {"layer": 1, "scale": None if row["candidate"] == "shipped" else row["scale"]}
        for row in tables["scales"]
    ]
    connection = connect_with_views(open_run(fabricate_run(tmp_path / "two.run", tables)))
    assert asked(connection, "SELECT candidate, layers FROM layers_left_out WHERE layers IS NOT NULL") == [
        {"candidate": "shipped", "layers": [1]}
    ]


def test_lengths_fall_into_classes_by_quantile_or_by_the_edges_asked_for(
    small: RunConnection,
) -> None:
    sql = (
        "SELECT request, class_number, tokens_from, tokens_to FROM length_classes "
        "WHERE length = 'prompt' ORDER BY request"
    )
    assert [tuple(row.values()) for row in asked(small, sql)] == [(0, 0, 2, 2), (1, 1, 3, 3)]
    rows = asked(small, sql, prompt_edges="3,8")
    assert [tuple(row.values()) for row in rows] == [(0, 0, 2, 3), (1, 0, 2, 3)]


@pytest.mark.parametrize(
    ("code", "dtype", "value"),
    [
        (0x3F80, "bfloat16", 1.0),
        (0x4049, "bfloat16", 3.140625),
        (0x0001, "bfloat16", 2.0**-133),
        (0x3C00, "float16", 1.0),
        (0x7BFF, "float16", 65504.0),
        (0x0001, "float16", 2.0**-24),
        (0x3F800000, "float32", 1.0),
        (0x00000001, "float32", 2.0**-149),
    ],
)
def test_a_code_is_read_by_the_dtype_of_its_layer(
    small: RunConnection, code: int, dtype: str, value: float
) -> None:
    assert asked(small, f"SELECT magnitude({code}, '{dtype}') AS x") == [{"x": value}]


@pytest.mark.parametrize("place", ["/etc/passwd", "../small.run/run.json", "https://localhost/x.parquet"])
def test_a_measure_sums_nothing_beyond_the_run(small: RunConnection, place: str) -> None:
    with pytest.raises(QueryError):
        asked(small, f"SELECT * FROM value_sums('{place}')")


def test_a_name_that_no_measure_of_the_sql_reads_is_refused(small: RunConnection) -> None:
    with pytest.raises(QueryError, match="the SQL has no parameter 'workload'"):
        asked(small, "SELECT count(*) FROM cells", workload="chat")
