"""Which format a checkpoint's configuration gives each layer's KV cache, read and written as ModelOpt does.

`kv_cache_quantized_layers` names the layers that are quantized; the others stay in the model's dtype. Source:
Model-Optimizer#2272, schema version 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import ArtifactError
from kvtrace.plain_text import plain
from kvtrace.scales.formats.compressed_tensors import declared_scheme
from kvtrace.scales.formats.modelopt import algorithm_of, listed_entries
from kvtrace.scales.number_format import named_format
from kvtrace.scales.source import open_configuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kvtrace.scales.formats.modelopt import ListedLayer
    from kvtrace.scales.number_format import NumberFormat

SCHEMA_VERSION: Final = 1
ALGORITHMS: Final[dict[NumberFormat, str]] = {
    "fp8": "FP8",
    "nvfp4": "NVFP4",
    "fp8-k-nvfp4-v": "FP8_K_NVFP4_V",
}
"""ModelOpt's names of what a layer can have."""


@dataclass(frozen=True, slots=True)
class WrittenRecipe:
    """What a configuration says of the KV cache."""

    everywhere: NumberFormat = "none"
    """Of the layers that are not listed."""
    of_layer: Mapping[int, NumberFormat] = field(default_factory=dict)


def read_recipe(path: Path) -> WrittenRecipe:
    """Return the recipe of a checkpoint's directory, of its hf_quant_config.json or of its config.json.

    Raises ArtifactError: it cannot be read, says nothing of a KV cache, or lists what is no layer's format.
    """
    source = open_configuration(path)
    if entries := listed_entries(source):
        return WrittenRecipe(of_layer=_of_layer(entries, path))
    algorithm = algorithm_of(source)
    found = named_format(algorithm) if algorithm else declared_scheme(source).number_format
    if found is None or found == "mixed":
        raise ArtifactError(
            f"{path}: gives the KV cache no format; expected a kv_cache_scheme, a kv_cache_quant_algo or "
            "kv_cache_quantized_layers"
        )
    return WrittenRecipe(everywhere=found)


def _of_layer(entries: Iterable[ListedLayer], path: Path) -> dict[int, NumberFormat]:
    found: dict[int, NumberFormat] = {}
    for one in entries:
        where = f"{path}: kv_cache_quantized_layers: {plain(one.name, 100)}"
        if one.layer is None:
            raise ArtifactError(f"{where}: names no layer; expected one such as model.layers.3.self_attn")
        if one.number_format is None:
            raise ArtifactError(f"{where}: has no quant_algo; expected {', '.join(ALGORITHMS.values())}")
        if found.setdefault(one.layer, one.number_format) != one.number_format:
            raise ArtifactError(f"{where}: layer {one.layer} is listed with two formats; expected one")
    return found


def recipe_document(of_layer: Mapping[int, NumberFormat]) -> dict[str, Any]:
    """Return the content of an hf_quant_config.json. of_layer: the quantized layers' formats."""
    algorithms = {ALGORITHMS[form] for form in of_layer.values()}
    return {
        "producer": {"name": "kvtrace"},
        "quantization": {
            "quant_algo": None,
            "kv_cache_quant_algo": algorithms.pop() if len(algorithms) == 1 else "MIXED_PRECISION",
            "kv_cache_quantized_layers": {
                f"model.layers.{layer}.self_attn": {"quant_algo": ALGORITHMS[form]}
                for layer, form in sorted(of_layer.items())
            },
            "kv_cache_schema_version": SCHEMA_VERSION,
        },
    }
