"""ModelOpt: `…self_attn.k_proj.k_scale` in float32, amax / 448; Megatron exports clamp it to at least 1.0.

`hf_quant_config.json` names the algorithm (`FP8`, `NVFP4`), config.json may repeat it as `kv_cache_scheme`.
With NVFP4 the stored number is still amax / 448: block scales exist only at run time. Source: ModelOpt 0.47.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kvtrace.plain_text import plain
from kvtrace.scales.formats.compressed_tensors import declared_scheme
from kvtrace.scales.formats.contract import Format, Reading, read_tensors, text_of
from kvtrace.scales.modules import module_of
from kvtrace.scales.names import layer_of, vllm_tensor
from kvtrace.scales.number_format import named_format

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleTensor
    from kvtrace.scales.number_format import NumberFormat
    from kvtrace.scales.source import ArtifactSource

_METHOD = "modelopt"
_WEIGHT_ALGORITHMS: Final = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "NVFP4",
    "W4A16_NVFP4",
    "MXFP8",
    "MIXED_PRECISION",
)
"""Those that vLLM 0.32 loads (`QUANT_ALGOS`)."""


def recognizes(source: ArtifactSource) -> bool:
    """By the declared method; by `hf_quant_config.json`, which vLLM reads where no method is declared."""
    if source.quant_method is not None:
        return source.quant_method.startswith(_METHOD)
    return source.hf_quant_config is not None


def recognizes_nvfp4(source: ArtifactSource) -> bool:
    """As ModelOpt, where the KV cache's algorithm is NVFP4."""
    if not recognizes(source):
        return False
    algorithm = algorithm_of(source)
    declared = named_format(algorithm) if algorithm else declared_scheme(source).number_format
    return declared == "nvfp4"


def recognizes_megatron(source: ArtifactSource) -> bool:
    """As ModelOpt, with the names of its Megatron exporter."""
    names = [ref.name for ref in source.tensors if _rule(ref.name) in ("k", "v")]
    return recognizes(source) and bool(names) and all(_is_megatron(name) for name in names)


def read(source: ArtifactSource) -> Reading:
    """Read the scales; the scheme's algorithm comes from whichever file names it."""
    reading = read_tensors(source, _rule)
    algorithm, declared = algorithm_of(source), declared_scheme(source)
    number_format = named_format(algorithm) if algorithm else declared.number_format
    scheme = replace(
        declared,
        quant_method=_vllm_method(source),
        algorithm=algorithm,
        has_kv_scheme=declared.has_kv_scheme or algorithm is not None,
        number_format=number_format,
        format_of_layer=listed_layers(source) if number_format == "mixed" else {},
        refused=_refused(source),
        without_method=_without_method(source),
    )
    return replace(reading, scheme=scheme)


def _vllm_method(source: ArtifactSource) -> str:
    """Return the method that vLLM 0.32 chooses by `quant_algo`; they differ for MLA layers alone."""
    algorithm = text_of(_inner(source).get("quant_algo"))
    return "modelopt_mixed" if (algorithm or "").upper() == "MIXED_PRECISION" else _METHOD


def _without_method(source: ArtifactSource) -> str | None:
    """Return why mixed precision of the weights leaves the cache out (`ModelOptMixedPrecisionConfig`).

    A flat configuration declares it by `kv_cache_scheme` alone, a nested one by `kv_cache_quant_algo`.
    """
    if _vllm_method(source) == _METHOD:
        return None
    outer = source.quantization or source.hf_quant_config or {}
    if isinstance(nested := outer.get("quantization"), dict):
        declares = bool(nested.get("kv_cache_quant_algo"))
    else:
        scheme = outer.get("kv_cache_scheme")
        declares = isinstance(scheme, dict) and (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)
    is_listed = bool(listed_layers(source))  # vLLM#56116 is to read such a map; it is named by itself
    return None if declares or is_listed else "its mixed precision is of the weights alone"


def _refused(source: ArtifactSource) -> str | None:
    """Return why vLLM 0.32 raises on the configuration (`ModelOptQuantConfigBase.from_config`)."""
    if not source.quantization and source.hf_quant_config is None:
        return None
    algorithm = text_of(_inner(source).get("quant_algo"))
    if not algorithm:
        return "its quantization configuration has no quant_algo"
    if algorithm.upper() not in _WEIGHT_ALGORITHMS:
        return f"its quant_algo is {plain(algorithm, 40)}, expected one of {', '.join(_WEIGHT_ALGORITHMS)}"
    return None


def _inner(source: ArtifactSource) -> dict[str, Any]:
    """Return the settings that vLLM reads: config.json's, else those of `hf_quant_config.json`."""
    outer = source.quantization or source.hf_quant_config or {}
    inner = outer.get("quantization")
    return inner if isinstance(inner, dict) else outer


def algorithm_of(source: ArtifactSource) -> str | None:
    """Return the KV cache's algorithm as a text; config.json counts first, as in vLLM."""
    for place in (source.quantization, source.hf_quant_config or {}):
        inner = place.get("quantization")
        for settings in (inner if isinstance(inner, dict) else {}, place):
            if isinstance(settings.get("kv_cache_scheme"), dict):
                return None  # its bits and type say it
            for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
                if found := text_of(settings.get(key)):
                    return found
    return None


@dataclass(frozen=True, slots=True)
class ListedLayer:
    """An entry of `kv_cache_quantized_layers` (Model-Optimizer#2272), as it is written."""

    name: str
    layer: int | None
    """None: its name has no layer number, or several."""
    number_format: NumberFormat | None
    """None: it has no algorithm."""


def listed_layers(source: ArtifactSource) -> dict[int, NumberFormat]:
    """Return the format of each layer of the language model in `kv_cache_quantized_layers`."""
    return {
        one.layer: one.number_format
        for one in listed_entries(source)
        if one.layer is not None and one.number_format is not None
    }


def listed_entries(source: ArtifactSource) -> list[ListedLayer]:
    """Return all entries but those of draft heads, towers and encoders, which count their own layers."""
    hf_inner = (source.hf_quant_config or {}).get("quantization")
    for settings in (_inner(source), hf_inner if isinstance(hf_inner, dict) else {}):
        listed = settings.get("kv_cache_quantized_layers")
        if isinstance(listed, dict):
            entries = [_listed(name, config) for name, config in listed.items()]
            cache = source.model.cache
            return [
                one
                for one in entries
                if one.layer is None or module_of(one.name, one.layer, cache) in ("language", "unknown")
            ]
    return []


def _listed(name: str, config: object) -> ListedLayer:
    algorithm = config.get("quant_algo") if isinstance(config, dict) else None
    return ListedLayer(name, layer_of(name), named_format(algorithm) if isinstance(algorithm, str) else None)


def _is_megatron(name: str) -> bool:
    return ".mixer." in name or name.endswith((".self_attn.k_scale", ".self_attn.v_scale"))


def _rule(name: str) -> ScaleTensor | None:
    return vllm_tensor(name, _METHOD)


HF = Format("modelopt", recognizes, read, quant_method=_METHOD)
NVFP4 = Format("modelopt-nvfp4", recognizes_nvfp4, read, quant_method=_METHOD)
MEGATRON = Format("modelopt-megatron", recognizes_megatron, read, quant_method=_METHOD)
