"""From an artifact to the scales that a loader would give: the one place where loaders' rules are applied."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.scales.loaders import (
    base_method,
    compressed_tensors_method,
    model_rules,
    other_format,
    per_rank,
    sglang_method,
)
from kvtrace.scales.loaders.contract import HeadLayout, LayerScales, unit_layer
from kvtrace.scales.loaders.loader import SGLANG, VLLM, find_loader
from kvtrace.scales.model_match import model_notes
from kvtrace.scales.resolved import EffectiveScale, LoaderSetup, Note, ResolvedScales
from kvtrace.trace.cache_dtypes import cache_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvtrace.scales.artifact import Granularity, ScaleArtifact
    from kvtrace.scales.loaders.contract import Rule
    from kvtrace.scales.resolved import NoteKind
    from kvtrace.trace.cache_layers import CacheLayers

_METHODS: Final = (compressed_tensors_method, base_method)


def resolve(
    artifact: ScaleArtifact,
    *,
    num_layers: int,
    kv_heads_per_layer: int | Mapping[int, int],
    loader: str | None = None,
    backend: str | None = None,
    tp: int | None = None,
    kv_cache_dtype: str = "fp8",
    fnuz: bool = False,
    cache: CacheLayers | None = None,
    sizes_are_known: bool = True,
) -> ResolvedScales:
    """Return the scales in effect for layers 0 … num_layers − 1 of the whole model, and notes on what
    differs.

    kv_heads_per_layer: KV heads of the whole model, one number or one per layer.
    loader: `vllm`, `sglang` or `tensorrt-llm`, or numerics of such a product (`vllm-cuda`); None: what the
    format was made for. tp: tensor-parallel ranks; None: as many as the artifact has, else 1.
    cache: which layers own a cache; None: as the artifact's configuration says. Layers without K and V, of
    another number format, or left in the model's dtype have no scale. sizes_are_known: False where they were
    guessed from the artifact, so that they are not held against it.
    Values are not judged here: see `ResolvedScales.invalid_reason` and `require_valid`.
    Raises InvalidCandidateError: an unknown loader, or heads that cannot be split over `tp` ranks.
    Source of the rules: vLLM 0.32, `kvtrace/scales/loaders/`.
    """
    found_loader = find_loader(loader or artifact.format.native_loader)
    setup = LoaderSetup(found_loader, backend, tp or artifact.num_ranks or 1, kv_cache_dtype, fnuz)
    layers = cache or artifact.model.cache
    scales: dict[tuple[int, int, str], EffectiveScale] = {}
    found: list[Note] = []
    for layer in range(num_layers):
        if layer in layers.stateful or layers.holds_scales:
            continue
        if layer in layers.unquantized and layer not in artifact.layers:
            continue  # left in the model's dtype on purpose: the engine loads nothing for it
        heads = kv_heads_per_layer if isinstance(kv_heads_per_layer, int) else kv_heads_per_layer[layer]
        layer_scales = _layer(artifact, layer, HeadLayout(heads, setup.tp), setup, layers)
        found += layer_scales.notes
        for tensor, per_head in layer_scales.scales.items():
            scales.update({(layer, head, tensor): scale for head, scale in enumerate(per_head)})
    notes = (
        *(model_notes(artifact, num_layers, kv_heads_per_layer, layers) if sizes_are_known else ()),
        *_setup_notes(artifact, setup, layers),
        *_merged(found, num_layers),
    )
    return ResolvedScales(artifact.path, setup, _granularity(artifact, notes), scales, notes)


def _layer(
    artifact: ScaleArtifact, layer: int, layout: HeadLayout, setup: LoaderSetup, layers: CacheLayers
) -> LayerScales:
    dtype = setup.kv_cache_dtype
    if cache_kind(dtype) != "static_fp8" and not other_format.is_nvfp4(dtype):
        found = unit_layer(layer, layout.num_heads, f"the cache dtype is {dtype}")
        found.add(
            "not-fp8", f"the cache dtype is {dtype}, not static FP8: the artifact's scales are not used"
        )
        return found
    if not other_format.takes(artifact, layer, setup):
        return LayerScales(layer)  # a note on the whole artifact says why
    rule = _rule(artifact, setup, layers)
    if rule is None:
        found = unit_layer(layer, layout.num_heads, "the quantization method has no KV-cache scales")
        if artifact.layers:
            found.add("silent-default", _why_no_rule(artifact, setup, layers))
        return found.of_tensors(layers.tensors)
    return rule(artifact, layer, layout, setup).of_tensors(layers.tensors)


def _rule(artifact: ScaleArtifact, setup: LoaderSetup, layers: CacheLayers) -> Rule | None:
    """Return the method's rule; None: the loader has no KV-cache method for what config.json declares."""
    if artifact.format.per_rank:
        return per_rank.apply
    method = _method(artifact)
    if method is None:
        return None
    if setup.loader is SGLANG:
        return sglang_method.rule_for(artifact, method)
    if layers.is_latent or artifact.scheme.without_method:
        return None  # see _why_no_rule
    return next((one.apply for one in _METHODS if one.serves(method)), None)


