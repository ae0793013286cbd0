"""What people use instead of counts: every element through the round trip, for every candidate.

Each function takes the values, bfloat16, and returns a function of the scales that computes the squared
error of each. Calibrators that search scales on their own run one pass, whatever the number of candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch

from kvtrace.numerics import dequantize, quantize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    Run = Callable[[Iterable[float]], object]

_CHUNK = 1 << 22


class UnavailableError(Exception):
    """The alternative is not installed, or cannot run here."""


def torch_eager(x: Tensor) -> Run:
    def error(part: Tensor, scale: float) -> Tensor:
        wide = part.float()
        back = (wide / scale).clamp_(-448, 448).to(torch.float8_e4m3fn).float() * scale
        return (wide - back).square_().sum(dtype=torch.float64)

    return lambda scales: [[error(part, s) for part in x.split(_CHUNK)] for s in scales]


def torch_compiled(x: Tensor) -> Run:
    @torch.compile(dynamic=False)
    def error(part: Tensor, scale: Tensor) -> Tensor:
        wide = part.float()
        back = (wide / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
        return (wide - back).square().sum(dtype=torch.float64)

    parts = [part for part in x.split(_CHUNK) if len(part) == _CHUNK] or [x]
    try:
        error(parts[0], torch.tensor(1.0))
    except Exception as problem:
        raise UnavailableError(f"torch.compile fails here ({type(problem).__name__})") from problem
    return lambda scales: [[error(part, torch.tensor(s)) for part in parts] for s in scales]


@numba.njit(parallel=True, nogil=True, cache=True)
def _look_up(codes: Any, squares: Any) -> float:
    total = 0.0
    for i in numba.prange(len(codes)):
        total += squares[codes[i] & 0x7FFF]
    return total


def table_lookup(x: Tensor) -> Run:
    codes = x.view(torch.int16).numpy().view(np.uint16)
    every = torch.arange(1 << 15, dtype=torch.int16).view(torch.bfloat16)

    def error(scale: float) -> float:
        squares = (every.double() - dequantize(quantize(every, scale), scale)).square_()
        return float(_look_up(codes, torch.nan_to_num(squares).numpy()))

    return lambda scales: [error(s) for s in scales]


def fake_quantize(x: Tensor) -> Run:
    try:
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.lifecycle.forward import fake_quantize as function
    except ImportError as problem:
        raise UnavailableError("needs compressed-tensors: pip install 'kvtrace[bench]'") from problem
    args = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True)
    zero = torch.zeros(1)

    def error(part: Tensor, scale: float) -> Tensor:
        back = function(part, torch.tensor([scale], dtype=part.dtype), zero, args)
        return (part.float() - back.float()).square_().sum(dtype=torch.float64)

    return lambda scales: [[error(part, s) for part in x.split(_CHUNK)] for s in scales]


def modelopt_histogram(x: Tensor) -> Run:
    try:
        from modelopt.torch.quantization.calib import HistogramCalibrator
    except ImportError as problem:
        raise UnavailableError("needs nvidia-modelopt: pip install 'kvtrace[bench]'") from problem

    def collect() -> object:
        calibrator = HistogramCalibrator(num_bits=8, axis=None, unsigned=False)
        for part in x.split(_CHUNK):
            calibrator.collect(part.float())
        return calibrator.compute_amax("percentile", percentile=99.99)

    return lambda _: collect()


def llmcompressor_mse(x: Tensor) -> Run:
    try:
        from compressed_tensors.quantization import QuantizationArgs
        from llmcompressor.observers import Observer
    except ImportError as problem:
        raise UnavailableError("needs llmcompressor: pip install 'kvtrace[bench]'") from problem
    args = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True, observer="mse")

    def observe() -> object:
        observer = Observer.load_from_registry("mse", base_name="k", args=args)
        vectors = x[: len(x) // 64 * 64].view(1, 1, -1, 64)  # batch, heads, tokens, head_dim
        return [observer(part) for part in vectors.split(_CHUNK // 64, dim=2)]

    return lambda _: observe()


ALTERNATIVES: dict[str, Callable[[Tensor], Run]] = {
    "numba table look-up per element": table_lookup,
    "torch.compile": torch_compiled,
    "torch eager": torch_eager,
    "compressed-tensors fake_quantize": fake_quantize,
}
CALIBRATORS: dict[str, Callable[[Tensor], Run]] = {
    "ModelOpt HistogramCalibrator": modelopt_histogram,
    "llm-compressor mse observer": llmcompressor_mse,
}
