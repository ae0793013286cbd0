"""What single models of vLLM do with scales where others follow the rule of the quantization method.

Read off vLLM 0.32's models: their maps of weights' names, run by its own loader
(`tests/vllm/test_model_rules.py` holds the lists against it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.scales.names import output_tensor, vllm_tensor
from kvtrace.scales.resolved import Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.scales.artifact import ScaleArtifact

STACK_PROJECTIONS: Final = frozenset(
    [
        "AfmoeForCausalLM",
        "ApertusForCausalLM",
        "Cohere2ForCausalLM",
        "Cohere2MoeForCausalLM",
        "CohereForCausalLM",
        "Cosmos3EdgeForConditionalGeneration",
        "DeciLMForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneForCausalLM",
        "ExaoneMoEForCausalLM",
        "ExaoneMoeForCausalLM",
        "FalconH1ForCausalLM",
        "GPTJForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GemmaForCausalLM",
        "HyperCLOVAXForCausalLM",
        "JambaForCausalLM",
        "MiniCPMV4_6ForConditionalGeneration",
        "MiniCPMV4_7ForConditionalGeneration",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "NemotronForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "OPTForCausalLM",
        "OlmoeForCausalLM",
        "OrionForCausalLM",
        "PhiMoEForCausalLM",
        "Qwen2MoeForCausalLM",
        "Rnj1ForCausalLM",
        "SolarForCausalLM",
        "StableLmForCausalLM",
        "Step1ForCausalLM",
        "WhisperForConditionalGeneration",
        "Zamba2ForCausalLM",
    ]
)
"""Architectures that rename `k_proj` to `qkv_proj` before a method looks for `k_proj.output_scale`."""
WITHOUT_METHOD: Final = ("lfm2", "lfm2_moe")
"""Model types that hand no quantization to `Attention` (`models/lfm2.py`)."""
_READ_EVERY_NAME: Final = frozenset(["Llama4ForConditionalGeneration", "Llama4ForCausalLM"])
"""Architectures whose own loop over names (`models/llama4.py`) takes none that no parameter has."""
_AT_FIRST: Final = "loading at the first scale's name"


def notes(artifact: ScaleArtifact, *, has_method: bool) -> Iterator[Note]:
    """Yield why vLLM 0.32 does not start with these scales in this model.

    has_method: whether the quantization method gives the model's attention layers a KV-cache method. Names of
    scales are then known or passed over; without a declared method a loader stops at them.
    """
    model, method = artifact.model, artifact.scheme.quant_method
    if not artifact.scales:
        return
    shown = plain(next(iter(model.architectures), "the model"), 60)
    if model.model_type in WITHOUT_METHOD:
        yield _crash(f"gives the attention of {model.model_type} no KV-cache method, and stops {_AT_FIRST}")
    elif method is None and model.num_layers is not None and not model.cache.is_latent:
        yield _crash(f"stops {_AT_FIRST}, since config.json declares no quantization")
    elif not has_method and not _READ_EVERY_NAME.isdisjoint(model.architectures):
        yield _crash(
            f"has no parameter for a scale in {shown} without a KV-cache method, and stops {_AT_FIRST}"
        )
    outputs = [one for one in artifact.scales if output_tensor(one.key)]
    if not outputs or method is None:
        return
    if unmapped := [one for one in outputs if vllm_tensor(one.key, method) is None]:
        yield _crash(
            f"does not rename output_scale under {method}, and stops loading at {plain(unmapped[0].key, 80)}"
        )
    elif not STACK_PROJECTIONS.isdisjoint(model.architectures):
        yield _crash(
            f"renames k_proj to qkv_proj in {shown} before it looks for output_scale, and stops loading at a "
            "name that no parameter has"
        )


def _crash(what: str) -> Note:
    return Note("crash", f"vLLM 0.32 {what}")