def _method(artifact: ScaleArtifact) -> str | None:
    method = artifact.scheme.quant_method
    if method is None and artifact.model.num_layers is None:  # a file of scales without a config.json
        return artifact.format.quant_method
    return method


def _why_no_rule(artifact: ScaleArtifact, setup: LoaderSetup, layers: CacheLayers) -> str:
    method = _method(artifact)
    if setup.loader is SGLANG:
        return sglang_method.why_not(artifact)
    if artifact.scheme.without_method and not layers.is_latent:
        return (
            f"{artifact.scheme.without_method}: vLLM 0.32 gives its layers no KV-cache method, and uses 1.0"
        )
    if layers.is_latent and method is not None and method.startswith("modelopt") and "mixed" not in method:
        # `QuantizationConfig.get_cache_scale_mapper` and `maybe_remap_kv_scale_name` each insert it.
        return (
            "the model's attention is MLA: vLLM 0.32 renames every KV-cache scale to one of a module `attn`, "
            "which an MLA layer does not have, drops it with a warning and uses 1.0"
        )
    if layers.is_latent and any(one.serves(method or "") for one in _METHODS):
        return (
            f"the model's attention is MLA, which vLLM 0.32 gives no KV-cache method under {method}: its "
            "scales are dropped and 1.0 is used"
        )
    return (
        f"config.json declares the quantization method {artifact.scheme.quant_method!r}, for which vLLM "
        "loads no KV-cache scales: 1.0 is used"
    )


def _setup_notes(artifact: ScaleArtifact, setup: LoaderSetup, layers: CacheLayers) -> Iterator[Note]:
    scheme = artifact.scheme
    if scheme.refused and setup.loader is VLLM and not artifact.format.per_rank:
        yield Note("crash", f"{scheme.refused}: vLLM 0.32 does not start")
    if scheme.refused_by_method and setup.loader is VLLM and not layers.is_latent:
        yield Note("crash", f"{scheme.refused_by_method}: vLLM 0.32 does not start")
    has_rule = _rule(artifact, setup, layers) is not None
    if setup.loader is VLLM and not artifact.format.per_rank:
        yield from model_rules.notes(artifact, has_method=has_rule)
    if artifact.unmatched:
        shown = ", ".join(plain(u.name, 80) for u in artifact.unmatched[:3])
        stops = setup.loader is VLLM and any(u.why == "unknown-name" for u in artifact.unmatched)
        become = "are loaded by nothing (vLLM 0.32 stops at such a name)" if stops else "are dropped silently"
        yield Note("dropped-name", f"{len(artifact.unmatched)} names match no rule and {become}: {shown}")
    if setup.kv_cache_dtype == "fp8_e5m2" and setup.loader is VLLM:
        by_weights = has_rule and base_method.serves(_method(artifact) or "") and not artifact.format.per_rank
        if scheme.has_kv_scheme or by_weights:
            whose = "that declares KV-cache scales" if scheme.has_kv_scheme else "in FP8"
            refused = f"fp8_e5m2 is refused by vLLM for a checkpoint {whose}"
            yield Note("crash", f"{refused}; use fp8_e4m3 with it")
    form = artifact.format
    if form.remark and form.remark_for in (None, setup.loader.name):
        yield Note("information", form.remark)
    if artifact.number_format not in (None, "fp8", other_format.own_of(setup)):
        yield other_format.note(artifact, setup)
    if (
        scheme.quant_method
        and compressed_tensors_method.serves(scheme.quant_method)
        and setup.loader is not SGLANG
        and not layers.is_latent  # MLA is given no such method, so nothing checks the scheme
    ):
        yield from compressed_tensors_method.scheme_notes(artifact)


def _merged(notes: Iterable[Note], num_layers: int) -> Iterator[Note]:
    """Join notes of equal text; the layers are named where it is not all of them."""
    layers: dict[tuple[NoteKind, str], list[int]] = defaultdict(list)
    for note in notes:
        layers[note.kind, note.text] += note.layers
    for (kind, text), found in layers.items():
        unique = tuple(sorted(set(found)))
        where = "" if len(unique) == num_layers else f" in {layer_ranges(unique)}"
        yield Note(kind, text + where, unique)


def layer_ranges(layers: Iterable[int]) -> str:
    """Return layers as text.

    >>> layer_ranges([0, 1, 2, 5])
    'layers 0-2, 5'
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"layer {text}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"layers {text}"


def _granularity(artifact: ScaleArtifact, notes: Iterable[Note]) -> Granularity:
    collapsed = any(note.kind == "collapsed" for note in notes)
    return "tensor" if collapsed else artifact.granularity
