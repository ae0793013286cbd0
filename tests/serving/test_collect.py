"""The table of served requests: what goes in comes out, and a table that was changed is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.outcome_files import own_line, write_json, write_lines
from support.serving_files import bench_result, eleven_lines, own_served, served_file

from kvtrace.errors import OutcomesError
from kvtrace.outcomes.collect import collect_outcomes, load_key
from kvtrace.outcomes.source import Choices, Source
from kvtrace.outcomes.table import read_outcomes
from kvtrace.runs.manifest import ServingManifest
from kvtrace.serving.collect import Extras, collect_serving, collected_text
from kvtrace.serving.formats import read_served
from kvtrace.serving.record import Served
from kvtrace.serving.source import VariantFile, parse_variant_file
from kvtrace.serving.table import read_serving

FILES = Path(__file__).parent / "files"


def rows(path: Path) -> list[Served]:
    return [row for _, of_run in read_serving(path).each_run() for row in of_run]


def test_rows_come_out_as_the_file_says(tmp_path: Path) -> None:
    file = served_file(tmp_path, eleven_lines())
    collect_serving([VariantFile("bf16", file)], tmp_path / "t", Extras(load="open"))
    assert rows(tmp_path / "t") == [one for one in read_served(file) if isinstance(one, Served)]
    (run,) = read_serving(tmp_path / "t").runs
    assert (run.first_planned_us, run.last_planned_us, run.rows) == (-2_000_000, 10_000_000, 11)
    assert run.statuses == {"completed": 9, "rejected": 1, "failed": 1}


def test_the_real_result_and_its_scrapes_go_through_the_table(tmp_path: Path) -> None:
    metrics = [VariantFile("bf16", FILES / f"vllm_metrics_{name}.prom") for name in ("before", "after")]
    result = VariantFile("bf16", FILES / "vllm_bench_serve.json")
    runs = collect_serving([result], tmp_path / "t", Extras(metrics=metrics))
    table = read_serving(tmp_path / "t")
    assert table.runs == tuple(runs)
    assert [one.num_blocks for one in table.scrapes["bf16"]] == [364, 364]
    assert "arrivals are taken from sending" in collected_text(runs)
    assert "no goodput" not in collected_text(runs)


def test_runs_of_a_variant_are_numbered_over_files(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("\n".join(json.dumps(bench_result()) for _ in range(2)))
    write_json(tmp_path / "s.json", bench_result())
    sources = [parse_variant_file(f"{name}={tmp_path / file}") for name, file in (
        ("bf16", "r.json"), ("fp8", "s.json"), ("bf16", "s.json"),
    )]  # fmt: skip
    runs = collect_serving(sources, tmp_path / "t", Extras())
    assert [(run.variant, run.repetition) for run in runs] == [
        ("bf16", 0), ("bf16", 1), ("fp8", 0), ("bf16", 2),
    ]  # fmt: skip


def judged(tmp_path: Path, *lines: dict[str, object]) -> Path:
    file = write_lines(tmp_path / "outcomes.jsonl", lines)
    collect_outcomes([Source(file, None, Choices())], tmp_path / "o", load_key(None))
    return tmp_path / "o"


def test_answers_judged_elsewhere_are_joined_by_variant_id_and_run(tmp_path: Path) -> None:
    outcomes = judged(tmp_path, own_line("e1-0"), own_line("e1-1", "fail"), own_line("e1-2", "unjudged"))
    file = write_json(tmp_path / "r.json", bench_result())
    extras = Extras(outcomes=read_outcomes(outcomes))
    collect_serving([VariantFile("bf16-a", file)], tmp_path / "t", extras)
    assert [row.accepted for row in rows(tmp_path / "t")] == [True, False, None]
    with pytest.raises(OutcomesError, match="none of its answers is of a request here"):
        collect_serving([VariantFile("fp8", file)], tmp_path / "u", extras)


def test_lists_without_ids_are_joined_with_nothing(tmp_path: Path) -> None:
    outcomes = judged(tmp_path, own_line("#0"))
    file = write_json(tmp_path / "r.json", bench_result(request_id_prefix=None))
    with pytest.raises(OutcomesError, match="none of its answers is of a request here"):
        collect_serving(
            [VariantFile("bf16-a", file)], tmp_path / "t", Extras(outcomes=read_outcomes(outcomes))
        )


def test_an_id_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    file = served_file(tmp_path, [own_served("a"), own_served("a", 1.0)])
    with pytest.raises(OutcomesError, match="id a is in serving twice; retries are one request"):
        collect_serving([VariantFile("bf16", file)], tmp_path / "t", Extras())
    assert not (tmp_path / "t").exists()


def test_a_load_that_contradicts_the_file_is_refused(tmp_path: Path) -> None:
    file = write_json(tmp_path / "r.json", bench_result(request_rate="inf", max_concurrency=4))
    with pytest.raises(OutcomesError, match="says that its load was closed; leave out --load open"):
        collect_serving([VariantFile("bf16", file)], tmp_path / "t", Extras(load="open"))


def test_a_manifest_comes_with_its_variant(tmp_path: Path) -> None:
    file = served_file(tmp_path, eleven_lines())
    manifest = ServingManifest(reuse_policy="prefix cache off", run_order="shuffled", drain=5.0)
    collect_serving([VariantFile("bf16", file)], tmp_path / "t", Extras(manifests={"bf16": manifest}))
    assert read_serving(tmp_path / "t").manifests == {"bf16": manifest}
    with pytest.raises(OutcomesError, match="fp8: no file is of this variant"):
        collect_serving([VariantFile("bf16", file)], tmp_path / "t", Extras(manifests={"fp8": manifest}))


@pytest.mark.parametrize("change", ["cut", "more", "other run", "version"])
def test_a_table_that_was_changed_is_refused(tmp_path: Path, change: str) -> None:
    file = served_file(tmp_path, eleven_lines())
    collect_serving([VariantFile("bf16", file)], tmp_path / "t", Extras())
    lines = (tmp_path / "t").read_text().splitlines()
    changed = {
        "cut": lines[:-1],
        "more": [*lines, lines[-1]],
        "other run": [*lines[:-1], lines[-1].replace('"run":0', '"run":1')],
        "version": [lines[0].replace('"1.1"', '"2.0"'), *lines[1:]],
    }[change]
    (tmp_path / "t").write_text("\n".join(changed) + "\n")
    with pytest.raises(OutcomesError, match=str(tmp_path / "t")):
        rows(tmp_path / "t")
