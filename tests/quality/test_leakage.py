"""Prompts that scales were calibrated on are not evaluated unseen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kvtrace_capture.privacy import hash_prompt, key_id
from support.fabricate import fabricate_trace, request
from support.outcome_files import own_line, write_lines
from support.run_cli import Result, kvtrace

from kvtrace.trace.format import TraceRecord, seal, unseal

if TYPE_CHECKING:
    from pathlib import Path

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return scales calibrated on the prompts [1, 0], [1, 1] and [1, 2], under KEY."""
    folder = tmp_path_factory.mktemp("calibrated")
    trace = fabricate_trace(
        folder / "t.kvtrace",
        {(0, t): np.ones((3, 1, 4)) for t in "kv"},
        request_of_row=[0, 1, 2],
        position_of_row=[0, 0, 0],
        requests=[request(n, prompt_tokens=2, prompt_hash=hash_prompt(KEY, [1, n])) for n in range(3)],
    )
    file = trace / "trace.json"
    record = unseal(file.read_text(), TraceRecord)
    privacy = record.privacy.model_copy(update={"key_id": key_id(KEY)})
    file.write_text(seal(record.model_copy(update={"privacy": privacy})))
    made = kvtrace("calibrate", trace, "-o", folder / "scales")
    assert made.returncode == 0, made.stderr
    return folder / "scales"


def compared(folder: Path, prompts: list[list[int]] | None, scales: Path, key: bytes = KEY) -> Result:
    (folder / "kvtrace.key").write_bytes(key)
    (folder / "kvtrace.key").chmod(0o600)
    fields: list[dict[str, Any]] = [{}] * 4 if prompts is None else [{"prompt_token_ids": p} for p in prompts]
    lines = [
        own_line(f"q{n}", **one) | {"variant": name}
        for n, one in enumerate(fields)
        for name in ("bf16-a", "bf16-b", "fp8")
    ]
    path = write_lines(folder / "o.jsonl", lines)
    made = kvtrace("outcomes", path, "--key", folder / "kvtrace.key", "-o", folder / "t")
    assert made.returncode == 0, made.stderr
    return kvtrace(
        *("quality", "compare", folder / "t", "--margin", 0.1, "--floor", 0.5, "--json"),
        *("--calibration", scales),
    )


def test_a_manifest_names_its_prompts_by_keyed_hash(calibrated: Path) -> None:
    prompts = json.loads((calibrated / "kvtrace.json").read_text())["dataset"]["prompts"]
    expected = sorted(hash_prompt(KEY, [1, n])[:32] for n in range(3))
    assert prompts == {"key_id": key_id(KEY), "hashes": expected, "num_without_hash": 0}


def test_a_shared_prompt_is_an_error_with_the_number(tmp_path: Path, calibrated: Path) -> None:
    found = compared(tmp_path, [[1, 2], [5, 6], [1, 0], [7]], calibrated)
    assert found.returncode == 2
    assert "2 of 4 answers are to prompts that it was calibrated on" in found.stderr
    assert found.stderr.count("\n") == 1


def test_other_prompts_are_said_to_be_others(tmp_path: Path, calibrated: Path) -> None:
    (found,) = json.loads(compared(tmp_path, [[3], [5, 6], [4], [7]], calibrated).stdout)["leakage"]
    assert (found["state"], found["reason_id"]) == ("no shared prompt", "compared")


@pytest.mark.parametrize(
    ("prompts", "key", "reason"),
    [(None, KEY, "some-without-hash"), ([[1, 2], [3], [4], [5]], bytes(32), "other-key")],
)
def test_what_cannot_be_compared_is_unknown(
    tmp_path: Path, calibrated: Path, prompts: list[list[int]] | None, key: bytes, reason: str
) -> None:
    (found,) = json.loads(compared(tmp_path, prompts, calibrated, key).stdout)["leakage"]
    assert (found["state"], found["reason_id"]) == ("unknown", reason)


def test_a_manifest_without_hashes_is_unknown(tmp_path: Path, calibrated: Path) -> None:
    content = json.loads((calibrated / "kvtrace.json").read_text())
    del content["dataset"]["prompts"]
    (tmp_path / "kvtrace.json").write_text(json.dumps(content))
    result = compared(tmp_path, [[1, 2], [3], [4], [5]], tmp_path / "kvtrace.json")
    (found,) = json.loads(result.stdout)["leakage"]
    assert (found["state"], found["reason_id"]) == ("unknown", "no-hashes")
