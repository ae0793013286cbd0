"""Pipes, folders, loops and devices in the place of every file that a command line or a checkpoint names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.capture.prompts import read_prompts
from kvtrace.errors import InputError
from kvtrace.trace.fingerprint import fingerprint_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

SCALES = Path(__file__).parents[2] / "samples/scales/chat-per-head"
PLANTS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a loop": lambda path: path.symlink_to(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fabricate_trace(
        tmp_path_factory.mktemp("special") / "t.kvtrace",
        {(0, t): np.ones((4, 1, 8)) for t in "kv"},
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
    )


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("option", ["--policy", "--manifest", "--scales"])
def test_a_file_of_the_command_line_that_is_none_is_one_line(
    trace: Path, tmp_path: Path, option: str, kind: str
) -> None:
    file = tmp_path / "given.json"
    PLANTS[kind](file)
    refused = kvtrace("replay", trace, "-o", tmp_path / "run", option, file)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert str(file) in refused.stderr


@pytest.mark.parametrize("kind", PLANTS)
def test_a_prompt_file_that_is_none_is_one_line(tmp_path: Path, kind: str) -> None:
    PLANTS[kind](tmp_path / "prompts.jsonl")
    with pytest.raises(InputError, match=r"prompts\.jsonl: cannot be read: "):
        read_prompts(tmp_path / "prompts.jsonl")


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("name", ["config.json", "kvtrace.json", "model-kv-scales.safetensors"])
def test_a_file_of_a_checkpoint_that_is_none_is_one_line(tmp_path: Path, name: str, kind: str) -> None:
    artifact = Path(shutil.copytree(SCALES, tmp_path / "artifact"))
    (artifact / name).unlink(missing_ok=True)
    PLANTS[kind](artifact / name)
    refused = kvtrace("scales", artifact)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert name in refused.stderr


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "chat_template.jinja", "tokenizer_config.json"]
)
def test_a_fingerprint_passes_over_what_is_no_file(tmp_path: Path, name: str, kind: str) -> None:
    PLANTS[kind](tmp_path / name)
    found = fingerprint_checkpoint(tmp_path)
    assert (found.weights, found.tokenizer, found.chat_template) == (None, None, None)
