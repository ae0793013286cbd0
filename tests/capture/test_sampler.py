from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtrace_capture.labels import clean_label
from kvtrace_capture.sampler import (
    MAX_PROBED_WORKLOADS,
    MAX_WORKLOADS,
    TOO_MANY_WORKLOADS,
    Labels,
    Sampler,
)
from kvtrace_capture.settings import CaptureSettings


def sampler(**settings: Any) -> Sampler:
    return Sampler(CaptureSettings(directory=Path("unused"), seed=0, **settings))


def test_a_request_without_labels_is_unlabelled() -> None:
    assert sampler().read_labels(None) == Labels("unlabelled", None)
    assert sampler().read_labels({"top_k": 3}) == Labels("unlabelled", None)


def test_labels_come_from_the_requests_extra_arguments() -> None:
    labels = sampler().read_labels({"kvtrace_workload": "chat", "kvtrace_id": 17})
    assert labels == Labels("chat", "17")


def test_labels_lose_what_could_steer_a_terminal_and_are_cut() -> None:
    assert clean_label("a\x1b[2Jb\r\nc\u202ed\u2066e\x00", 64) == "a[2Jbcde"
    assert clean_label("x" * 10_000, 64) == "x" * 64
    assert clean_label("   ", 64) is None
    assert clean_label({"a": 1}, 64) is None
    assert clean_label(True, 64) is None


def test_the_number_of_workloads_is_limited() -> None:
    labels = sampler()
    for number in range(MAX_WORKLOADS):
        assert labels.read_labels({"kvtrace_workload": f"w{number}"}).workload == f"w{number}"
    assert labels.read_labels({"kvtrace_workload": "one more"}).workload == TOO_MANY_WORKLOADS
    assert labels.read_labels({"kvtrace_workload": "w3"}).workload == "w3"
    assert labels.read_labels(None).workload == "unlabelled"


def test_clients_cannot_crowd_out_a_workload_that_the_operator_asked_for() -> None:
    rules = sampler(workloads=("code",))
    for number in range(MAX_WORKLOADS + 1):
        rules.read_labels({"kvtrace_workload": f"w{number}"})
    assert rules.choose(rules.read_labels({"kvtrace_workload": "code"})).sampled


def test_only_wanted_workloads_are_sampled() -> None:
    rules = sampler(workloads=("chat",))
    assert rules.choose(Labels("chat")).sampled
    assert not rules.choose(Labels("code")).sampled
    assert not rules.choose(Labels()).sampled


def test_the_request_fraction_is_kept_on_average_and_offsets_cover_the_stride() -> None:
    rules = sampler(request_fraction=0.25, position_stride=8)
    choices = [rules.choose(Labels()) for _ in range(4000)]
    share = sum(choice.sampled for choice in choices) / len(choices)
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / 4000) ** 0.5
    assert {choice.offset for choice in choices} == set(range(8))
    assert {choice.stride for choice in choices} == {8}


def test_so_many_requests_of_each_workload_are_probes() -> None:
    rules = sampler(queries="probe", probe_requests=2)
    drawn = [rules.choose(Labels(workload)).is_probe for workload in ("a", "a", "a", "b", "b", "b")]
    assert drawn == [True, True, False, True, True, False]
    assert not sampler(queries="stored").choose(Labels()).is_probe


def test_a_request_that_is_not_sampled_is_no_probe_and_takes_no_place_of_one() -> None:
    rules = sampler(queries="probe", probe_requests=1, request_fraction=0.5)
    choices = [rules.choose(Labels()) for _ in range(64)]
    assert sum(choice.is_probe for choice in choices) == 1
    assert all(choice.sampled for choice in choices if choice.is_probe)


def test_clients_with_ever_new_labels_get_no_more_probes() -> None:
    rules = sampler(queries="probe", probe_requests=1)
    drawn = [rules.choose(Labels(f"w{number}")).is_probe for number in range(100)]
    assert sum(drawn) == MAX_PROBED_WORKLOADS
    asked_for = sampler(queries="probe", probe_requests=1, workloads=[f"w{n}" for n in range(100)])
    assert all(asked_for.choose(Labels(f"w{number}")).is_probe for number in range(100))


def test_half_of_a_probes_positions_lie_in_equal_parts_of_the_prompt_the_others_in_what_follows() -> None:
    rules = sampler(queries="probe", probe_positions=8)
    for _ in range(50):
        drawn = rules.draw_probe_positions(100)
        assert [position // 25 for position in drawn[:4]] == [0, 1, 2, 3]
        steps = [position - 100 for position in drawn[4:]]
        assert steps[0] == 0
        assert all(4**n <= step < 4 ** (n + 1) for n, step in enumerate(steps[1:]))
        assert len(drawn) == 8


def test_a_prompt_shorter_than_its_share_of_positions_is_probed_whole() -> None:
    rules = sampler(queries="probe", probe_positions=9)
    assert rules.draw_probe_positions(3)[:4] == (0, 1, 2, 3)
    assert rules.draw_probe_positions(0)[0] == 0
    assert sampler(queries="probe", probe_positions=1).draw_probe_positions(1) == (0,)
