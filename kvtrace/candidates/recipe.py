"""The formats that a checkpoint gives its layers, as a cache: read from its configuration, and written."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvtrace.errors import ArtifactError, InputError
from kvtrace.formats import LayeredFormat, parse_format
from kvtrace.formats.layered import by_layer, is_format
from kvtrace.formats.mixed import parse_pair
from kvtrace.plain_text import plain
from kvtrace.scales.recipe import ALGORITHMS, read_recipe, recipe_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvtrace.formats import AnyFormat
    from kvtrace.scales import ScaleArtifact
    from kvtrace.scales.number_format import NumberFormat

_CACHES: Final[dict[NumberFormat, str]] = {
    "none": "auto",
    "fp8": "fp8_e4m3",
    "nvfp4": "nvfp4",
    "fp8-k-nvfp4-v": "k=fp8_e4m3,v=nvfp4",
}


def cache_of(text: str) -> AnyFormat:
    """Return a cache by what `parse_format` takes, or by the recipe at a path.

    A path is a checkpoint's directory, its hf_quant_config.json or its config.json.
    Raises InputError: it is neither. ArtifactError: what is there gives the KV cache no format.
    """
    if not is_path_of_recipe(text):
        return parse_format(text)
    recipe = read_recipe(Path(text))
    return _as_cache(recipe.everywhere, recipe.of_layer, text)


def is_path_of_recipe(text: str) -> bool:
    """Return whether a text is no cache dtype and there is something at that path."""
    return not is_format(text) and os.path.lexists(text)


def recipe_of(artifact: ScaleArtifact) -> AnyFormat | None:
    """Return the cache that an artifact's own map of layers gives.

    None: it has none that can be replayed, or one of FP8 alone, as which the artifact is replayed anyway.
    """
    of_layer = artifact.scheme.format_of_layer
    found = set(of_layer.values())
    if artifact.number_format != "mixed" or found <= {"fp8"} or not found <= _CACHES.keys():
        return None
    return _as_cache("none", of_layer, artifact.path)


def recipe_text(cache: AnyFormat, layers: Iterable[int], num_layers: int, *, is_hybrid: bool) -> str:
    """Return a cache as hf_quant_config.json, which `cache_of` reads back layer for layer.

    layers: those with a cache of their own. num_layers, is_hybrid: as `CacheFormat.native_layers` takes them.
    Raises InputError: nothing is quantized, or in a format that ModelOpt's map has no name for.
    """
    kept = set(cache.native_layers(num_layers, is_hybrid=is_hybrid))
    names = {parse_pair(text): written for written, text in _CACHES.items()}
    of_layer: dict[int, NumberFormat] = {}
    for layer in sorted(set(layers) - kept):
        form = cache.in_layer(layer)
        if form.is_native:
            continue
        found = names.get(form)
        if found is None or found not in ALGORITHMS:
            raise InputError(
                f"cache dtype {form.name}: ModelOpt's map of layers has no name for it; expected "
                f"{', '.join(_CACHES[one] for one in ALGORITHMS)} or auto"
            )
        of_layer[layer] = found
    if not of_layer:
        raise InputError("no layer is quantized: there is no recipe to write")
    return json.dumps(recipe_document(of_layer), indent=2) + "\n"


def _as_cache(everywhere: NumberFormat, of_layer: Mapping[int, NumberFormat], path: Path | str) -> AnyFormat:
    unknown = next((one for one in (everywhere, *of_layer.values()) if one not in _CACHES), None)
    if unknown is not None:
        raise ArtifactError(
            f"{plain(str(path), 200)}: its KV cache is {unknown}, for which vLLM has no cache; expected FP8, "
            "NVFP4 or FP8_K_NVFP4_V"
        )
    listed = {layer: parse_pair(_CACHES[form]) for layer, form in of_layer.items()}
    found = by_layer(parse_pair(_CACHES[everywhere]), listed)
    return replace(found, is_written=True) if isinstance(found, LayeredFormat) else found
