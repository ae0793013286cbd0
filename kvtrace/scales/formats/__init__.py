"""One file a format. `FORMATS` is tried in order: the first whose `recognizes` says yes reads the
artifact.
"""

from kvtrace.scales.formats import (
    autofp8,
    compressed_tensors,
    mistral,
    modelopt,
    none,
    quark,
    sglang_json,
    tensorrt_llm,
    vllm_json,
)
from kvtrace.scales.formats.contract import Format

FORMATS: tuple[Format, ...] = (
    vllm_json.FORMAT,
    sglang_json.FORMAT,
    tensorrt_llm.FORMAT,
    mistral.FORMAT,
    modelopt.NVFP4,
    modelopt.MEGATRON,
    modelopt.HF,
    quark.FORMAT,
    autofp8.GENERATION_1,
    autofp8.GENERATION_2,
    compressed_tensors.OLD,
    compressed_tensors.FORMAT,
    none.FORMAT,
)
