"""A parameter of a query with a value that it cannot mean is named, with what was expected: exit 2."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from support.fabricate_run import fabricate_run, read_tables
from support.run_cli import kvtrace

from kvtrace.errors import QueryError
from kvtrace.query import connect_with_views, find_query, run_query
from kvtrace.query.library import read_query
from kvtrace.runs.open import Run, open_run

SMALL = Path(__file__).parents[1] / "queries" / "input"
CANDIDATES = "bf16, shipped, running, broken"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(fabricate_run(tmp_path_factory.mktemp("runs") / "small.run", read_tables(SMALL)))


HEADER = """-- What is asked.
-- Grain: one row.
--
-- Parameters
--   top        whole number from 1; 10  heads shown per candidate,
--                                       tensor and ranking
--   limit      number from 0 to 1; 0.5  share that is too much; 1 is all
--   margin_db  number from 0            loss that counts, dB
--   by         chat or code; chat       one of them
--   edges      ascending whole numbers  where classes end
--   per_head   per-head candidate; the first  what is compared with
--   kv_head    KV head; all             this one alone
--
-- Columns
--   one  a number
SELECT 1 AS one
"""


def test_a_header_says_what_a_parameter_takes_its_default_and_its_meaning(tmp_path: Path) -> None:
    file = tmp_path / "asked.sql"
    file.write_text(HEADER)
    found = read_query(file).parameters
    of_the_run = {"per_head": "per-head candidate", "kv_head": "KV head"}
    assert {name: found[name].takes for name in of_the_run} == of_the_run
    expected = {
        "top": "a whole number from 1 on",
        "limit": "a number from 0 to 1",
        "margin_db": "a number from 0 on",
        "by": "chat or code",
        "edges": "ascending whole numbers, such as 512,4096",
    }
    assert {
        name: one.kind(duckdb.default_connection(), "-1")
        for name, one in found.items()
        if name not in of_the_run
    } == expected
    assert found["top"].default == "10"
    assert found["top"].meaning == "heads shown per candidate, tensor and ranking"
    assert found["limit"].meaning == "share that is too much; 1 is all"
    assert found["margin_db"].default is None
    assert found["per_head"].default == "the first"


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("top  heads shown", "expected what it takes, two spaces and what it means, found 'heads shown'"),
        ("top  whole number; 10  heads shown", "takes 'whole number'; expected candidate, "),
        ("top  some head; 10  heads shown", "takes 'some head'; expected candidate, "),
    ],
)
def test_a_header_that_says_of_a_parameter_nothing_known_is_named_with_what_it_may_say(
    tmp_path: Path, said: str, wrong: str
) -> None:
    file = tmp_path / "asked.sql"
    file.write_text(f"-- What is asked.\n--\n-- Parameters\n--   {said}\nSELECT 1\n")
    with pytest.raises(QueryError) as caught:
        read_query(file)
    assert str(caught.value).startswith(f"{file}: parameter top")
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    ("query", "parameter", "value", "expected"),
    [
        ("rank_heads", "candidate", "shiped", f"one of {CANDIDATES}"),
        ("rank_heads", "candidate", "", f"one of {CANDIDATES}"),
        ("paired_candidates", "baseline", "bf16", "one of shipped, running"),
        ("paired_candidates", "baseline", "broken", "one of shipped, running"),
        ("compare_granularity", "per_head", "running", "one of shipped"),
        ("rank_heads", "source", "night", "one of day"),
        ("by_workload", "workload", "tools", "one of chat, code"),
        ("by_workload", "layer", "1", "one of 0"),
        ("by_workload", "layer", "first", "one of 0"),
        ("by_workload", "kv_head", "2", "0 to 1"),
        ("by_workload", "kv_head", "-1", "0 to 1"),
        ("rank_heads", "tensor", "K", "k or v"),
        ("by_position", "phase", "encode", "prefill or decode"),
        ("amax_by_class", "by", "length", "workload or prompt or output"),
        ("rank_heads", "intervals", "maybe", "true or false"),
        ("rank_heads", "top", "0", "a whole number from 1 on"),
        ("rank_heads", "top", "-3", "a whole number from 1 on"),
        ("rank_heads", "top", "2.5", "a whole number from 1 on"),
        ("rank_heads", "top", "many", "a whole number from 1 on"),
        ("rank_heads", "top", "9" * 5_000, "a whole number from 1 on"),
        ("by_exact_position", "width", "0", "a whole number from 1 on"),
        ("by_generation_step", "width", "-1", "a whole number from 1 on"),
        ("amax_by_class", "min_requests", "0", "a whole number from 1 on"),
        ("locate_heads", "min_tokens", "few", "a whole number from 0 on"),
        ("clip_flush_floor", "margin_db", "-1", "a number from 0 on"),
        ("clip_flush_floor", "margin_db", "inf", "a number from 0 on"),
        ("by_length_class", "prompt_edges", "512;4096", "ascending whole numbers, such as 512,4096"),
        ("by_length_class", "output_edges", "512,64", "ascending whole numbers, such as 512,4096"),
        ("amax_by_class", "edges", "", "ascending whole numbers, such as 512,4096"),
    ],
)
def test_a_value_that_a_parameter_cannot_mean_is_refused_with_what_it_can(
    run: Run, query: str, parameter: str, value: str, expected: str
) -> None:
    with pytest.raises(QueryError) as caught:
        run_query(connect_with_views(run), find_query(query), {parameter: value})
    text = str(caught.value)
    assert text.startswith(f"query {query}: {parameter} is {value[:20]!r}"[:-1])
    assert text.endswith(f"; expected {expected}")
    assert len(text) < 300


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("rank_heads", {"candidate": "shipped", "source": "day", "top": "2147483647", "intervals": "false"}),
        ("rank_heads", {"intervals": str(True)}),
        ("compare_candidates", {"candidate": "broken"}),
        ("by_workload", {"workload": "chat", "layer": "0", "kv_head": "1", "tensor": "v"}),
        ("by_length_class", {"prompt_edges": "0, 512", "output_edges": "7"}),
        ("locate_heads", {"min_tokens": "0"}),
        ("clip_flush_floor", {"margin_db": "0"}),
    ],
)
def test_values_that_the_run_holds_are_taken(run: Run, query: str, parameters: dict[str, str]) -> None:
    assert run_query(connect_with_views(run), find_query(query), parameters).columns


def test_of_many_known_values_the_first_are_named(tmp_path: Path) -> None:
    tables = read_tables(SMALL)
    tables["requests"] = [
        tables["requests"][0] | {"request": number, "workload": f"team {number:04}\x1b[31m"}
        for number in range(500)
    ]
    many = open_run(fabricate_run(tmp_path / "many.run", tables))
    with pytest.raises(QueryError) as caught:
        run_query(connect_with_views(many), find_query("by_workload"), {"workload": "team"})
    assert "team 0019" in str(caught.value)
    assert str(caught.value).endswith(" and 480 more")
    assert "\x1b" not in str(caught.value)


def test_the_command_exits_2_with_one_line(run: Run) -> None:
    for given, text in (
        (("top=0",), "query rank_heads: top is '0'; expected a whole number from 1 on"),
        (
            ("candidate=absent",),
            f"query rank_heads: candidate is 'absent'; expected one of {CANDIDATES}",
        ),
        (("top=3", "top=4"), "--param top is given twice; expected one value"),
    ):
        options = [part for pair in given for part in ("--param", pair)]
        result = kvtrace("query", run.path, "rank_heads", *options)
        assert (result.returncode, result.stdout, result.stderr) == (2, "", f"kvtrace: {text}\n")
