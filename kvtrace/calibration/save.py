"""Write compressed-tensors scales, alone or as a deployable copy of a checkpoint."""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.calibration.bfloat16 import bfloat16_bits, nearest_bfloat16
from kvtrace.calibration.kv_scheme import with_kv_algorithm, with_kv_scheme
from kvtrace.calibration.shard_copy import copy_without
from kvtrace.errors import InputError, KVTraceError, OutputExistsError
from kvtrace.files.staging import staged
from kvtrace.scales.artifact import StoredScale, scales_sha256
from kvtrace.scales.formats.compressed_tensors import is_kv_scale
from kvtrace.scales.modules import module_of
from kvtrace.scales.names import layer_of, resembles_kv_scale
from kvtrace.scales.source import INDEX_SUFFIX, MANIFEST_FILE, open_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvtrace.scales.artifact import Granularity
    from kvtrace.scales.modules import ModuleKind
    from kvtrace.scales.source import ArtifactSource
    from kvtrace.trace.cache_layers import CacheLayers

SCALES_FILE: Final = "model-kv-scales.safetensors"
_INDEX_FILE: Final = f"model{INDEX_SUFFIX}"
_KEY_PROJECTION: Final = re.compile(r"\.(?:k|qkv)_proj\.(?:weight|weight_packed|qweight)$")


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """How a deployable copy came about."""

    num_linked: int
    """Files that are symbolic links to the original's."""
    copied: tuple[str, ...]
    """Weight files that were copied, since other scales were to be left out of them."""


