"""How a checkpoint's configuration declares FP8 KV-cache scales, for each producer that vLLM loads them of.

Source: vLLM 0.32: `CompressedTensorsConfig`, `ModelOptQuantConfigBase`, `QuarkConfig`, `Fp8Config`, and
`get_kv_cache_quant_algo_string`, which finds the cache's dtype for ModelOpt alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import InputError
from kvtrace.plain_text import plain
from kvtrace.scales.formats.compressed_tensors import METHOD
from kvtrace.trace.cache_layers import text_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.scales.artifact import Granularity

_WITHOUT_WEIGHTS: Final = {
    "quant_method": METHOD,
    "format": "dense",
    "quantization_status": "frozen",
    "config_groups": {},
    "ignore": [],
}
_QUARK_OUTPUT: Final = {
    "dtype": "fp8_e4m3",
    "is_dynamic": False,
    "qscheme": "per_tensor",
    "symmetric": None,
    "ch_axis": None,
    "group_size": None,
}
_BY_FLAG: Final = ("fp8", "quark")
"""Methods whose configuration does not make vLLM choose an FP8 cache."""


def with_kv_scheme(config: dict[str, Any], granularity: Granularity, *, where: str) -> dict[str, Any]:
    """Return the model's config.json content with the declaration that makes vLLM load the scales.

    Raises InputError: the model is quantized by a method that loads no KV-cache scales, or none per head.
    """
    text = text_config(config)
    if isinstance(text.get("quantization_config"), dict) and not config.get("quantization_config"):
        key = next((key for key, part in config.items() if part is text), None)
        if key is None:
            raise InputError(f"{where}: its quantization_config is nested deeper than vLLM 0.32 looks")
        return {**config, key: with_kv_scheme(dict(text), granularity, where=where)}
    quantization = config.get("quantization_config") or _WITHOUT_WEIGHTS
    method = str(quantization.get("quant_method")).lower().replace("compressed_tensors", METHOD)
    if method != METHOD:
        _require_loadable(method, granularity, where)
    if method == METHOD:
        declared = {**quantization, "kv_cache_scheme": _compressed(granularity)}
    elif method == "quark":
        declared = _quark(quantization)
    elif method == "fp8":
        declared = {**quantization, "kv_cache_scheme": "static"}
    else:
        scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
        declared = {key: value for key, value in quantization.items() if key != "kv_cache_quant_algo"}
        declared["kv_cache_scheme"] = scheme
    return {**config, "quantization_config": declared}


def with_kv_algorithm(
    hf_quant_config: Mapping[str, Any], granularity: Granularity, *, where: str
) -> dict[str, Any]:
    """Return the content of ModelOpt's `hf_quant_config.json` with an FP8 KV cache."""
    _require_loadable("modelopt", granularity, where)
    inner = hf_quant_config.get("quantization")
    inner = dict(inner) if isinstance(inner, dict) else {}
    return {**hf_quant_config, "quantization": {**inner, "kv_cache_quant_algo": "FP8"}}


def loads_no_scales(method: str | None) -> bool:
    """Whether vLLM loads no KV-cache scales beside weights of this method, as AWQ's and GPTQ's.

    >>> loads_no_scales("awq"), loads_no_scales("modelopt"), loads_no_scales(None)
    (True, False, False)
    """
    return method is not None and method not in (METHOD, *_BY_FLAG) and not method.startswith("modelopt")


def takes_scales_per_head(config: Mapping[str, Any]) -> bool:
    """Whether a model with this config.json can declare scales per head: other methods take one a tensor."""
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    if not isinstance(found, dict):
        return True
    return str(found.get("quant_method")).lower().replace("compressed_tensors", METHOD) == METHOD


def _require_loadable(method: str, granularity: Granularity, where: str) -> None:
    if loads_no_scales(method):
        raise InputError(
            f"{where}: is quantized with {plain(method, 40)!r}, for which vLLM loads no KV-cache scales: it "
            f"takes them beside {METHOD}, ModelOpt, Quark and fp8 weights. SGLang takes a file for any: give "
            "--sglang-json RANKS too"
        )
    if granularity == "attn_head":
        raise InputError(
            f"{where}: is quantized with {plain(method, 40)!r}, which takes one KV-cache scale per tensor; "
            "give --granularity tensor"
        )


def _compressed(granularity: Granularity) -> dict[str, Any]:
    return {
        "num_bits": 8,
        "type": "float",
        "strategy": granularity,
        "dynamic": False,
        "symmetric": True,
        "group_size": None,
        "block_structure": None,
        "actorder": None,
        "observer": "static_minmax",
        "observer_kwargs": {},
    }


def _quark(quantization: Mapping[str, Any]) -> dict[str, Any]:
    """Return Quark's configuration with a KV-cache group: weights stay quantized as they are.

    An entry for `*k_proj` counts before the global one, so it repeats what that says of the weights.
    """
    listed, every = quantization.get("layer_quant_config"), quantization.get("global_quant_config")
    layers = dict(listed) if isinstance(listed, dict) else {}
    for name in ("*k_proj", "*v_proj"):
        of_weights = layers.get(name) or (every if isinstance(every, dict) else {})
        layers[name] = {**of_weights, "output_tensors": _QUARK_OUTPUT}
    export = quantization.get("export")
    group = {"kv_cache_group": ["*k_proj", "*v_proj"]}
    return {
        **quantization,
        "layer_quant_config": layers,
        "export": {"pack_method": "reorder", **(export if isinstance(export, dict) else {}), **group},
    }
