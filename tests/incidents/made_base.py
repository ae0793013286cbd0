"""Bases made by script: K and V of models of four shapes, as weights and rotary positions would give them.

A model is drawn once from its name; traffic through it is drawn from a seed, so that one draw can be
calibrated on and another judged. Nothing of the rules was tuned on them.

What is made as in real models: rotary positions on K; biases of K that reach a few channels (Qwen); channels,
heads and layers of different spread; V that grows with depth; tokens that share directions, those of one
workload more; a first token that takes the attention and has next to no V; requests of all lengths; decoding.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np
from support.fabricate import request

from incidents.base import Base
from kvtrace.trace.format import SamplingRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvtrace.trace.format import RequestRecord

_DIRECTIONS: Final = 12
"""Of all tokens' K and V."""
_VOCABULARY: Final = 400
_MAX_LENGTH: Final = 3_000
LANGUAGES: Final = ("english", "german", "chinese", "arabic", "hindi")
_MIXED: Final = ("chat", "code", "retrieval")


@dataclass(frozen=True)
class MadeModel:
    """What is drawn once."""

    name: str
    num_layers: int
    num_heads: int
    head_dim: int
    workloads: tuple[str, ...]
    num_requests: int = 50
    stride: int = 64
    rope_theta: float = 1e4
    bias_channels: int = 0
    """Of K in each head."""
    bias: tuple[float, float] = (40.0, 400.0)
    """Smallest and largest, in units of an ordinary channel's spread."""


MODELS: Final = (
    MadeModel("qwen-28x4x128", 28, 4, 128, LANGUAGES, stride=96, rope_theta=1e6, bias_channels=3),
    MadeModel("llama-32x8x128", 32, 8, 128, LANGUAGES, num_requests=44, stride=96, rope_theta=5e5),
    MadeModel("wide-18x1x256", 18, 1, 256, _MIXED, stride=80),
    MadeModel("many-12x12x64", 12, 12, 64, _MIXED, stride=80),
)


@dataclass(frozen=True)
class _Weights:
    """Per layer, K and V: [directions, heads * head_dim] and [heads * head_dim]."""

    maps: Mapping[tuple[int, str], NDArray[np.float32]]
    spreads: Mapping[tuple[int, str], NDArray[np.float32]]
    biases: Mapping[int, NDArray[np.float32]]
    sinks: Mapping[int, NDArray[np.float32]]
    """K of a request's first token, without its bias."""
    vocabulary: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@cache
