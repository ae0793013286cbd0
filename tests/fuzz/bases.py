"""Sound files, of which every case changes a copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from support.fabricate import fabricate_trace, request
from support.fabricate_queries import add_queries
from support.run_cli import kvtrace

from kvtrace.profile.ready import ready_profile
from kvtrace.trace.cells import find_cells, find_group_cells
from kvtrace.trace.profile_format import GROUPS_DIRECTORY, PROFILE_DIRECTORY
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Draw = Callable[["Bases", random.Random, Path], tuple[object, ...]]
    """(the bases, a source of chance, a new folder) → a command on a changed copy in that folder"""

_TESTS: Final = Path(__file__).parents[1]
POLICY: Final = """
schema_version = "1.0"
name = "service"
date = 2026-01-01
[limits]
vectors_clipped_frac = 0.01
sqnr_db = 25.0
[coverage]
requests = 1
tokens = 10
[[segments]]
name = "all"
"""
FORMAT: Final = "int4_per_token_head"
MANIFEST: Final = {
    "baseline_id": "service-2026-01",
    "image_digest": "sha256:" + "0" * 64,
    "kv_dtype": "bfloat16",
    "calibration_corpus_sha256": "0" * 64,
    "gpu_inventory": ["NVIDIA H100 80GB HBM3"],
}
CONFIG: Final = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 64,
    "head_dim": 8,
    "dtype": "bfloat16",
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 4096,
}


class Bases:
    """Sound files to change."""

    def __init__(self, folder: Path) -> None:
        base = folder / "base"
        self.traces = {
            dtype: write_trace(base / f"{dtype}.kvtrace", dtype) for dtype in ("bfloat16", "float16")
        }
        self.float32 = write_trace(base / "float32.kvtrace", "float32")
        self.trace = self.traces["bfloat16"]
        self.odd_widths = _odd_widths(base)
        self.queried = write_queried(base / "queried.kvtrace")
        self.counted = base / "counted.kvtrace"
        shutil.copytree(self.trace, self.counted)
        _count(self.counted)
        self.scales = base / "scales"
        assert kvtrace("calibrate", self.counted, "-o", self.scales).returncode == 0
        self.run = base / "run"
        asked = ("--scales", self.scales, "--intervals", "--online", "fp8-per-token-head")
        assert kvtrace("replay", self.counted, *asked, "-o", self.run).returncode == 0
        self.harm = base / "harm"
        formats = ("--cache-dtype", "int8_per_token_head", "--cache-dtype", FORMAT)
        assert kvtrace("replay", self.queried, *formats, "-o", self.harm).returncode == 0
        self.policy = base / "policy.toml"
        self.policy.write_text(POLICY)
        self.artifacts = (
            self.scales,
            _TESTS.parent / "samples/scales/chat-per-tensor",
            *sorted(path for path in (_TESTS / "artifacts").iterdir() if path.is_dir()),
        )


def write_trace(path: Path, dtype: str) -> Path:
    """Write two layers on two ranks; a request with output, one preempted, one that still runs; queries."""
    chance = np.random.default_rng(20)
    tensors = {(layer, t): chance.normal(0, 3, (40, 4, 8)) for layer in range(2) for t in "kv"}
    tensors[1, "k"][:, 2, 5] += 200  # an outlier channel, which is counted apart
    fabricate_trace(
        path,
        tensors,
        dtype=dtype,
        request_of_row=[0] * 24 + [1] * 13 + [2] * 3,
        position_of_row=[*range(24), *range(12), 3, *range(3)],
        step_of_row=[*range(36), 36, 37, 38, 39],
        requests=[
            request(0, prompt_tokens=20, output_tokens=5),
            request(1, prompt_tokens=15, workload="b", preemptions=1),
            request(2, prompt_tokens=9, computed_tokens=0, status="running"),
        ],
        ranks=[(0, 1), (2, 3)],
        rows_per_chunk=16,
        model={"hf_config": CONFIG},
        settings={"layers_without_kv": ["model.layers.7.mixer"], "max_num_seqs": 8},
    )
    add_queries(
        path,
        {(layer, t): chance.normal(0, 3, (4, 8, 8)) for layer in range(2) for t in "qo"},
        ([0, 0, 1, 1], [7, 23, 3, 14]),
        {(layer, t): chance.normal(0, 3, (2, 4, 8)) for layer in range(2) for t in "kv"},
        ([1, 1], [12, 13]),
        heads_a_kv_head=2,
    )
    return path


def _odd_widths(base: Path) -> tuple[Path, ...]:
    """Write traces whose vectors have lengths that formats in blocks may not expect."""
    chance = np.random.default_rng(21)
    return tuple(
        fabricate_trace(
            base / f"widths-{k}-{v}.kvtrace",
            {(0, t): chance.normal(0, 3, (6, 2, width)) for t, width in (("k", k), ("v", v))},
            request_of_row=[0] * 6,
            position_of_row=range(6),
            requests=[request(0, prompt_tokens=6)],
        )
        for k, v in ((1, 1), (7, 24), (48, 16), (64, 96), (128, 6))
    )


def write_queried(path: Path) -> Path:
    """Write a trace with queries: two query heads a KV head, at two positions, over a context of six."""
    chance = np.random.default_rng(22)
    trace = fabricate_trace(
        path,
        {(0, t): chance.normal(0, 1, (3, 4, 8)) for t in "kv"},
        request_of_row=[0] * 3,
        position_of_row=[0, 2, 4],
        requests=[request(0, prompt_tokens=6)],
        ranks=[(0, 1), (2, 3)],
    )
    add_queries(
        trace,
        {(0, t): chance.normal(0, 1, (2, 8, 8)) for t in "qo"},
        ([0, 0], [2, 4]),
        {(0, t): chance.normal(0, 1, (3, 4, 8)) for t in "kv"},
        ([0] * 3, [1, 3, 5]),
        heads_a_kv_head=2,
    )
    return trace


def _count(trace: Path) -> None:
    opened = open_trace(trace)
    for directory, cells in (
        (PROFILE_DIRECTORY, find_cells(opened)),
        (GROUPS_DIRECTORY, find_group_cells(opened)),
    ):
        with ready_profile(opened, cells, "cpu", directory=directory):
            pass
