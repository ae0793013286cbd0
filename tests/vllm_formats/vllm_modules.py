"""vLLM's operator files, imported one by one with Triton's interpreter: vLLM itself need not start.

The packages that they import from stand in `sys.modules` as empty ones; what they take from other modules is
a stub that says what the CPU build would, but that there is Triton. FP8 casts are wrong in the interpreter
(a mantissa's carry is lost): nothing here casts in it.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

os.environ["TRITON_INTERPRET"] = "1"

_PACKAGES = (
    "vllm",
    "vllm.v1",
    "vllm.v1.attention",
    "vllm.v1.attention.ops",
    "vllm.v1.attention.ops.ultraquant",
    "vllm.model_executor",
    "vllm.model_executor.layers",
    "vllm.model_executor.layers.quantization",
    "vllm.model_executor.layers.quantization.utils",
    "vllm.model_executor.layers.quantization.turboquant",
    "vllm.utils",
)


class QuantMode(IntEnum):
    """As vLLM's `KVQuantMode` names them; the numbers do not matter."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


def operator(name: str) -> ModuleType:
    """Return a module of the vLLM of this environment, such as v1.attention.ops.int4_per_token_head."""
    _put_stubs()
    return importlib.import_module(f"vllm.{name}")


def _put_stubs() -> None:
    if "vllm.triton_utils" in sys.modules:
        return
    import triton
    import triton.language as tl

    root = Path(str(find_spec("vllm").origin)).parent
    for name in _PACKAGES:
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    platform = SimpleNamespace(
        **{f"is_{one}": lambda: False for one in ("cuda", "rocm", "xpu", "cuda_alike", "cpu", "tpu")},
        fp8_dtype=lambda: torch.float8_e4m3fn,
        is_fp8_fnuz=lambda: False,
        get_device_capability=lambda: None,
        has_device_capability=lambda _: False,
        device_type="cpu",
    )
    stubs = {
        "triton_utils": {"tl": tl, "triton": triton, "HAS_TRITON": True, "tldevice": None},
        "platforms": {"current_platform": platform},
        "logger": {"init_logger": logging.getLogger},
        "envs": {"VLLM_BATCH_INVARIANT": False},
        "model_executor.layers.quantization.utils.quant_utils": {
            "FP8_DTYPE": torch.float8_e4m3fn,
            "get_fp8_min_max": lambda: (-448.0, 448.0),
        },
        "utils.torch_utils": {"is_quantized_kv_cache": lambda dtype: dtype != "auto"},
        "utils.math_utils": {
            "largest_power_of_2_divisor": lambda n: n & -n,
            "next_power_of_2": lambda n: 1 << math.ceil(math.log2(n)),
            "cdiv": lambda a, b: -(-a // b),
            "RCP_LN2": 1 / math.log(2),
        },
        "v1.kv_cache_interface": {"KVQuantMode": QuantMode},
    }
    for name, values in stubs.items():
        stub = ModuleType(f"vllm.{name}")
        stub.__dict__.update(values)
        sys.modules[f"vllm.{name}"] = stub
