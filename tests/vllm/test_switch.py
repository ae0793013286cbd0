"""A real engine that starts with capture off and is switched through its control file, mid-request too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.vllm_checkpoints import write_tiny_model
from support.vllm_cpu import MAX_DISTANCE_RATIO
from support.vllm_engines import ONE_PROCESS, StoredTrace, connector, only_trace, run_offline
from support.vllm_reference import distances_from_fp32
from support.vllm_tiny import ENGINE

from kvtrace.trace.reader import open_trace
from kvtrace.trace.summary import summarize

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = pytest.mark.vllm

ON: dict[str, Any] = {"enabled": True, "position_stride": 1}
OFF = {"enabled": False}
PROMPT = 150


def request(seed: int, **event: Any) -> dict[str, Any]:
    token_ids = np.random.default_rng(seed).integers(3, 500, PROMPT).tolist()
    return {"token_ids": token_ids, "max_tokens": 12, **event}


EVENTS = [
    request(0),
    {"control": ON},  # sampling 1
    request(1),
    request(2, after=5, control=OFF),  # sampling 2
    request(3),
    {"control": {"enabled": True, "position_stride": 4}},  # sampling 3
    request(4, after=3, control={"enabled": True, "position_stride": 2}),  # sampling 4
    request(5),
]
"""Of the six requests the trace numbers those that arrived while capture was on: 1, 2, 4 and 5."""

Switched = tuple[StoredTrace, list[dict[str, list[int]]], Path]


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Switched:
    folder = tmp_path_factory.mktemp("switched")
    write_tiny_model(folder / "model", "llama")
    engine = {**ENGINE, "kv_transfer_config": connector(folder / "traces", enabled=False)}
    driver = Path(__file__).parent / "run_switched.py"
    finished = run_offline(folder, folder / "model", engine, EVENTS, driver=driver, **ONE_PROCESS)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return only_trace(folder / "traces"), json.loads((folder / "out.json").read_text())["outputs"], folder


def positions(trace: StoredTrace, number: int) -> list[int]:
    return sorted(position for request, position in trace.tokens if request == number)


def test_each_change_has_a_record_and_a_number(switched: Switched) -> None:
    trace, _, _ = switched
    assert [record["sampling_id"] for record in trace.sampling] == [0, 1, 2, 3, 4]
    assert [record["request_fraction"] for record in trace.sampling] == [0, 1, 0, 1, 1]
    assert [record["position_stride"] for record in trace.sampling] == [16, 1, 16, 4, 2]


def test_only_requests_that_arrived_while_capture_was_on_are_recorded(switched: Switched) -> None:
    trace, _, _ = switched
    assert [trace.requests[number]["sampling_id"] for number in sorted(trace.requests)] == [1, 1, 3, 4]
    assert all(record["computed_tokens"] == PROMPT + 11 for record in trace.requests.values())


def test_a_request_that_capture_was_switched_off_under_is_marked_from_that_position_on(
    switched: Switched,
) -> None:
    trace, _, _ = switched
    record = trace.requests[1]
    ((cut, end),) = record["switched_off"]
    assert PROMPT + 4 <= cut <= PROMPT + 7
    assert end == PROMPT + 11
    assert record["missing"] == record["switched_off"]
    assert positions(trace, 1) == list(range(cut))


def test_requests_keep_the_rules_of_their_arrival_and_are_complete(switched: Switched) -> None:
    trace, _, _ = switched
    for number, stride in ((0, 1), (2, 4), (3, 2)):
        record = trace.requests[number]
        assert record["missing"] == record["switched_off"] == []
        assert positions(trace, number) == list(range(record["offset"], PROMPT + 11, stride))
    rows = np.asarray(trace._array("rows/kv/sampling_id"))[trace._used]
    of_request = {number: {trace.requests[number]["sampling_id"]} for number in trace.requests}
    for number, expected in of_request.items():
        assert {int(x) for x, (r, _) in zip(rows, trace.tokens, strict=True) if r == number} == expected


def test_inspect_counts_the_cut_request_as_incomplete(switched: Switched) -> None:
    trace, _, _ = switched
    found = summarize(open_trace(trace.path), verify=True).completeness
    assert found.num_expected == found.num_stored == len(trace.tokens)
    assert found.num_requests_with_missing == 1
    assert found.num_switched_off_positions == found.num_missing_positions > 0


def test_what_was_captured_between_the_switches_is_as_near_to_fp32_as_bf16_is(switched: Switched) -> None:
    trace, outputs, folder = switched
    ratio: NDArray[np.float64] = distances_from_fp32(folder / "model", trace, {0: outputs[1]})
    assert (ratio[..., 0] / ratio[..., 1]).max() <= MAX_DISTANCE_RATIO
