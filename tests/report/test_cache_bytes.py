"""Every candidate has the bytes of a token beside its error, in JSON, text, Markdown and page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.run_cli import kvtrace

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "smollm2-135m.kvtrace"

# 30 layers × 3 KV heads: 2 × 64 values of 2 bytes, of 1 byte, and 64 + 8 bytes; K of 2 bytes beside V of 1;
# 26 layers packed in 70 bytes a head, 4 in 256
BYTES = {
    "bf16": 30 * 3 * 256,
    "chat-per-head": 30 * 3 * 128,
    "int4_per_token_head": 30 * 3 * 72,
    "k=bf16,v=fp8": 30 * 3 * 192,
    "turboquant_4bit_nc": 3 * (26 * 70 + 4 * 256),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bytes") / "sample.run"
    result = kvtrace(
        "replay", SAMPLE, "--scales", ROOT / "samples" / "scales" / "chat-per-head",
        "--cache-dtype", "int4_per_token_head", "--cache-dtype", "k=bf16,v=fp8",
        "--cache-dtype", "turboquant_4bit_nc", "-o", out,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return out


def test_the_json_has_bytes_and_the_tokens_in_a_budget(run: Path) -> None:
    report = json.loads(kvtrace("report", run, "--json", "--budget", "1GiB").stdout)
    found = {one["candidate"]: one for one in report["candidates"]}
    assert {name: found[name]["bytes_per_token"] for name in BYTES} == BYTES
    assert {name: found[name]["tokens_in_budget"] for name in BYTES} == {
        name: (1 << 30) // size for name, size in BYTES.items()
    }
    assert report["budget_bytes"] == 1 << 30


def test_without_a_budget_there_are_bytes_alone(run: Path) -> None:
    report = json.loads(kvtrace("report", run, "--json").stdout)
    assert report["budget_bytes"] is None
    assert {one["tokens_in_budget"] for one in report["candidates"]} == {None}


def test_text_markdown_and_page_say_the_bytes(run: Path) -> None:
    text = kvtrace("report", run, "--section", "formats", "--budget", "1GiB").stdout
    assert "turboquant_4bit_nc 8,532 (125,848 tokens)" in " ".join(text.split())
    markdown = kvtrace("report", run, "--format", "md").stdout
    (row,) = [line for line in markdown.splitlines() if "turboquant\\_4bit\\_nc" in line]
    assert row.endswith("| 8,532 |")
    page = kvtrace("report", run, "--format", "html").stdout
    assert '<td class="wide">8,532</td>' in page
    assert '<td class="wide">23,040</td>' in page
