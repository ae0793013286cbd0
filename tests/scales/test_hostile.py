"""Artifacts made to hurt: whatever bytes come, the reader answers or refuses, in bounded memory."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.calibration.manifest import (
    Manifest,
    ManifestDataset,
    ManifestModel,
    ManifestRecipe,
    ManifestRows,
)
from kvtrace.errors import ArtifactError, InvalidCandidateError
from kvtrace.report.scales.build import scales_report
from kvtrace.report.scales.text import scales_text
from kvtrace.scales import load_artifact, resolve

ARTIFACTS = Path(__file__).parents[1] / "artifacts"
MEMORY_LIMIT = 100_000_000
MANIFEST = Manifest(
    kvtrace_version="0",
    created_at=0,
    model=ManifestModel(name="m", dtype="bfloat16", num_layers=3, num_kv_heads=2, head_dim=8),
    dataset=ManifestDataset(
        traces=(),
        workloads=(),
        max_position=None,
        phase=None,
        holdout=0,
        holdout_workloads=(),
        seed=0,
        duplicates_comparable=True,
        calibration=ManifestRows(
            num_requests=1, num_tokens=1, max_position=9, max_prompt_tokens=1, max_output_tokens=1
        ),
        held_out=None,
    ),
    recipe=ManifestRecipe(
        method="absmax",
        percentile=None,
        headroom=1,
        granularity="attn_head",
        merge_kv=False,
        power_of_two=False,
        engine="vllm-cuda",
    ),
    libraries={},
    groups=(),
    evaluation=(),
).model_dump_json()
MANIFEST_KEYS = sorted(json.loads(MANIFEST))
QUIET = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(
    [
        "model.layers.0.self_attn.k_scale",
        "model.layers.1.self_attn.v_scale",
        "model.layers.0.self_attn.kv_scale",
        "transformer.layers.0.attention.kv_cache_scaling_factor",
        "model.layers.99999999999999999999.self_attn.k_scale",
        "model.layers.٣.self_attn.k_scale",
        "\ud800.0.k_scale",
        "model.layers.0\n.self_attn.\x1b[31m.k_scale",
        "__metadata__",
    ]
) | st.text(max_size=12)
sound_entries = st.sampled_from(
    [
        {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        {"dtype": "BF16", "shape": [2, 1, 1], "data_offsets": [4, 8]},
        {"dtype": "F64", "shape": [3], "data_offsets": [8, 32]},
    ]
)
entries = (
    sound_entries
    | json_values
    | st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["BF16", "F32", "I64", "F4", "BOOL"]) | json_values,
            "shape": st.lists(st.integers(-1, 4) | st.just(1 << 62), max_size=18) | json_values,
            "data_offsets": st.lists(st.integers(-4, 64) | st.just(1 << 70), max_size=3) | json_values,
        }
    )
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "num_hidden_layers": json_values | st.sampled_from([1, 3, 500, 10**6, 10**30]),
        "num_key_value_heads": json_values | st.sampled_from([1, 2, 60, 10**6]),
        "text_config": json_values,
        "quantization_config": st.fixed_dictionaries(
            {},
            optional={
                "quant_method": st.sampled_from(["compressed-tensors", "fp8", "modelopt"]) | json_values,
                "kv_cache_scheme": json_values
                | st.dictionaries(
                    st.sampled_from(["num_bits", "type", "strategy", "dynamic", "symmetric"]), json_values
                ),
                "layer_quant_config": json_values,
            },
        )
        | json_values,
    },
)  # fmt: skip


def read_within_limits(path: Path) -> None:
    """Load and resolve: an artifact or an ArtifactError of one line, and never more memory than the limit."""
    tracemalloc.start()
    try:
        text = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in text
    text.encode()
    assert peak < MEMORY_LIMIT


def read(path: Path) -> str:
    try:
        artifact = load_artifact(path)
        resolved = resolve(artifact, num_layers=3, kv_heads_per_layer=2)
        report = scales_report(artifact)
    except (ArtifactError, InvalidCandidateError) as error:
        return str(error)
    assert json.loads(report.model_dump_json())
    scales_text(report).encode()
    return f"{artifact.sha256} {resolved.invalid_reason} {resolved.note}"


def as_safetensors(header: object, data: bytes = bytes(64)) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@QUIET
@given(header=st.dictionaries(names, entries, max_size=4), config=configs)
def test_any_safetensors_header_and_any_configuration(tmp_path: Path, header: dict, config: dict) -> None:
    (tmp_path / "model.safetensors").write_bytes(as_safetensors(header))
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "hf_quant_config.json").unlink(missing_ok=True)
    read_within_limits(tmp_path)


@QUIET
@given(content=st.binary(max_size=200))
def test_any_bytes_as_a_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    read_within_limits(tmp_path / "m.safetensors")


@QUIET
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.integers(0, 10_000))
def test_a_sound_file_with_a_flipped_bit_or_cut_short(tmp_path: Path, at: int, bit: int, cut: int) -> None:
    content = bytearray((ARTIFACTS / "ct_per_head" / "model.safetensors").read_bytes())
    content[at % len(content)] ^= 1 << bit
    (tmp_path / "m.safetensors").write_bytes(bytes(content[: max(cut, 1)]))
    read_within_limits(tmp_path / "m.safetensors")


@QUIET
@given(document=json_values | st.fixed_dictionaries({
    "kv_cache": json_values | st.fixed_dictionaries({
        "scaling_factor": st.dictionaries(
            st.sampled_from(["0", "1", "-1", "00", "²", "9" * 30]),
            json_values | st.dictionaries(st.integers(0, 3).map(str), json_values),
        )
    })
}))  # fmt: skip
def test_any_json_file_of_scales(tmp_path: Path, document: object) -> None:
    (tmp_path / "kv.json").write_text(json.dumps(document))
    read_within_limits(tmp_path / "kv.json")


@QUIET
@given(index=json_values | st.fixed_dictionaries({"weight_map": st.dictionaries(names, names | json_values)}))
def test_any_index(tmp_path: Path, index: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    read_within_limits(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        as_safetensors({str(i): {"dtype": "F32", "shape": [], "data_offsets": [0, 4]} for i in range(9999)}),
        as_safetensors({"0.k_scale": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 64]}}),
        struct.pack("<Q", 99_000_000) + b"{}",
        struct.pack("<Q", 600_000) + b'{"a":' * 120_000,
        struct.pack("<Q", 1_000_000) + b"[" + b"[]," * 333_000 + b"[] ]",
    ],
    ids=["many tensors", "huge shape", "header beyond the file", "deep nesting", "many lists"],
)  # fmt: skip
def test_a_small_file_never_takes_much_memory(tmp_path: Path, content: bytes) -> None:
    assert len(content) < 3_000_000
    (tmp_path / "m.safetensors").write_bytes(content)
    read_within_limits(tmp_path / "m.safetensors")


@QUIET
@given(
    changes=st.dictionaries(st.sampled_from(MANIFEST_KEYS), json_values, min_size=1, max_size=3),
    whole=json_values,
)
def test_any_manifest(tmp_path: Path, changes: dict[str, object], whole: object) -> None:
    if not (tmp_path / "a").exists():
        shutil.copytree(ARTIFACTS / "ct_per_head", tmp_path / "a")
    for content in (json.loads(MANIFEST) | changes, {"schema_version": "1.0", "dataset": whole}):
        (tmp_path / "a" / "kvtrace.json").write_text(json.dumps(content))
        read_within_limits(tmp_path / "a")


@pytest.mark.parametrize(("layers", "heads"), [(160, 100), (10**6, 10**6), (2, 10**6), (10**6, 1)])
def test_a_model_of_any_claimed_size_takes_little_memory(tmp_path: Path, layers: int, heads: int) -> None:
    (tmp_path / "m.safetensors").write_bytes(
        as_safetensors({"0.k_scale": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}})
    )
    (tmp_path / "config.json").write_text(
        json.dumps({"num_hidden_layers": layers, "num_key_value_heads": heads})
    )
    read_within_limits(tmp_path)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "exploded",))

    for name in ("pytorch_model.bin", "m.safetensors", "kv.json"):
        directory = tmp_path / name.split(".")[0]
        directory.mkdir()
        (directory / name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(ArtifactError):
            load_artifact(directory)
    assert not (tmp_path / "exploded").exists()
