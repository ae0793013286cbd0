"""The file of KV-cache scales that SGLang reads (`--quantization-param-path`), whatever the weights are.

One number serves K and V of a layer, for each tensor-parallel rank; the model's type and every layer must be
there. Source: SGLang 0.5's schema checks (`kvtrace/scales/loaders/per_rank.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SGLANG_FILE: Final = "kv_cache_scales.json"


def sglang_document(
    scales: Mapping[tuple[int, str], Sequence[float]], *, num_layers: int, model_type: object, num_ranks: int
) -> dict[str, Any]:
    """Return the file's content: the largest of a layer's scales; 1.0 for layers that have none.

    Raises InputError: the model's type is unknown.
    """
    if not isinstance(model_type, str):
        raise InputError(
            "the model's configuration names no model_type, without which SGLang uses 1.0; leave out "
            "--sglang-json, or capture a trace that has the configuration"
        )
    widest = {
        layer: max(value for (at, _), values in scales.items() if at == layer for value in values)
        for layer in sorted({layer for layer, _ in scales})
    }
    factors = {str(layer): float(widest.get(layer, 1.0)) for layer in range(num_layers)}
    ranks = {str(rank): factors for rank in range(num_ranks)}
    return {
        "model_type": model_type,
        "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": ranks},
    }
