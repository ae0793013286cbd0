"""A scale for every token and head, from a real trace to the verdict: what a policy says of such a cache."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter
from support.fabricate import bits, fabricate_trace, request
from support.fp8_oracle import values_of_bits
from support.gate_checks import invoke
from support.online_oracle import FP8, INT8, restored_by_rule
from support.run_cli import kvtrace

from kvtrace.candidates import Bf16, OnlineScales
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.report.json import report_json
from kvtrace.report.sections import Report
from kvtrace.trace.reader import open_trace

DOCS = Path(__file__).parents[2] / "docs"
NUM_REQUESTS, ROWS_EACH, HEAD_DIM = 6, 4, 64


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A run, and policy → the SQNR of its worst head in dB, by the rule in numpy."""
    folder = tmp_path_factory.mktemp("online")
    rows = NUM_REQUESTS * ROWS_EACH
    random = np.random.default_rng(7)
    tensors = {
        (0, tensor): random.standard_t(3, (rows, 2, HEAD_DIM)).astype(np.float32) for tensor in ("k", "v")
    }
    trace = fabricate_trace(
        folder / "t.kvtrace",
        tensors,
        request_of_row=[row // ROWS_EACH for row in range(rows)],
        position_of_row=[row % ROWS_EACH for row in range(rows)],
        requests=[request(number, prompt_tokens=ROWS_EACH) for number in range(NUM_REQUESTS)],
    )
    worst = {}
    for policy in (FP8, INT8):
        found = []
        for values in tensors.values():
            stored = values_of_bits(bits(values), "bfloat16").astype(np.float32)
            restored = np.stack([[restored_by_rule(x, policy) for x in token] for token in stored])
            signal, error = ((one.astype(np.float64) ** 2).sum((0, 2)) for one in (stored, stored - restored))
            found.append(10 * np.log10(signal / error).min())
        worst[policy] = float(min(found))
    return replay(
        ReplayRequest([open_trace(trace)], [Bf16(), OnlineScales(INT8), OnlineScales(FP8)]), folder / "a.run"
    ), worst


def write_policy(folder: Path, sqnr_db: float) -> Path:
    path = folder / "policy.toml"
    path.write_text(
        f'name = "p"\ndate = 2020-01-01\n[limits]\nvectors_clipped_frac = 0.001\nsqnr_db = {sqnr_db}\n'
        f'[coverage]\nrequests = {NUM_REQUESTS}\ntokens = 10\n[[segments]]\nname = "all"\n'
    )
    return path


def test_int8_below_45_db_breaches_a_policy_of_45_db(
    run: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    path, worst = run
    assert worst[INT8] < 45, "the trace is such a one"
    checked = invoke("check", path, "--candidate", INT8, "--policy", write_policy(tmp_path, 45), "--json")
    assert checked.exit_code == 1
    clipped, sqnr = json.loads(checked.stdout)["segments"][0]["limits"]
    assert (clipped["verdict"], clipped["num_heads"]) == ("within", 4)
    assert (sqnr["verdict"], sqnr["num_heads"], sqnr["has_interval"]) == ("breached", 4, False)
    assert sqnr["worst"]["value"] == pytest.approx(worst[INT8], rel=1e-9)


@pytest.mark.parametrize("policy", [FP8, INT8])
@pytest.mark.parametrize(("beyond", "code", "decision"), [(-0.1, 0, "within the"), (0.1, 1, "breaches the")])
def test_the_worst_heads_sqnr_decides_in_check_and_in_compare(
    run: tuple[Path, dict[str, float]],
    tmp_path: Path,
    policy: str,
    beyond: float,
    code: int,
    decision: str,
) -> None:
    path, worst = run
    limits = write_policy(tmp_path, worst[policy] + beyond)
    assert invoke("check", path, "--candidate", policy, "--policy", limits).exit_code == code
    rows = json.loads(invoke("compare", path, "--policy", limits, "--json").stdout)["rows"]
    found = next(row for row in rows if row["name"] == policy)
    assert (found["role"], found["decision"]) == ("online", f"{decision} policy")
    assert "per token and head" in found["setup"]
    assert {one["num_heads_quantized"] for one in found["evidence"]} == {2}


def test_a_rounding_floor_is_told_of_fp8_and_not_of_int8(run: tuple[Path, dict[str, float]]) -> None:
    text = " ".join(kvtrace("report", str(run[0])).stdout.split())
    assert "in fp8_per_token_head as vllm writes it" in text
    assert "dB in int8_per_token_head" not in text
    asked = ["query", str(run[0]), "clip_flush_floor", "--param", f"candidate={INT8}", "--format", "json"]
    rows = json.loads(kvtrace(*asked).stdout)
    assert {(row["floor_db"], row["underflow_loss_db"], row["limited_by"]) for row in rows} == {
        (None, None, None)
    }
    assert all(row["sqnr_db"] > 0 for row in rows)


def test_the_json_report_of_an_online_policy_keeps_to_its_schema(run: tuple[Path, dict[str, float]]) -> None:
    printed = kvtrace("report", str(run[0]), "--format", "json").stdout
    kinds = {found["candidate"]: found["kind"] for found in json.loads(printed)["candidates"]}
    assert kinds == {"bf16": "bf16", INT8: "online", FP8: "online"}
    allowed = json.loads((DOCS / "report.schema.json").read_text())["$defs"]["CandidateSummary"]["properties"]
    assert set(kinds.values()) <= set(allowed["kind"]["enum"])
    assert report_json(TypeAdapter(Report).validate_json(printed)) == printed
