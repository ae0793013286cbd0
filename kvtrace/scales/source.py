"""An artifact's files, opened but not yet understood: JSON parsed, tensor headers read, no tensor touched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvtrace.errors import ArtifactError
from kvtrace.scales.artifact import DeclaredModel
from kvtrace.scales.safetensors import TensorRef, read_header
from kvtrace.scales.strict_json import read_json
from kvtrace.trace.cache_layers import cache_layers, text_config

INDEX_SUFFIX: Final = ".safetensors.index.json"
MANIFEST_FILE: Final = "kvtrace.json"
PARAMS_FILE: Final = "params.json"
"""Mistral's own name for a model's configuration."""
_PICKLED: Final = ("*.bin", "*.pt", "*.pth")
_MAX_MODEL_COUNT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ArtifactSource:
    """What lies at an artifact's path."""

    path: Path
    root: Path
    """The directory that file names are relative to."""
    tensors: tuple[TensorRef, ...] = ()
    """In file order; the same name may occur in several files."""
    unlisted: tuple[TensorRef, ...] = ()
    """Tensors of files that lie beside an index which does not name them: vLLM 0.32 does not open these."""
    config: dict[str, Any] | None = None
    """`config.json`; where there is none, Mistral's `params.json`."""
    hf_quant_config: dict[str, Any] | None = None
    document: dict[str, Any] | None = None
    """The artifact itself, where it is one JSON file."""
    manifest: dict[str, Any] | None = None

    @property
    def quantization(self) -> dict[str, Any]:
        """Return config.json's `quantization_config` (or `quantization`), {} where there is none.

        A multi-modal model may keep it in its text model's part. Source: vLLM 0.32, `get_quant_config`, and
        `_remap_mistral_quantization_args` for params.json.
        """
        config = self.config or {}
        parts = (config, text_config(config))
        keys = ("quantization_config", "compression_config", "quantization")
        found: dict[str, Any] = next(
            (part[key] for key in keys for part in parts if isinstance(part.get(key), dict)), {}
        )
        if found.get("qformat_weight") == "fp8_e4m3" and "quant_method" not in found:
            return {**found, "quant_method": "fp8"}
        return found

    @property
    def quant_method(self) -> str | None:
        """Return the declared quantization method in lower case, as vLLM spells it."""
        method = self.quantization.get("quant_method")
        if not isinstance(method, str):
            return None
        return method[:80].lower().replace("compressed_tensors", "compressed-tensors")

    @property
    def model(self) -> DeclaredModel:
        """Return the model's shape by its configuration; a multi-modal model's is its text model's."""
        config = text_config(self.config or {})
        found = cache_layers(self.config or {})
        return DeclaredModel(
            num_layers=_count(found.num_layers),
            num_kv_heads=_count(found.kv_heads),
            num_attention_heads=_count(config.get("num_attention_heads", config.get("n_heads"))),
            head_dim=_count(config.get("head_dim", config.get("head_size"))),
            cache=found,
            model_type=config.get("model_type") if isinstance(config.get("model_type"), str) else None,
            architectures=_texts((self.config or {}).get("architectures")),
        )

    def relative(self, path: Path) -> str:
        """Return a file's name as results show it."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.name


def open_source(path: Path) -> ArtifactSource:
    """Open a checkpoint directory, a safetensors file or its index, or a JSON file of scales.

    Raises ArtifactError: nothing there can be read; pickled weights are never opened.
    """
    if (path / "trace.json").is_file():
        raise ArtifactError(
            f"{path}: is a trace, expected scales: a checkpoint directory, a safetensors file, its index, "
            "or a JSON file; `kvtrace inspect` shows a trace"
        )
    if path.is_dir():
        document = _lone_document(path)
        return (
            ArtifactSource(path, path, document=document)
            if document
            else _open_directory(path, _safetensors_of(path))
        )
    if not path.exists():
        raise ArtifactError(f"{path}: no such file or directory; expected a checkpoint or a file of scales")
    if path.name.endswith(INDEX_SUFFIX):
        return _open_directory(path.parent, _files_of_index(path), path=path)
    if path.suffix == ".safetensors":
        return _open_directory(path.parent, [path], path=path)
    if path.suffix == ".json":
        return ArtifactSource(path, path.parent, document=_read_object(path))
    raise ArtifactError(
        f"{path}: is neither .safetensors nor .json; expected a checkpoint directory or a file of scales "
        "(pickled files are never opened: convert them to safetensors)"
    )


def open_configuration(path: Path) -> ArtifactSource:
    """Open what a checkpoint's JSON files say alone: its directory's, or one of them.

    Raises ArtifactError: there is none, or it cannot be read.
    """
    if not path.is_dir():
        content = _read_object(path)
        is_config = "quantization_config" in content or "model_type" in content
        return ArtifactSource(
            path,
            path.parent,
            config=content if is_config else None,
            hf_quant_config=None if is_config else content,
        )
    config = _read_optional(path / "config.json")
    hf_quant_config = _read_optional(path / "hf_quant_config.json")
    if config is None and hf_quant_config is None:
        raise ArtifactError(
            f"{path}: holds neither config.json nor hf_quant_config.json; expected a checkpoint's directory"
        )
    return ArtifactSource(path, path, config=config, hf_quant_config=hf_quant_config)


def _open_directory(root: Path, files: list[Path], *, path: Path | None = None) -> ArtifactSource:
    unlisted = sorted(set(root.glob("*.safetensors")) - set(files)) if path is None else ()
    return ArtifactSource(
        path=path or root,
        root=root,
        tensors=tuple(ref for file in files for ref in read_header(file).values()),
        unlisted=tuple(ref for file in unlisted for ref in _readable_header(file)),
        config=_read_optional(root / "config.json") or _read_optional(root / PARAMS_FILE),
        hf_quant_config=_read_optional(root / "hf_quant_config.json"),
        manifest=_read_optional(root / MANIFEST_FILE),
    )


def _readable_header(file: Path) -> list[TensorRef]:
    """Return a file's tensors; none where it is damaged, since the loader does not open it either."""
    try:
        return list(read_header(file).values())
    except ArtifactError:
        return []


