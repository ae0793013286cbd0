"""Answers find their requests in a trace by id, else by prompt, and are told when they do not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from kvtrace_capture.privacy import hash_client_id, hash_external_id, hash_prompt, key_id
from support.fabricate import fabricate_trace, request
from support.outcome_files import own_line, write_lines
from support.run_cli import Result, kvtrace

from kvtrace.trace.format import TraceRecord, seal, unseal

if TYPE_CHECKING:
    from pathlib import Path

KEY = bytes(range(32))


def traced(folder: Path, requests: list[dict[str, Any]], key: bytes = KEY) -> Path:
    trace = fabricate_trace(
        folder / "t.kvtrace",
        {(0, t): np.ones((2, 1, 4)) for t in "kv"},
        request_of_row=[0, 0],
        position_of_row=[0, 1],
        requests=[request(n, prompt_tokens=2, **fields) for n, fields in enumerate(requests)],
    )
    file = trace / "trace.json"
    record = unseal(file.read_text(), TraceRecord)
    privacy = record.privacy.model_copy(update={"key_id": key_id(key)})
    file.write_text(seal(record.model_copy(update={"privacy": privacy})))
    return trace


def compared(folder: Path, lines: list[dict[str, Any]], trace: Path, *options: object) -> Result:
    (folder / "kvtrace.key").write_bytes(KEY)
    (folder / "kvtrace.key").chmod(0o600)
    both = [line | {"variant": name} for line in lines for name in ("bf16-a", "bf16-b", "fp8")]
    path = write_lines(folder / "o.jsonl", both)
    made = kvtrace("outcomes", path, "--key", folder / "kvtrace.key", "-o", folder / "t", "--force")
    assert made.returncode == 0, made.stderr
    return kvtrace(
        "quality", "compare", folder / "t", "--margin", 0.1, "--floor", 0.5, "--trace", trace, *options
    )


def test_ids_join_first_then_prompts_and_the_rate_is_said(tmp_path: Path) -> None:
    requests: list[dict[str, Any]] = [{"client_id": hash_client_id(KEY, f"q{n}")} for n in range(6)]
    requests[5]["sampled"] = False
    requests += [{"prompt_hash": hash_prompt(KEY, [1, n])} for n in range(4)]
    requests += [{"prompt_hash": hash_prompt(KEY, [1, 3])}, {"client_id": hash_client_id(KEY, "elsewhere")}]
    lines = [own_line(f"q{n}") for n in range(6)]
    lines += [own_line(f"p{n}", prompt_token_ids=[1, n]) for n in range(4)]
    trace = traced(tmp_path, requests)
    found = json.loads(compared(tmp_path, lines, trace, "--json").stdout)["joined"]
    assert found == {
        "trace": str(trace), "num_answers": 10, "num_by_client_id": 6, "num_by_external_id": 0,
        "num_by_prompt": 4, "num_ambiguous": 0, "num_sampled": 9,
    }  # fmt: skip
    shown = " ".join(compared(tmp_path, lines, trace).stdout.split())
    assert "10 of 10 answers (100 %), 6 by id, 0 by the server's request id, 4 by prompt; 9 were" in shown


def test_an_id_that_two_requests_have_joins_nothing_and_under_90_percent_is_an_error(tmp_path: Path) -> None:
    requests = [{"client_id": hash_client_id(KEY, f"q{n}")} for n in range(10)]
    twice = [{"client_id": hash_client_id(KEY, "q0")}]
    lines = [own_line(f"q{n}") for n in range(10)]
    trace = traced(tmp_path, requests + twice)
    found = json.loads(compared(tmp_path, lines, trace, "--json").stdout)["joined"]
    assert (found["num_by_client_id"], found["num_ambiguous"]) == (9, 1)
    result = compared(tmp_path, [*lines, own_line("unknown")], trace)
    assert result.returncode == 2
    assert "9 of 11 answers (82 %) are found in" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_trace_under_another_key_is_refused(tmp_path: Path) -> None:
    trace = traced(tmp_path, [{"client_id": hash_client_id(KEY, "q0")}], key=bytes(32))
    result = compared(tmp_path, [own_line("q0")], trace)
    assert result.returncode == 2
    assert "was not made with the key of" in result.stderr


def test_the_front_ends_request_id_joins_where_the_client_gave_none(tmp_path: Path) -> None:
    requests: list[dict[str, Any]] = [{"external_id": hash_external_id(KEY, f"run-{n}")} for n in range(18)]
    twice = [{"external_id": hash_external_id(KEY, "run-17")}]
    lines = [own_line(f"a{n}", request_id=f"run-{n}") for n in range(9)]
    lines += [own_line(f"a{n}", response_id=f"chatcmpl-run-{n}") for n in range(9, 17)]
    # Two requests have this one's id: not even its prompt joins it.
    lines += [own_line("a17", request_id="run-17", prompt_token_ids=[1, 2])]
    prompts = [{"prompt_hash": hash_prompt(KEY, [1, 2])}]
    trace = traced(tmp_path, requests + twice + prompts)
    found = json.loads(compared(tmp_path, lines, trace, "--json").stdout)["joined"]
    assert (found["num_by_external_id"], found["num_by_prompt"], found["num_ambiguous"]) == (17, 0, 1)


def test_a_clients_id_is_never_taken_for_a_front_ends(tmp_path: Path) -> None:
    trace = traced(tmp_path, [{"client_id": hash_client_id(KEY, "q0")}])
    result = compared(tmp_path, [own_line("elsewhere", request_id="q0")], trace)
    assert result.returncode == 2
    assert "0 of 1 answers" in result.stderr
