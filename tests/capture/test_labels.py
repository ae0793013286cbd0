"""What clients say of themselves: values in `requests.jsonl`, and nothing else anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from kvtrace_capture.journal import Journal
from kvtrace_capture.privacy import hash_client_id
from kvtrace_capture.request_log import RequestLog
from kvtrace_capture.sampler import Sampler
from kvtrace_capture.settings import CaptureSettings

KEY = b"k" * 32
HOSTILE = [
    "../../../../tmp/owned",
    "/etc/passwd",
    'x"}\n{"request": 0, "workload": "forged"}',
    "'; DROP TABLE rows; --",
    "<script>alert(1)</script>\u202e\x1b[2J",
    "%s%s%n{0}{request}",
    "9" * 100_000,
    "x" * 1_000_000,
]


def arrival(name: str, workload: Any, client_id: Any) -> Any:
    return SimpleNamespace(
        request_id=name,
        sampling_params=SimpleNamespace(
            extra_args={"kvtrace_workload": workload, "kvtrace_id": client_id, "position_stride": 1}
        ),
        prompt_token_ids=[1, 2],
        num_prompt_tokens=2,
        resumable=False,
    )


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    """Return the lines that requests with hostile labels and ids left."""
    settings = CaptureSettings(directory=tmp_path, seed=0)
    log = RequestLog(Journal(tmp_path / "requests.jsonl"), Sampler(settings), KEY, [16])
    for number, label in enumerate(HOSTILE):
        log.arrive(arrival(f"r{number}", label, label))
    log.close()
    assert {path.name for path in tmp_path.iterdir()} <= {"requests.jsonl", "requests.commit.json"}
    return (tmp_path / "requests.jsonl").read_text().splitlines()


def test_a_label_makes_no_file_no_line_and_no_field(lines: list[str]) -> None:
    records = [json.loads(line) for line in lines]
    assert [record["request"] for record in records] == list(range(len(HOSTILE)))
    assert len({frozenset(record) for record in records}) == 1
    assert "forged" not in [record["workload"] for record in records]


def test_labels_are_short_and_printable_and_ids_are_hashes(lines: list[str]) -> None:
    for record in map(json.loads, lines):
        assert record["workload"].isprintable()
        assert len(record["workload"]) <= 64
        assert re.fullmatch(r"[0-9a-f]{64}", record["client_id"])
        assert re.fullmatch(r"[0-9a-f]{64}", record["prompt_hash"])


def test_a_number_of_endless_digits_is_no_label_and_its_request_is_followed(tmp_path: Path) -> None:
    log = RequestLog(Journal(tmp_path / "r.jsonl"), Sampler(CaptureSettings(tmp_path)), KEY, [16])
    log.arrive(arrival("a", 10**100_000, -(10**100_000)))
    log.close()
    (record,) = map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())
    assert (record["workload"], record["client_id"], record["request"]) == ("unlabelled", None, 0)


def test_outcomes_join_by_the_hash_of_their_id_as_the_readme_shows(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "capture" / "README.md").read_text()
    (example,) = re.findall(r"  ```python\n(  from pathlib import Path\n.*?)```", readme, re.DOTALL)
    trace = tmp_path / "a.kvtrace"
    trace.mkdir()
    (tmp_path / "kvtrace.key").write_bytes(KEY)
    settings = CaptureSettings(directory=tmp_path, seed=0)
    log = RequestLog(Journal(trace / "requests.jsonl"), Sampler(settings), KEY, [16])
    log.arrive(arrival("a", "chat", "ticket-17"))
    log.arrive(arrival("b", "chat", "ticket-18"))
    log.close()
    names: dict[str, Any] = {"outcomes": {"ticket-17": "bad answer", "ticket-99": "good"}}
    exec(
        dedent(example).replace("/data/traces", str(tmp_path)).replace("20261129T154200Z-0123456789ab", "a"),
        names,
    )
    assert names["outcome_of_request"] == {0: "bad answer"}


def test_an_id_is_hashed_as_it_is_recorded(lines: list[str]) -> None:
    assert json.loads(lines[1])["client_id"] == hash_client_id(KEY, "/etc/passwd")
    assert json.loads(lines[-1])["client_id"] == hash_client_id(KEY, "x" * 256)
