"""What `kvtrace check --json` and `kvtrace compare --json` print fits the published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.gate_checks import invoke
from support.gate_runs import CANDIDATES, Traffic, gate_run

DOCS = Path(__file__).parents[2] / "docs"
HEAD = (0, 1, "v")
VALUES = {"num_values": 10, "num_clipped": 1, "sum_sq_signal": 9.0, "sum_sq_error": 0.1}
POLICY = """
name = "p"
date = 2020-01-01
[limits]
vectors_clipped_frac = 0.2
clip_error_frac = 0.5
sqnr_db = 20
[coverage]
requests = 5
tokens = 5
[[segments]]
name = "all"
[[segments]]
name = "never seen"
workloads = ["batch"]
"""
WITHOUT_ERROR = {"num_values": 10, "sum_sq_signal": 9.0}


def schema(name: str) -> dict[str, Any]:
    return json.loads((DOCS / name).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def strict(content: Any) -> Any:
    """The schema with no property beyond those it names."""
    if isinstance(content, dict):
        closed = {name: strict(value) for name, value in content.items()}
        return closed | {"additionalProperties": False} if "properties" in closed else closed
    return [strict(value) for value in content] if isinstance(content, list) else content


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Candidates of every kind of row, a workload that breaches, and one head without any error."""
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "policy.toml").write_text(POLICY)
    unit = CANDIDATES[1] | {"candidate": "unit", "kind": "unit", "ordinal": 2}
    broken = CANDIDATES[1] | {"candidate": "broken", "ordinal": 3, "status": "invalid", "reason": "NaN"}
    groups = [
        {
            "source": "day",
            "candidate": "cal",
            "layer": 0,
            "kv_head": 0,
            "tensor": "k",
            "workload": "chat",
            "phase": "prefill",
            "request_group": group,
            "sum_sq_clip_error": 0.01,
        }
        | VALUES
        for group in range(16)
    ]
    return gate_run(
        folder / "a.run",
        Traffic("chat", 30, clipped={HEAD: [10] * 20}, values=VALUES),
        Traffic("code", 3, values=WITHOUT_ERROR),
        candidates=[*CANDIDATES, unit, broken],
        thresholds={"unit": (400, 400)},
        groups=groups,
    )


def test_a_checks_json_fits_its_schema(run: Path) -> None:
    printed = invoke("check", run, "--candidate", "cal", "--policy", run.parent / "policy.toml", "--json")
    content = json.loads(printed.stdout)
    jsonschema.validate(content, strict(schema("check.schema.json")))
    assert content["verdict"] == "breached"
    sqnr = next(one for one in content["segments"][1]["limits"] if one["limit"] == "sqnr_db")
    assert sqnr["worst"]["value"] is None, "no error at all: infinite, which JSON has no word for"


@pytest.mark.parametrize("with_policy", [True, False])
def test_a_comparisons_json_fits_its_schema(run: Path, with_policy: bool) -> None:
    policy = ("--policy", run.parent / "policy.toml") if with_policy else ()
    content = json.loads(invoke("compare", run, *policy, "--json").stdout)
    jsonschema.validate(content, strict(schema("compare.schema.json")))
    rows = {row["name"]: row for row in content["rows"]}
    assert rows["broken"]["decision"] == "invalid"
    assert [one["name"] for one in rows["cal"]["segments"]] == (
        ["all · chat", "all · code", "never seen · batch"] if with_policy else []
    )


def test_the_schemas_refuse_what_is_none(run: Path) -> None:
    for name in ("check.schema.json", "compare.schema.json"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"schema_version": "1.1"}, schema(name))
