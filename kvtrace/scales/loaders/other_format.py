"""Scales of another number format than FP8: what the loader makes of them, and that no replay applies them.

Source: vLLM 0.32, `get_kv_cache_quant_algo_string` (ModelOpt's FP8 and NVFP4 are known, anything else falls
back to `auto`; `kv_cache_quantized_layers` is not read) and `QuarkKVCacheMethod.validate_kv_cache_config`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.scales.loaders.loader import TENSORRT_LLM, VLLM
from kvtrace.scales.number_format import K_FP8_V_NVFP4
from kvtrace.scales.resolved import Note

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleArtifact
    from kvtrace.scales.number_format import NumberFormat
    from kvtrace.scales.resolved import LoaderSetup

_TITLES: Final[dict[NumberFormat, str]] = {
    "int8": "INT8 (the largest magnitude is 127 × scale)",
    "int8-per-channel": "INT8 per channel (the largest magnitude is 127 × scale; msModelSlim's C8)",
    "nvfp4": "NVFP4 (global scales beside block scales that are made while serving)",
    "fp8-k-nvfp4-v": "FP8 for K and NVFP4 for V",
    "mixed": "of a format that differs by layer",
    "unknown": "of a number format that kvtrace does not know",
}


def is_nvfp4(kv_cache_dtype: str) -> bool:
    """Whether a cache dtype of vLLM has a global scale above scales of blocks.

    >>> is_nvfp4("nvfp4_4over6"), is_nvfp4("nvfp4_ds_mla")
    (True, False)
    """
    return kv_cache_dtype in ("nvfp4", "nvfp4_4over6")


def own_of(setup: LoaderSetup) -> NumberFormat:
    """Return the number format whose scales a cache of the setup is meant for."""
    return "nvfp4" if setup.loader is VLLM and is_nvfp4(setup.kv_cache_dtype) else "fp8"


def takes(artifact: ScaleArtifact, layer: int, setup: LoaderSetup) -> bool:
    """Whether the loader takes a layer's scales: an NVFP4 cache takes FP8's as its global scales too."""
    own = artifact.format_of(layer)
    if own_of(setup) == "nvfp4":
        return own in ("fp8", "nvfp4", K_FP8_V_NVFP4)
    return own in ("fp8", K_FP8_V_NVFP4) or is_applied(artifact, setup)


def is_applied(artifact: ScaleArtifact, setup: LoaderSetup) -> bool:
    """Whether the loader writes a cache of the artifact's own format with these scales alone."""
    return setup.loader is TENSORRT_LLM and artifact.format.per_rank is not None


def is_loaded(artifact: ScaleArtifact, setup: LoaderSetup) -> bool:
    """Whether the loader takes the scales for a cache of their own format, NVFP4's with further scales."""
    is_modelopt = (artifact.scheme.quant_method or "").startswith("modelopt")
    takes_nvfp4 = setup.loader is VLLM and is_modelopt and artifact.number_format == "nvfp4"
    return takes_nvfp4 or is_applied(artifact, setup)


def note(artifact: ScaleArtifact, setup: LoaderSetup) -> Note:
    """Return what becomes of the scales; `other-format` where none of them can be replayed as FP8."""
    number_format = artifact.number_format or "unknown"
    what = f"the scales are {_TITLES.get(number_format, number_format)}"
    if number_format == "mixed":
        by_format: dict[str, list[int]] = {}
        for layer, name in sorted(artifact.scheme.format_of_layer.items()):
            by_format.setdefault(name, []).append(layer)
        listed = "; ".join(f"{name}: {', '.join(map(str, layers))}" for name, layers in by_format.items())
        return Note("mixed-format", f"{what} ({listed}), the others left out; {_becomes(artifact, setup)}")
    return Note(
        "other-format", f"{what}, not FP8: {_becomes(artifact, setup)}; no replay as FP8 applies them"
    )


def _becomes(artifact: ScaleArtifact, setup: LoaderSetup) -> str:
    number_format = artifact.number_format
    if is_applied(artifact, setup):
        return "TensorRT-LLM applies them"
    if setup.loader is not VLLM:
        return f"kvtrace knows no rule by which {setup.loader.title} loads them"
    if is_loaded(artifact, setup):
        return "vLLM 0.32 loads them for an nvfp4 cache"
    if number_format == "int8-per-channel":
        return "vllm-ascend reads them, vLLM itself does not"
    if number_format == "mixed":
        return (
            "vLLM 0.32 reads no map of layers (vllm#56116 is to) and keeps the whole cache in the model's "
            "dtype, unless --kv-cache-dtype says otherwise"
        )
    return "vLLM 0.32 has no such static cache, and keeps it in the model's dtype (auto) where it starts"
