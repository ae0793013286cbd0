"""A real OpenAI-compatible server: labels over HTTP, concurrent clients, a workload filter, a stride."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace_capture.privacy import hash_client_id
from support.vllm_engines import ENVIRONMENT, StoredTrace, connector, only_trace
from support.vllm_prompts import CODE
from support.vllm_server import free_port, wait_until_healthy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm

STRIDE = 4
LAYERS = [0, 7, 29]
CALLS = [
    *((f"chat-{n}", "chat", f"Describe number {n}.", 8 + n) for n in range(6)),
    *((f"code-{n}", "code", CODE[n * 700 : n * 700 + 600], 10) for n in range(4)),
    *((f"other-{n}", "other", "A workload nobody asked for.", 5) for n in range(2)),
    (None, None, "A client that does not label.", 5),
]


def post(port: int, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.loads(response.read())


def call(
    port: int, client_id: str | None, workload: str | None, text: str, max_tokens: int
) -> dict[str, Any]:
    labels = {"kvtrace_workload": workload, "kvtrace_id": client_id} if client_id else {}
    common = {
        "model": "m",
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "vllm_xargs": {**labels, "position_stride": 1, "byte_budget": 1},  # a client can't turn these
    }
    if workload == "chat":
        body = {**common, "messages": [{"role": "user", "content": text}]}
        usage: dict[str, Any] = post(port, "/v1/chat/completions", body)["usage"]
    else:
        usage = post(port, "/v1/completions", {**common, "prompt": text})["usage"]
    return usage


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredTrace, list[dict[str, Any]]]:
    """Return a server's trace after its orderly end, and the usage that each of CALLS was told."""
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    capture = connector(
        folder / "traces",
        by_module=False,  # the name alone is enough when the plug-in is switched on
        position_stride=STRIDE,
        layers=LAYERS,
        workloads=["chat", "code"],
        seed=3,
    )
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
                *("--served-model-name", "m", "--port", str(port), "--host", "127.0.0.1"),
                *("--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"),
                *("--gpu-memory-utilization", "0.4"),  # the share of RAM that must be free
                *("--shutdown-timeout", "30"),  # without it vLLM kills its workers at once
                *("--kv-transfer-config", json.dumps(capture)),
            ],
            env={**os.environ, **ENVIRONMENT, "KVTRACE_CAPTURE": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_healthy(process, port)
            with ThreadPoolExecutor(4) as clients:
                usages = list(clients.map(lambda arguments: call(port, *arguments), CALLS))
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            if process.poll() is None:
                process.kill()
    return only_trace(folder / "traces"), usages


def test_every_sampled_position_of_every_request_is_stored_exactly_once(
    served: tuple[StoredTrace, list[dict[str, Any]]],
) -> None:
    trace, _ = served
    expected = {(r, p) for r in trace.requests for p in trace.expected(r)}
    assert len(expected) > 100
    assert len(trace.tokens) == len(set(trace.tokens))
    assert set(trace.tokens) == expected
    assert trace.dropped == []


def test_each_request_has_the_labels_and_lengths_of_its_http_call(
    served: tuple[StoredTrace, list[dict[str, Any]]],
) -> None:
    trace, usages = served
    key = (trace.path.parent / "kvtrace.key").read_bytes()
    of_client = {record["client_id"]: record for record in trace.requests.values()}
    assert len(trace.requests) == len(CALLS)
    for (client_id, workload, _, _), usage in zip(CALLS, usages, strict=True):
        record = of_client[hash_client_id(key, client_id) if client_id else None]
        assert record["workload"] == (workload or "unlabelled")
        assert record["prompt_tokens"] == usage["prompt_tokens"]
        assert record["output_tokens"] == usage["completion_tokens"]
        assert record["status"] == "length"


def test_only_the_workloads_asked_for_are_sampled(
    served: tuple[StoredTrace, list[dict[str, Any]]],
) -> None:
    trace, _ = served
    sampled = Counter((record["workload"], record["sampled"]) for record in trace.requests.values())
    assert sampled == {("chat", True): 6, ("code", True): 4, ("other", False): 2, ("unlabelled", False): 1}


def test_the_stride_holds_and_offsets_differ_between_requests(
    served: tuple[StoredTrace, list[dict[str, Any]]],
) -> None:
    trace, _ = served
    sampled = [record for record in trace.requests.values() if record["sampled"]]
    assert len({record["offset"] for record in sampled}) >= 3
    for request, position in trace.tokens:
        assert position % STRIDE == trace.requests[request]["offset"]


def test_only_the_layers_asked_for_have_arrays_and_all_are_described(
    served: tuple[StoredTrace, list[dict[str, Any]]],
) -> None:
    trace, _ = served
    assert [layer["index"] for layer in trace.layers] == list(range(30))
    assert [layer["index"] for layer in trace.layers if layer["captured"]] == LAYERS
    assert sorted(p.name for p in (trace.store / "layers").iterdir() if p.is_dir()) == ["00", "07", "29"]


def test_the_store_is_closed_after_the_servers_orderly_end(
    served: tuple[StoredTrace, list[dict[str, Any]]],
) -> None:
    trace, _ = served
    assert trace.commit["closed"]