def _weights(model: MadeModel) -> _Weights:
    rng = np.random.default_rng(zlib.crc32(model.name.encode()))
    size = model.num_heads * model.head_dim
    maps, spreads, biases, sinks = {}, {}, {}, {}
    for layer in range(model.num_layers):
        depth = (layer + 1) / model.num_layers
        for tensor, width in (("k", 1.5), ("v", 0.15 + 2.5 * depth**2)):
            of_layer = width * rng.lognormal(0, 0.35)
            of_head = rng.lognormal(0, 0.35, size=(model.num_heads, 1))
            of_channel = rng.lognormal(0, 0.4, size=(model.num_heads, model.head_dim))
            spread = (of_layer * of_head * of_channel).ravel().astype(np.float32)
            spreads[layer, tensor] = spread
            mixed = rng.standard_normal((_DIRECTIONS, size)) / np.sqrt(_DIRECTIONS)
            maps[layer, tensor] = mixed.astype(np.float32) * spread
        biases[layer] = _biases(model, rng, spreads[layer, "k"])
        sinks[layer] = (2 * rng.standard_normal(size)).astype(np.float32) * spreads[layer, "k"]
    shared = rng.standard_normal((_VOCABULARY, _DIRECTIONS))
    vocabulary = {
        name: np.concatenate([shared, 0.3 * rng.standard_normal(_DIRECTIONS) + shared[: _VOCABULARY // 2]])
        for name in model.workloads
    }
    return _Weights(
        maps, spreads, biases, sinks, {n: one.astype(np.float32) for n, one in vocabulary.items()}
    )


def _biases(model: MadeModel, rng: np.random.Generator, spread: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return K's biases before rotary positions; the large ones lie where rotation is slow, as Qwen's do."""
    found = 0.5 * rng.standard_normal((model.num_heads, model.head_dim)) * spread.reshape(model.num_heads, -1)
    half = model.head_dim // 2
    low, high = np.log(model.bias)
    for head in range(model.num_heads):
        slow = half // 2 + rng.choice(half // 2, size=model.bias_channels, replace=False)
        factors = np.exp(rng.uniform(low, high, size=model.bias_channels))
        ordinary = float(np.median(spread.reshape(model.num_heads, -1)[head]))
        found[head, slow + half * rng.integers(0, 2, size=model.bias_channels)] = (
            factors * ordinary * rng.choice([-1, 1], size=model.bias_channels)
        )
    return found.ravel().astype(np.float32)


def made_base(model: MadeModel, seed: int) -> Base:
    """Return one draw of traffic through a model."""
    rng = np.random.default_rng([seed, zlib.crc32(model.name.encode())])
    requests = _requests(model, rng)
    places = [(one.request, position) for one in requests for position in _positions(one, model.stride)]
    number, position = (np.array(part, dtype=np.int64) for part in zip(*places, strict=True))
    workload = np.array([requests[one].workload for one in number.tolist()], dtype=object)
    step = position - np.array([requests[one].prompt_tokens for one in number.tolist()])
    return Base(
        num_layers=model.num_layers,
        tensors=_tensors(model, rng, position, workload, step),
        requests=tuple(requests),
        sampling=(SamplingRecord(sampling_id=0, started_at=1.7e9, position_stride=model.stride),),
        request_of_row=number,
        position=position,
        workload=workload,
        step=step,
    )


def _requests(model: MadeModel, rng: np.random.Generator) -> list[RequestRecord]:
    found = []
    for number in range(model.num_requests):
        workload = model.workloads[number % len(model.workloads)]
        middle = 1_200 if workload == "retrieval" else 500
        prompt = int(np.clip(middle * rng.lognormal(0, 0.8), 20, _MAX_LENGTH))
        output = int(np.clip(150 * rng.lognormal(0, 0.7), 16, 700))
        # A short request may have no sampled position at all: its offset is drawn below its length.
        offset = int(rng.integers(min(model.stride, prompt)))
        found.append(
            request(number, prompt_tokens=prompt, output_tokens=output, workload=workload, offset=offset)
        )
    return found


def _positions(one: RequestRecord, stride: int) -> range:
    return range(one.offset, one.computed_tokens, stride)


def _tensors(
    model: MadeModel,
    rng: np.random.Generator,
    position: NDArray[np.int64],
    workload: NDArray[np.object_],
    step: NDArray[np.int64],
) -> dict[tuple[int, str], NDArray[np.float32]]:
    weights = _weights(model)
    latent = np.stack(
        [weights.vocabulary[name][rng.integers(len(weights.vocabulary[name]))] for name in workload]
    )
    loud = rng.lognormal(0, 0.12, size=len(position)) * (1 + 0.01 * np.log2(position + 1))
    loud *= np.where(step >= 0, 0.97, 1.0)
    is_first = position == 0
    shape = (len(position), model.num_heads, model.head_dim)
    found = {}
    for layer in range(model.num_layers):
        for tensor in ("k", "v"):
            own = rng.standard_normal((len(position), shape[1] * shape[2]), dtype=np.float32)
            own *= np.float32(0.6) * weights.spreads[layer, tensor]
            values = latent @ weights.maps[layer, tensor] + own
            values *= loud[:, None].astype(np.float32)
            if tensor == "k":
                values[is_first] = weights.sinks[layer]
                values += weights.biases[layer]
                found[layer, tensor] = _as_bfloat16(
                    _rotated(values.reshape(shape), position, model.rope_theta)
                )
            else:
                values[is_first] *= np.float32(0.05)
                found[layer, tensor] = _as_bfloat16(values.reshape(shape))
    return found


def _rotated(keys: NDArray[np.float32], position: NDArray[np.int64], theta: float) -> NDArray[np.float32]:
    """Return keys with rotary positions, halves paired as in Llama. keys: [rows, heads, head_dim]."""
    half = keys.shape[2] // 2
    angle = position[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = (part[:, None].astype(np.float32) for part in (np.cos(angle), np.sin(angle)))
    one, other = keys[..., :half], keys[..., half:]
    return np.concatenate([one * cos - other * sin, other * cos + one * sin], axis=2)


def _as_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)
