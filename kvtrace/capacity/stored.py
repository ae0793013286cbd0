"""How each layer is stored under one cache dtype: bytes a token on one rank, and by which backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.capacity.kernels import NO_BACKEND
from kvtrace.errors import InputError
from kvtrace.formats import CacheFormat, LayeredFormat, parse_format, vllm_flags
from kvtrace.formats.native import native

if TYPE_CHECKING:
    from kvtrace.capacity.model import LayerShape, ModelLayers
    from kvtrace.capacity.serving import Serving
    from kvtrace.formats import AnyFormat

FLAT_LATENTS: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of one token whatever the latent's size. Source: vLLM 0.32, `MLAAttention.get_kv_cache_spec`."""

_LATENT_BACKENDS: Final = {"auto": "FLASH_ATTN_MLA", "fp8_e4m3": "FLASHMLA"}
_SLIDING: Final = "sliding_window"
_UNPACKED_ITEMSIZE: Final = 1
"""What vLLM counts a value of a quantized cache with where no packing backend is asked."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A model under one cache dtype on one rank."""

    model: ModelLayers
    serving: Serving
    form: AnyFormat | None
    """None: a flat latent."""
    native: tuple[int, ...]
    skips: bool
    """Whether some layers are left out of the quantization, by the operator or by the format."""
    flags: str | None
    """vLLM's, for a model with this cache; None: no released vLLM serves it."""

    @property
    def is_packed(self) -> bool:
        """Whether K and V share one slot with a backend of its own (TurboQuant, UltraQuant)."""
        return isinstance(self.form, CacheFormat) and self.form.keeps_boundary_layers

    def form_of(self, layer: LayerShape) -> CacheFormat:
        """Return the format of a layer's slots, native or not; there is one."""
        assert self.form is not None
        return self.form.in_layer(layer.index)

    def backend(self, layer: LayerShape) -> str:
        """Return the backend that is taken for a layer: the first that runs its cache dtype."""
        is_latent = layer.kind == "latent"
        if self.serving.platform == "cpu":
            return "CPU_MLA" if is_latent else "CPU_ATTN"
        if self.serving.backend is not None:
            return self.serving.backend.upper().replace("-", "_")
        if self.form is None:
            return "FLASHMLA_SPARSE"
        form = self.form_of(layer)
        name = "auto" if layer.index in self.native else form.name
        if is_latent:
            return _LATENT_BACKENDS[name]
        if name == "auto":
            return "FLASH_ATTN"
        return form.runs_on[0].backend if form.runs_on else NO_BACKEND

    def token_bytes(self, layer: LayerShape) -> int:
        """Return the bytes of one token in a layer on one rank, scales in the page included."""
        if layer.index in self.native:
            return self.native_token_bytes(layer)
        return self.packed_token_bytes(layer)

    def packed_token_bytes(self, layer: LayerShape) -> int:
        """Return the bytes of one token in the cache dtype, however the layer itself is stored."""
        if self.form is None:
            return FLAT_LATENTS[self.serving.cache_dtype]
        form = self.form_of(layer)
        if form.name == "auto":
            return self.native_token_bytes(layer)
        if layer.kind == "latent":
            return form.k.num_bytes(layer.head_dim)
        # Half of a pair may be native, in whatever dtype the model has.
        own = form.each_coding(lambda one: native(self.model.itemsize).k if one.is_native else one)
        return own.bytes_per_token(layer.head_dim, self.heads(layer), layer.head_dim_v)

    def native_token_bytes(self, layer: LayerShape) -> int:
        """Return the bytes of one token in the model's dtype."""
        form = native(self.model.itemsize)
        if layer.kind == "latent":
            return form.k.num_bytes(layer.head_dim)
        return form.bytes_per_token(layer.head_dim, self.heads(layer), layer.head_dim_v)

    def first_token_bytes(self, first: LayerShape) -> int:
        """Return what vLLM counts for a token of the cache dtype by asking the first layer's backend."""
        if first.index not in self.native or self.form is None or self.form_of(first).name == "auto":
            return self.packed_token_bytes(first)
        runs_on = self.form_of(first).runs_on
        if runs_on and runs_on[0].backend == self.backend(first):
            return self.packed_token_bytes(first)
        return self.heads(first) * (first.head_dim + first.head_dim_v) * _UNPACKED_ITEMSIZE

    def state_bytes(self, layer: LayerShape) -> int:
        """Return a state's bytes on one rank; no cache dtype changes them."""
        assert layer.state is not None
        return layer.state.num_bytes(self.serving.tp, self.model.itemsize, self.serving.speculative_tokens)

    def heads(self, layer: LayerShape) -> int:
        """Return the KV heads of one rank: where there are fewer heads than ranks, each has a copy."""
        return 1 if layer.kind == "latent" else max(1, layer.kv_heads // self.serving.tp)

    def identity(self, layer: LayerShape) -> tuple[int, int, int, str]:
        """Return what must be equal for layers to share a group."""
        is_native = self.form is not None and layer.index in self.native
        name = "auto" if is_native else self.form_of(layer).name if self.form else self.serving.cache_dtype
        return self.heads(layer), layer.head_dim, layer.head_dim_v, name


def stored_form(model: ModelLayers, serving: Serving) -> Stored:
    """Return how a model is stored. Raises InputError: the cache dtype is not known or does not take it."""
    _check_heads(model, serving.tp)
    is_latent = any(layer.kind == "latent" for layer in model.layers)
    if serving.cache_dtype in FLAT_LATENTS:
        if not is_latent:
            raise InputError(f"cache dtype {serving.cache_dtype}: stores latents, {model.name} keeps K and V")
        latent = f"--kv-cache-dtype {serving.cache_dtype}"
        return Stored(model, serving, None, (), skips=False, flags=latent)
    form = parse_format(serving.cache_dtype)
    if isinstance(form, LayeredFormat):
        _check_listed(form, model)
    for one in form.forms:
        _check_served(one, serving, is_latent=is_latent)
    numbers = _skipped(model, serving.skip_layers)
    kept: tuple[int, ...] = ()
    if not form.is_native:
        kept = form.native_layers(model.num_layers, is_hybrid=model.is_hybrid, skip=numbers)
        for layer in model.layers:
            if layer.kind not in ("latent", "state") and layer.index not in kept:
                reason = form.in_layer(layer.index).why_not(layer.head_dim, layer.head_dim_v)
                if reason is not None:
                    raise InputError(f"cache dtype {form.in_layer(layer.index).name}: {reason}")
    flags = vllm_flags(form, model.attending, model.num_layers, is_hybrid=model.is_hybrid, skip=numbers)
    return Stored(
        model, serving, form, kept, skips=bool(flags and (kept or serving.skip_layers)), flags=flags
    )


def _check_served(form: CacheFormat, serving: Serving, *, is_latent: bool) -> None:
    """Raise InputError where a format is another engine's, or not the platform's, or not for latents."""
    runs_on_cpu = any(place.backend.startswith("CPU") for place in form.runs_on)
    if serving.platform == "cpu" and form.name != "auto" and not runs_on_cpu:
        raise InputError(f"cache dtype {form.name}: no CPU backend has it; give --platform gpu")
    if form.product != "vllm":
        raise InputError(
            f"cache dtype {form.name}: is {form.product}'s, whose planning kvtrace does not know"
        )
    if is_latent and form.name not in _LATENT_BACKENDS:
        expected = ", ".join((*_LATENT_BACKENDS, *FLAT_LATENTS))
        raise InputError(
            f"cache dtype {form.name}: no backend has it for latents; expected one of {expected}"
        )


def _check_listed(form: LayeredFormat, model: ModelLayers) -> None:
    last = max((layer.index for layer in model.layers), default=0)
    if form.listed[-1][0] > last:
        raise InputError(
            f"cache dtype {form.name[:60]}: lists layer {form.listed[-1][0]}, {model.name} has layers 0 to "
            f"{last}"
        )


def _skipped(model: ModelLayers, skip_layers: tuple[str, ...]) -> set[int]:
    numbers: set[int] = set()
    behind = max((layer.index for layer in model.layers), default=0) + 1
    for name in skip_layers:
        if name == _SLIDING:
            numbers.update(layer.index for layer in model.layers if layer.kind == "sliding")
        elif name.isdecimal() and int(name) < behind:
            numbers.add(int(name))
        else:
            raise InputError(
                f"--skip-layers {name[:40]!r}: expected layer numbers below {behind}, or {_SLIDING}"
            )
    return numbers


def _check_heads(model: ModelLayers, tp: int) -> None:
    for layer in model.layers:
        heads = layer.kv_heads
        if layer.kind not in ("latent", "state") and heads % tp and tp % heads:
            raise InputError(
                f"--tp {tp}: {heads} KV heads of layer {layer.index} do not split over {tp} ranks"
            )
