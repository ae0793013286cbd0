"""MLA in a real engine: which KV-cache scales reach its layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace.scales import load_artifact, resolve

HERE = Path(__file__).parent


@pytest.mark.vllm
def test_no_name_of_a_scale_reaches_an_mla_layer_in_vllm_and_the_prediction_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mla"
    environment = os.environ | {"PYTHONPATH": f"{HERE.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, HERE / "load_mla.py", path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-3000:]
    found = json.loads(lines[0].removeprefix("FOUND "))
    assert found == {f"model.layers.{n}.self_attn.attn": -1.0 for n in range(4)}  # −1: none was loaded
    resolved = resolve(load_artifact(path), num_layers=4, kv_heads_per_layer=1)
    assert {scale.value for scale in resolved.scales.values()} == {1.0}
    assert [note.layers for note in resolved.notes_of("silent-default")] == [(0, 1, 2, 3)]
