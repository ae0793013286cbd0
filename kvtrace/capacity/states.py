"""Layers that keep a state instead of K and V: how large it is. One small class a kind of layer.

Source: vLLM 0.32, `model_executor/layers/mamba/mamba_utils.py` and `get_mamba_state_shape_from_config` of the
models. Tensor parallelism splits a state; speculative tokens lengthen the convolution's part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ITEMSIZE: Final = {"bfloat16": 2, "float16": 2, "float32": 4}
_MOST_SIZE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class State(ABC):
    """What one layer keeps for each request, whatever its length."""

    @abstractmethod
    def num_bytes(self, tp: int, itemsize: int, speculative_tokens: int = 0) -> int:
        """Return its bytes on one rank.

        tp: tensor parallel ranks. itemsize: bytes of one value of the model's dtype.
        """


@dataclass(frozen=True, slots=True)
class ShortConvolution(State):
    """The last inputs of a convolution (LFM2)."""

    width: int
    kernel: int

    def num_bytes(self, tp: int, itemsize: int, speculative_tokens: int = 0) -> int:
        """Return width × (kernel − 1 + speculative tokens) values.

        >>> ShortConvolution(1024, 3).num_bytes(1, 2)
        4096
        """
        return self.width // tp * (self.kernel - 1 + speculative_tokens) * itemsize


@dataclass(frozen=True, slots=True)
class GatedDelta(State):
    """A convolution's inputs and a matrix a value head (Qwen3-Next, Qwen3.5, OLMo hybrid)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    matrix_itemsize: int | None = None
    """Bytes of one value of the matrix; None: as the model's dtype."""

    def num_bytes(self, tp: int, itemsize: int, speculative_tokens: int = 0) -> int:
        """Return the convolution's inputs of Q, K and V, and value heads × key_dim × value_dim.

        >>> GatedDelta(2, 4, 32, 32, 4).num_bytes(1, 2)
        9728
        """
        width = 2 * self.key_dim * self.key_heads + self.value_dim * self.value_heads
        inputs = width // tp * (self.kernel - 1 + speculative_tokens) * itemsize
        matrix = self.value_heads // tp * self.value_dim * self.key_dim
        return inputs + matrix * (self.matrix_itemsize or itemsize)


@dataclass(frozen=True, slots=True)
class Mamba1(State):
    """A convolution's inputs and state_size values a channel (Jamba)."""

    width: int
    state_size: int
    kernel: int

    def num_bytes(self, tp: int, itemsize: int, speculative_tokens: int = 0) -> int:  # noqa: ARG002
        """Return width × (kernel − 1 + state_size) values; Mamba 1 takes no speculative tokens."""
        return self.width // tp * (self.kernel - 1 + self.state_size) * itemsize


@dataclass(frozen=True, slots=True)
class Mamba2(State):
    """A convolution's inputs and a matrix a head (Nemotron-H, Granite hybrid, Falcon-H1, Zamba2)."""

    width: int
    groups: int
    heads: int
    head_dim: int
    state_size: int
    kernel: int
    matrix_itemsize: int | None = None

    def num_bytes(self, tp: int, itemsize: int, speculative_tokens: int = 0) -> int:
        """Return the convolution's inputs, B and C of each group included, and heads × head_dim × state_size.

        Groups that do not split over the ranks are held more than once.

        >>> Mamba2(256, 1, 8, 32, 16, 4).num_bytes(1, 2)
        9920
        """
        groups = self.groups if self.groups % tp == 0 else tp
        inputs = (self.width + 2 * groups * self.state_size) // tp * (self.kernel - 1 + speculative_tokens)
        matrix = self.heads // tp * self.head_dim * self.state_size
        return inputs * itemsize + matrix * (self.matrix_itemsize or itemsize)


def size_of(text: Mapping[str, Any], name: str) -> int:
    """Return a size of a configuration. Raises KeyError: it is missing, or is no number of 1 to a million."""
    value = text.get(name)
    if type(value) is not int or not 0 < value <= _MOST_SIZE:
        raise KeyError(name)
    return value


def short_convolution(text: Mapping[str, Any]) -> State:
    """Return LFM2's. Raises KeyError: the configuration lacks a size."""
    width = size_of(text, "conv_dim" if text.get("conv_dim") else "hidden_size")
    return ShortConvolution(width, size_of({"conv_L_cache": 3, **text}, "conv_L_cache"))


def gated_delta(text: Mapping[str, Any]) -> State:
    """Return Qwen3-Next's, Qwen3.5's and OLMo's. Raises KeyError: the configuration lacks a size."""
    return GatedDelta(
        size_of(text, "linear_num_key_heads"),
        size_of(text, "linear_num_value_heads"),
        size_of(text, "linear_key_head_dim"),
        size_of(text, "linear_value_head_dim"),
        size_of(text, "linear_conv_kernel_dim"),
        ITEMSIZE.get(str(text.get("mamba_ssm_dtype"))),
    )


def mamba1(text: Mapping[str, Any]) -> State:
    """Return Jamba's. Raises KeyError: the configuration lacks a size."""
    return Mamba1(
        size_of(text, "mamba_expand") * size_of(text, "hidden_size"),
        size_of(text, "mamba_d_state"),
        size_of(text, "mamba_d_conv"),
    )


def nemotron_h(text: Mapping[str, Any]) -> State:
    """Return Nemotron-H's, whose matrix is float32 unless said. Raises KeyError: lacks a size."""
    heads, head_dim = size_of(text, "mamba_num_heads"), size_of(text, "mamba_head_dim")
    dtype = str(text.get("mamba_ssm_cache_dtype", "float32"))
    return Mamba2(
        heads * head_dim,
        size_of(text, "n_groups"),
        heads,
        head_dim,
        size_of(text, "ssm_state_size"),
        size_of(text, "conv_kernel"),
        ITEMSIZE.get(dtype),
    )


def mamba2(text: Mapping[str, Any]) -> State:
    """Return Granite's and Falcon-H1's. Raises KeyError: the configuration lacks a size."""
    if text.get("mamba_d_ssm"):
        width = size_of(text, "mamba_d_ssm")
    else:
        width = size_of(text, "mamba_expand") * size_of(text, "hidden_size")
    return Mamba2(
        width,
        size_of(text, "mamba_n_groups"),
        size_of(text, "mamba_n_heads"),
        size_of(text, "mamba_d_head"),
        size_of(text, "mamba_d_state"),
        size_of(text, "mamba_d_conv"),
    )


STATES: Final[dict[str, Callable[[Mapping[str, Any]], State]]] = {
    "lfm2": short_convolution,
    "lfm2_moe": short_convolution,
    "qwen3_next": gated_delta,
    "qwen3_5_text": gated_delta,
    "qwen3_5_moe_text": gated_delta,
    "olmo_hybrid": gated_delta,
    "jamba": mamba1,
    "nemotron_h": nemotron_h,
    "granitemoehybrid": mamba2,
    "falcon_h1": mamba2,
}
"""By `model_type` of the language model."""
