"""To add an engine: its file, its line in the list of engines, its test. Nothing else names engines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from support.checkpoints import compressed
from support.fabricate import fabricate_trace, request
from support.recipe import TreeCopy

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = "kvtrace/numerics/engines/__init__.py"
# The reciprocal as on a CPU, rounded as on a GPU: no compiled kernel does that.
ENGINE = '''"""A made-up device: multiplies by the reciprocal, then rounds half to even."""

from __future__ import annotations

from typing import Final

from kvtrace.numerics.engines.engine import Engine

ENGINE: Final = Engine(
    name="vllm-toy",
    product="vllm",
    formats=("e4m3fn",),
    rounding="nearest",
    multiplies=True,
)
'''
TEST = '''"""The made-up device's cache write, by hand."""

import torch

from kvtrace.numerics import dequantize, quantize


def test_it_multiplies_where_others_divide() -> None:
    # 1071 / 1008 = 1.0625 is the tie of 1.0 and 1.125; in float32, 1071 · (1 / 1008) lies 2^-23 above it.
    x = torch.tensor([1071.0], dtype=torch.float16)
    assert dequantize(quantize(x, 1008.0, engine="vllm-toy"), 1.0).item() == 1.125
    assert dequantize(quantize(x, 1008.0, engine="vllm-cuda"), 1.0).item() == 1.0
'''


def test_an_engine_takes_three_files_and_runs_without_a_compiled_kernel(tmp_path: Path) -> None:
    tree = TreeCopy(tmp_path / "tree")
    tree.add("kvtrace/numerics/engines/vllm_toy.py", ENGINE)
    tree.edit(ENGINES, "vllm_rocm, vllm_triton\n", "vllm_rocm, vllm_toy, vllm_triton\n")
    tree.edit(ENGINES, "vllm_rocm, sglang)", "vllm_rocm, sglang, vllm_toy)")
    tree.add("tests/numerics/test_vllm_toy.py", TEST)
    assert len(tree.touched()) <= 3
    tree.test("tests/numerics/test_vllm_toy.py")

    random = np.random.default_rng(2)
    trace = fabricate_trace(
        tmp_path / "day.kvtrace",
        {(layer, t): random.normal(0, 3, (40, 2, 8)).astype(np.float32) for layer in range(2) for t in "kv"},
        requests=[request(0, prompt_tokens=30, output_tokens=10)],
        request_of_row=[0] * 40,
        position_of_row=[*range(40)],
    )
    scales = compressed(tmp_path / "new", {f"{layer}.{t}": [0.013] for layer in range(2) for t in "kv"})
    engine = ("--engine", "vllm-toy")
    # By the counts and element by element: --verify compares both.
    replayed = tree.run(
        "-m", "kvtrace", "replay", trace, "--scales", scales, *engine, "--verify", "-o", tmp_path / "run"
    )
    assert replayed.returncode == 0, replayed.stderr
    audited = tree.run("-m", "kvtrace", "scales", scales, "--trace", trace, *engine, "--json")
    assert audited.returncode == 0, audited.stderr
    report = json.loads(audited.stdout)
    assert report["engine"]["engine"] == "vllm"
    assert report["trace"]["engine"] == "vllm-toy"
    assert all(row["optimal_scale"] > 0 for row in report["scales"])
    assert "vllm-toy" in tree.run("-m", "kvtrace", "replay", "--help").stdout