def save_scales(
    directory: Path | str,
    scales: Mapping[tuple[int, str], Sequence[float]],
    *,
    model: Mapping[str, Any] | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> None:
    """Write a new directory with the scales in bfloat16, config.json, and kvtrace.json if there is a
    manifest.

    scales: (layer, `k` | `v`) → one value, or one per KV head; all of one granularity, finite and > 0, each
    rounded to its nearest bfloat16. model: content of the model's config.json, kept beside
    `quantization_config`.
    Raises OutputExistsError: the directory exists. InputError: a scale is unusable, or granularities are
    mixed.
    """
    directory = Path(directory)
    config = with_kv_scheme(dict(model or {}), _granularity(scales), where=str(directory))
    with _new_directory(directory) as partial:
        (partial / SCALES_FILE).write_bytes(_safetensors(scales, {}))
        _write_json(partial / "config.json", config)
        if manifest is not None:
            _write_json(partial / MANIFEST_FILE, _signed(manifest, scales, {}))


def save_checkpoint(
    directory: Path | str,
    checkpoint: Path | str,
    scales: Mapping[tuple[int, str], Sequence[float]],
    *,
    manifest: Mapping[str, Any] | None = None,
) -> SavedCheckpoint:
    """Write a deployable copy of `checkpoint` with the scales: weights are symbolic links, the original is
    only read. A weight file that holds KV-cache scales is copied without them.

    Arguments as in `save_scales`. Raises also InputError: the checkpoint's quantization method has no place
    for these scales.
    """
    directory, checkpoint = Path(directory), Path(checkpoint)
    source = open_source(checkpoint)
    if source.root != checkpoint or source.config is None:
        raise InputError(f"{checkpoint}: is not a checkpoint directory with a config.json")
    rewritten = checkpoint_configs(source, _granularity(scales))
    weight_map, mixed = _weights_without_scales(source)
    modules = _attention_modules(weight_map, source.model.cache, {layer for layer, _ in scales})
    content = _safetensors(scales, modules)
    weight_bytes = sum((checkpoint / name).stat().st_size for name in set(weight_map.values()))
    names = {tensor_name(layer, tensor, modules): SCALES_FILE for layer, tensor in scales}
    with _new_directory(directory) as partial:
        linked = _files_to_link(checkpoint, set(weight_map.values()) - mixed.keys(), rewritten)
        for file in linked:
            (partial / file.name).symlink_to(file.resolve())
        for name, scales_in_it in mixed.items():
            copy_without(checkpoint / name, partial / name, scales_in_it)
        (partial / SCALES_FILE).write_bytes(content)
        for name, config in rewritten.items():
            _write_json(partial / name, config)
        total = {"total_size": weight_bytes + len(content)}
        _write_json(partial / _INDEX_FILE, {"metadata": total, "weight_map": weight_map | names})
        if manifest is not None:
            _write_json(partial / MANIFEST_FILE, _signed(manifest, scales, modules))
    return SavedCheckpoint(len(linked), tuple(mixed))


def link_checkpoint(directory: Path, checkpoint: Path) -> SavedCheckpoint:
    """Write a copy of `checkpoint` in which every file is a link, for scales that lie in a file of their own.

    Raises OutputExistsError, and InputError: it cannot be written.
    """
    with _new_directory(directory) as partial:
        files = [file for file in sorted(checkpoint.iterdir()) if file.is_file()]
        for file in files:
            (partial / file.name).symlink_to(file.resolve())
    return SavedCheckpoint(len(files), ())


def takes_scales(checkpoint: Path, granularity: Granularity) -> bool:
    """Return whether `save_checkpoint` can write scales into a copy of `checkpoint`."""
    try:
        source = open_source(checkpoint)
        if source.root != checkpoint or source.config is None:
            return False
        checkpoint_configs(source, granularity)
        _weights_without_scales(source)
    except KVTraceError:
        return False
    return True


def checkpoint_configs(source: ArtifactSource, granularity: Granularity) -> dict[str, dict[str, Any]]:
    """Return the configuration files of a checkpoint that declare its KV cache, by name, as they become.

    ModelOpt's `hf_quant_config.json` counts where config.json declares no quantization, and may repeat it.
    Raises InputError as `with_kv_scheme` does.
    """
    where, hf_config = str(source.path), source.hf_quant_config
    found: dict[str, dict[str, Any]] = {"config.json": source.config or {}}
    if source.quantization or hf_config is None:
        found["config.json"] = with_kv_scheme(found["config.json"], granularity, where=where)
    if hf_config is not None and (source.quant_method or "modelopt").startswith("modelopt"):
        found["hf_quant_config.json"] = with_kv_algorithm(hf_config, granularity, where=where)
    return found


def tensor_name(layer: int, tensor: str, modules: Mapping[int, str]) -> str:
    """Return the name that vLLM maps to a layer's scale. modules: layer → attention module, where known.

    >>> tensor_name(3, "k", {})
    'model.layers.3.self_attn.k_scale'
    """
    return f"{modules.get(layer, f'model.layers.{layer}.self_attn')}.{tensor}_scale"


def _granularity(scales: Mapping[tuple[int, str], Sequence[float]]) -> Granularity:
    counts = {len(values) for values in scales.values()}
    if not counts or 0 in counts:
        raise InputError("there are no scales to write")
    if len(counts) > 1 and 1 in counts:
        raise InputError("scales per tensor and per head are mixed; one checkpoint has one strategy")
    for (layer, tensor), values in scales.items():
        stored = nearest_bfloat16(values)
        if not (np.isfinite(stored) & (stored > 0)).all():
            raise InputError(
                f"the {tensor} scales of layer {layer} are {list(values)[:8]}; expected finite numbers > 0 "
                "within the range of bfloat16"
            )
    return "tensor" if counts == {1} else "attn_head"


def _safetensors(scales: Mapping[tuple[int, str], Sequence[float]], modules: Mapping[int, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for (layer, tensor), values in sorted(scales.items()):
        raw = bfloat16_bits(values).astype("<u2").tobytes()
        header[tensor_name(layer, tensor, modules)] = {
            "dtype": "BF16",
            "shape": list(_shape(values)),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def _signed(
    manifest: Mapping[str, Any], scales: Mapping[tuple[int, str], Sequence[float]], modules: Mapping[int, str]
) -> dict[str, Any]:
    """Return the manifest with the digest that the written scales have when they are read."""
    stored = (
        StoredScale(
            layer,
            "k" if tensor == "k" else "v",
            tuple(nearest_bfloat16(values).tolist()),
            _shape(values),
            "BF16",
            SCALES_FILE,
            tensor_name(layer, tensor, modules),
        )
        for (layer, tensor), values in scales.items()
    )
    return {**manifest, "scales_sha256": scales_sha256(stored)}


def _shape(values: Sequence[float]) -> tuple[int, ...]:
    return (1,) if len(values) == 1 else (len(values), 1, 1)


def _weights_without_scales(source: ArtifactSource) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return tensor → file of the weights, and file → KV-cache scales among its weights.

    A file of nothing but KV-cache scales is left out.
    """
    weight_map: dict[str, str] = {}
    mixed: dict[str, set[str]] = {}
    for file in sorted({ref.path for ref in source.tensors}):
        names = {ref.name for ref in source.tensors if ref.path == file}
        scales = {name for name in names if is_kv_scale(name) or resembles_kv_scale(name)}
        weight_map |= dict.fromkeys(sorted(names - scales), file.name)
        if scales and scales != names:
            mixed[file.name] = scales
    if not weight_map:
        raise InputError(f"{source.path}: holds no weights")
    return weight_map, mixed


def _attention_modules(names: Iterable[str], cache: CacheLayers, layers: Iterable[int]) -> dict[int, str]:
    """Return layer → attention module of the language model, by the names of its key projections.

    Towers, encoders and draft heads count their layers from 0 too. A layer without such a projection, as one
    that reads another's cache may be, is named as the others are.
    """
    found: dict[ModuleKind, dict[int, str]] = defaultdict(dict)
    for name in names:
        match = _KEY_PROJECTION.search(name)
        layer = layer_of(name)
        if match and layer is not None:
            found[module_of(name, layer, cache)][layer] = name[: match.start()]
    modules = found["language"] or found["unknown"]
    if modules:
        known, name = next(iter(modules.items()))
        parts = name.split(".")
        at = parts.index(str(known))
        for layer in set(layers) - modules.keys():
            modules[layer] = ".".join([*parts[:at], str(layer), *parts[at + 1 :]])
    return modules


def _files_to_link(checkpoint: Path, weight_files: set[str], written: Iterable[str]) -> list[Path]:
    rewritten = (*written, MANIFEST_FILE, SCALES_FILE)
    return [
        file
        for file in sorted(checkpoint.iterdir())
        if file.is_file()
        and file.name not in rewritten
        and not file.name.endswith(INDEX_SUFFIX)
        and (file.suffix != ".safetensors" or file.name in weight_files)
    ]


@contextmanager
def _new_directory(directory: Path) -> Iterator[Path]:
    """Yield a directory that takes the name `directory` when all is written, and goes if writing fails."""
    if directory.exists():
        raise OutputExistsError(f"{directory}: exists; give a new directory, nothing is overwritten")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with staged(directory) as partial:
            yield partial
            partial.rename(directory)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror})") from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
