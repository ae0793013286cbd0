from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kvtrace_capture.settings import SettingsError, change_sampling, parse_settings


def test_the_defaults_are_one_position_in_sixteen_of_every_request_in_all_layers() -> None:
    settings = parse_settings({"directory": "/traces"})
    assert settings.directory == Path("/traces")
    assert (settings.position_stride, settings.request_fraction) == (16, 1.0)
    assert (settings.layers, settings.workloads, settings.byte_budget) == (None, None, None)


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"directory": "/t", "positon_stride": 4}, "'positon_stride'"),
        ({}, "directory"),
        ({"directory": "/t", "position_stride": 0}, "position_stride is 0"),
        ({"directory": "/t", "position_stride": "4"}, "position_stride is '4'"),
        ({"directory": "/t", "request_fraction": 0}, "request_fraction is 0"),
        ({"directory": "/t", "request_fraction": 1.5}, "request_fraction is 1.5"),
        ({"directory": "/t", "byte_budget": True}, "byte_budget is True"),
        ({"directory": "/t", "flush_seconds": 0}, "flush_seconds is 0"),
        ({"directory": "/t", "flush_seconds": float("inf")}, "flush_seconds is inf"),
        ({"directory": "/t", "request_fraction": float("nan")}, "request_fraction is nan"),
        ({"directory": "/t", "request_fraction": 10**400}, "request_fraction is 1000"),
        ({"directory": "/t", "position_stride": 2**31}, "position_stride is 2147483648"),
        ({"directory": "/t", "layers": []}, "layers is []"),
        ({"directory": "/t", "layers": ["0"]}, "layers is ['0']"),
        ({"directory": "/t", "workloads": "chat"}, "workloads is 'chat'"),
        ({"directory": "/t", "workloads": ["chat "]}, "'chat ' is never the label of a request"),
        ({"directory": "/t", "workloads": ["cafe\u0301"]}, "recorded as 'café'"),
        ({"directory": "/t", "workloads": ["x" * 65]}, "is never the label of a request"),
        ({"directory": "/t", "hash_key_file": 3}, "hash_key_file is 3"),
        ({"directory": "/t", "enabled": 1}, "enabled is 1"),
        ({"directory": "/t", "external_ids": 0}, "external_ids is 0, expected true or false"),
        ({"directory": "/t", "queries": "all"}, "queries is 'all', expected one of none, stored, probe"),
        ({"directory": "/t", "queries": ["probe"]}, "queries is ['probe']"),
        ({"directory": "/t", "probe_requests": 0}, "probe_requests is 0"),
        ({"directory": "/t", "probe_positions": 1025}, "probe_positions is 1025"),
    ],
)
def test_a_wrong_setting_is_refused_and_named(extra: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings(extra)
    assert text in str(refused.value)


def test_lists_become_distinct_and_keep_their_order() -> None:
    settings = parse_settings({"directory": "/t", "layers": [3, 1, 3], "workloads": ["b", "a"]})
    assert settings.layers == (3, 1)
    assert settings.workloads == ("b", "a")


def test_a_running_engine_changes_what_it_is_told_and_keeps_the_rest() -> None:
    started = parse_settings({"directory": "/t", "workloads": ["chat"], "byte_budget": 10, "seed": 3})
    changed = change_sampling(started, {"position_stride": 4, "byte_budget": None})
    assert (changed.position_stride, changed.byte_budget) == (4, None)
    assert (changed.workloads, changed.seed, changed.enabled) == (("chat",), 3, True)
    assert change_sampling(started, {}) == started


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layers": [0]}, "'layers' cannot be changed; what can is enabled, workloads"),
        ({"directory": "/elsewhere"}, "'directory' cannot be changed"),
        ({"queries": "probe"}, "'queries' cannot be changed"),
        ({"enabled": None}, "enabled is null"),
        ({"enabled": "yes"}, "enabled is 'yes', expected true or false"),
        ({"position_stride": 0}, "position_stride is 0"),
    ],
)
def test_a_running_engine_refuses_what_cannot_change(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        change_sampling(parse_settings({"directory": "/t"}), changes)
    assert text in str(refused.value)
