from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from kvtrace.trace.fingerprint import (
    chat_template_digest,
    fingerprint_checkpoint,
    tokenizer_digest,
    weights_digest,
)

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS = {
    "model.layers.0.self_attn.k_proj.weight": torch.arange(8192, dtype=torch.float32).reshape(64, 128),
    "model.layers.0.mlp.weight": torch.ones(3, 5, dtype=torch.bfloat16),
}


def save(folder: Path, tensors: dict[str, torch.Tensor], name: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / name)
    return folder


def test_other_kv_scales_leave_the_weights_digest_as_it_is(tmp_path: Path) -> None:
    bare = save(tmp_path / "bare", WEIGHTS)
    scales = {"model.layers.0.self_attn.k_scale": torch.tensor([0.5]), "x.v_scale": torch.tensor([0.25])}
    inside = save(tmp_path / "inside", {**WEIGHTS, **scales})
    digest = weights_digest(bare)
    assert digest is not None
    assert digest.startswith("tensors-4k-sha256:")
    assert weights_digest(inside) == digest


def test_the_digest_does_not_depend_on_how_tensors_are_spread_over_files(tmp_path: Path) -> None:
    single = save(tmp_path / "single", WEIGHTS)
    first, second = WEIGHTS
    sharded = save(tmp_path / "sharded", {first: WEIGHTS[first]}, "model-1-of-2.safetensors")
    save(sharded, {second: WEIGHTS[second]}, "model-2-of-2.safetensors")
    save(sharded, {"other.weight": torch.zeros(2)}, "consolidated.safetensors")
    index = {"weight_map": {first: "model-1-of-2.safetensors", second: "model-2-of-2.safetensors"}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_digest(sharded) == weights_digest(single)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: {**w, "model.layers.0.mlp.weight": torch.zeros(3, 5, dtype=torch.bfloat16)},
        lambda w: {**w, "model.layers.0.mlp.weight": torch.ones(5, 3, dtype=torch.bfloat16)},
        lambda w: {**w, "model.layers.0.mlp.weight": torch.ones(3, 5, dtype=torch.float16)},
        lambda w: {name.replace("mlp", "ffn"): tensor for name, tensor in w.items()},
    ],
    ids=["values", "shape", "dtype", "name"],
)
def test_another_tensor_gives_another_digest(tmp_path: Path, change) -> None:  # type: ignore[no-untyped-def]
    assert weights_digest(save(tmp_path / "a", WEIGHTS)) != weights_digest(
        save(tmp_path / "b", change(WEIGHTS))
    )


def test_the_last_value_of_a_large_tensor_counts(tmp_path: Path) -> None:
    large = torch.zeros(100_000)
    changed = large.clone()
    changed[-1] = 1
    assert weights_digest(save(tmp_path / "a", {"w": large})) != weights_digest(
        save(tmp_path / "b", {"w": changed})
    )


def test_a_large_checkpoint_is_not_read_whole(tmp_path: Path) -> None:
    header = json.dumps(
        {"w": {"dtype": "BF16", "shape": [20_000_000_000], "data_offsets": [0, 40_000_000_000]}}
    )
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + 40_000_000_000)  # sparse: takes no disk space
    started = time.monotonic()
    assert weights_digest(tmp_path) is not None
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05",
        b"\xff" * 64,
        (5).to_bytes(8, "little") + b"[1,2]",
        (9).to_bytes(8, "little") + b'{"w":"x"}',
    ],
    ids=["empty", "cut", "huge-header", "no-object", "no-entry"],
)
def test_what_cannot_be_read_has_no_digest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert weights_digest(tmp_path) is None


def test_an_empty_folder_has_no_digests(tmp_path: Path) -> None:
    prints = fingerprint_checkpoint(tmp_path)
    assert (prints.weights, prints.tokenizer, prints.chat_template) == (None, None, None)


def test_the_chat_template_is_the_same_in_either_place(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
    (tmp_path / "new" / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "old" / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    digest = chat_template_digest(tmp_path / "new")
    assert digest is not None
    assert chat_template_digest(tmp_path / "old") == digest
    (tmp_path / "new" / "chat_template.jinja").write_text("{{ other }}")
    assert chat_template_digest(tmp_path / "new") != digest


def test_the_tokenizer_digest_covers_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    digest = tokenizer_digest(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    assert digest is not None
    assert tokenizer_digest(tmp_path) != digest