def _lone_document(root: Path) -> dict[str, Any] | None:
    """Return the JSON of scales that a directory without tensors holds, None where it is something else."""
    if any(root.glob("*.safetensors*")):
        return None
    files = [
        p
        for p in sorted(root.glob("*.json"))
        if p.name not in ("config.json", "hf_quant_config.json", PARAMS_FILE)
    ]
    return _read_object(files[0]) if len(files) == 1 else None


def _safetensors_of(root: Path) -> list[Path]:
    indexes = sorted(root.glob(f"*{INDEX_SUFFIX}"))
    files = _files_of_index(indexes[0]) if indexes else sorted(root.glob("*.safetensors"))
    if not files:
        pickled = next((p.name for pattern in _PICKLED for p in sorted(root.glob(pattern))), None)
        hint = (
            f"{pickled} is pickled and never opened: convert it to safetensors"
            if pickled
            else "expected a checkpoint directory, a .safetensors file or a .json file of scales"
        )
        raise ArtifactError(f"{root}: holds no .safetensors file; {hint}")
    return files


def _files_of_index(index: Path) -> list[Path]:
    weight_map = _read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ArtifactError(f"{index}: has no weight_map, which names the file of each tensor")
    names = set()
    for name in weight_map.values():
        # A name from the file must not lead out of the checkpoint's directory.
        if (
            not isinstance(name, str)
            or Path(name).name != name
            or len(name) > 200
            or not name.endswith(".safetensors")
        ):
            raise ArtifactError(
                f"{index}: weight_map names {str(name)[:80]!r}, expected a .safetensors file beside it"
            )
        names.add(name)
    missing = [name for name in sorted(names) if not (index.parent / name).is_file()]
    if missing:
        raise ArtifactError(f"{index}: names {missing[0]!r}, which is not there ({len(missing)} missing)")
    return [index.parent / name for name in sorted(names)]


def _read_optional(path: Path) -> dict[str, Any] | None:
    return _read_object(path) if os.path.lexists(path) else None


def _read_object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise ArtifactError(f"{path}: is not a JSON object")
    return content


def _texts(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, list) else []
    return tuple(one[:80] for one in found[:8] if isinstance(one, str))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value <= _MAX_MODEL_COUNT else None
