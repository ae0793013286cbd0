"""`kvtrace fixture make` with a model's own tokenizer and chat template, which the engine uses too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.vllm_engines import ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvtrace", "fixture", "make", "--vllm-python", sys.executable,
         "-o", str(folder), *arguments],
        env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_lengths_are_those_of_the_models_own_tokenizer_and_chat_template(tmp_path: Path, model: Path) -> None:
    from transformers import AutoTokenizer

    done = make(tmp_path / "f", "--model", str(model), "--length", "short=600", "--max-model-len", "1500")
    assert done.returncode == 0, done.stderr
    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = [(tmp_path / "f" / name).read_text().splitlines() for name in ("prompts.jsonl", "cases.jsonl")]
    lengths = {"short": 600, "longest": 1500 - 128}
    for prompt, case in zip(*([json.loads(line) for line in file] for file in lines), strict=True):
        text = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, tokenize=False)
        token_ids = tokenizer.apply_chat_template(
            prompt["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert text.startswith("<|im_start|>system")
        assert case["prompt_tokens"] == len(token_ids)
        wanted = lengths[case["length_class"]]
        assert 0 <= wanted - len(token_ids) <= max(8, wanted // 100)
        if case["expected"]:
            shown = tokenizer.decode(token_ids[case["evidence_token"] :][:20])
            assert case["expected"]["asset"] in shown


def test_a_model_without_a_tokenizer_or_a_chat_template_is_one_line(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = make(tmp_path / "f", "--model", str(tmp_path / "empty"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "its tokenizer or chat template cannot be used" in done.stderr
    base = tmp_path / "base"
    base.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (base / name).symlink_to(model / name)
    done = make(tmp_path / "f", "--model", str(base))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert not (tmp_path / "f").exists()
    done = make(tmp_path / "f", "--model", str(base), "--as", "prompt", "--length", "short=700")
    assert done.returncode == 0, done.stderr
