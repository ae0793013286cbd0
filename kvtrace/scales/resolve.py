"""From an artifact to the scales an engine would use: the one place where engines' rules are applied."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from kvtrace.errors import InvalidCandidateError
from kvtrace.plain_text import plain
from kvtrace.scales.loaders import base_method, compressed_tensors_method, per_rank
from kvtrace.scales.loaders.contract import HeadLayout, LayerScales, unit_layer
from kvtrace.scales.model_match import model_notes
from kvtrace.scales.resolved import EffectiveScale, EngineSetup, Note, ResolvedScales
from kvtrace.trace.cache_dtypes import cache_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvtrace.scales.artifact import Granularity, ScaleArtifact
    from kvtrace.scales.loaders.contract import Rule
    from kvtrace.scales.resolved import EngineName, NoteKind

_ENGINES: Final[tuple[EngineName, ...]] = ("vllm", "sglang", "tensorrt-llm")
_NATIVE_ENGINE: Final[dict[str, EngineName]] = {"sglang-json": "sglang", "tensorrt-llm": "tensorrt-llm"}
_PER_RANK_FORMATS: Final = ("vllm-json", "sglang-json", "tensorrt-llm")


def resolve(
    artifact: ScaleArtifact,
    *,
    num_layers: int,
    kv_heads_per_layer: int | Mapping[int, int],
    engine: str | None = None,
    backend: str | None = None,
    tp: int | None = None,
    kv_cache_dtype: str = "fp8",
    fnuz: bool = False,
) -> ResolvedScales:
    """Return the scales in effect for layers 0 … num_layers − 1 of the whole model, and notes on what
    differs.

    kv_heads_per_layer: KV heads of the whole model, one number or one per layer.
    engine: `vllm`, `sglang` or `tensorrt-llm`, or a numerics name that begins so (`vllm-cuda`); None: the
    engine the format was made for. tp: tensor-parallel ranks; None: as many as the artifact has, else 1.
    Values are not judged here: see `ResolvedScales.invalid_reason` and `require_valid`.
    Raises InvalidCandidateError: an unknown engine, or heads that cannot be split over `tp` ranks.
    Source of the rules: vLLM 0.32, `kvtrace/scales/loaders/`.
    """
    setup = EngineSetup(
        _engine(artifact, engine), backend, tp or artifact.num_ranks or 1, kv_cache_dtype, fnuz
    )
    scales: dict[tuple[int, int, str], EffectiveScale] = {}
    found: list[Note] = []
    for layer in range(num_layers):
        heads = kv_heads_per_layer if isinstance(kv_heads_per_layer, int) else kv_heads_per_layer[layer]
        layer_scales = _layer(artifact, layer, HeadLayout(heads, setup.tp), setup)
        found += layer_scales.notes
        for tensor, per_head in layer_scales.scales.items():
            scales.update({(layer, head, tensor): scale for head, scale in enumerate(per_head)})
    notes = (
        *model_notes(artifact, num_layers, kv_heads_per_layer),
        *_setup_notes(artifact, setup),
        *_merged(found, num_layers),
    )
    return ResolvedScales(artifact.path, setup, _granularity(artifact, notes), scales, notes)


def _engine(artifact: ScaleArtifact, engine: str | None) -> EngineName:
    if engine is None:
        return _NATIVE_ENGINE.get(artifact.format, "vllm")
    for known in _ENGINES:
        if engine == known or engine.startswith(f"{known}-"):
            return known
    raise InvalidCandidateError(f"no rules are known for engine {engine!r}; there are {', '.join(_ENGINES)}")


def _layer(artifact: ScaleArtifact, layer: int, layout: HeadLayout, setup: EngineSetup) -> LayerScales:
    dtype = setup.kv_cache_dtype
    if cache_kind(dtype) != "static_fp8":
        found = unit_layer(layer, layout.num_heads, f"the cache dtype is {dtype}")
        found.add(
            "not-fp8", f"the cache dtype is {dtype}, not static FP8: the artifact's scales are not used"
        )
        return found
    rule = _rule(artifact)
    if rule is None:
        found = unit_layer(layer, layout.num_heads, "the quantization method has no KV-cache scales")
        if artifact.layers:
            found.add(
                "silent-default",
                f"config.json declares the quantization method {artifact.scheme.quant_method!r}, for which "
                "vLLM loads "
                "no KV-cache scales: 1.0 is used",
            )
        return found
    return rule(artifact, layer, layout, setup)


def _rule(artifact: ScaleArtifact) -> Rule | None:
    """Return the method's rule; None: vLLM has no KV-cache method for what config.json declares."""
    if artifact.format in _PER_RANK_FORMATS:
        return per_rank.apply
    method = artifact.scheme.quant_method
    if method is None and artifact.model.num_layers is None:
        # A file of scales without a config.json: the method that writes this format.
        method = "fp8" if artifact.format.startswith("autofp8") else "compressed-tensors"
    if method == "compressed-tensors":
        return compressed_tensors_method.apply
    if method is not None and (method in ("fp8", "quark") or method.startswith("modelopt")):
        return base_method.apply
    return None


def _setup_notes(artifact: ScaleArtifact, setup: EngineSetup) -> Iterator[Note]:
    scheme = artifact.scheme
    if artifact.unmatched:
        shown = ", ".join(plain(u.name, 80) for u in artifact.unmatched[:3])
        yield Note(
            "dropped-name", f"{len(artifact.unmatched)} names match no rule and are dropped silently: {shown}"
        )
    if setup.kv_cache_dtype == "fp8_e5m2" and setup.engine == "vllm" and scheme.has_kv_scheme:
        yield Note("crash", "fp8_e5m2 is refused by vLLM for a checkpoint that declares KV-cache scales")
    if artifact.format == "vllm-json" and setup.engine == "vllm":
        yield Note(
            "information", "only old versions of vLLM read this file; the option is gone from those of today"
        )
    if artifact.format == "modelopt-nvfp4":
        yield Note("information", "an NVFP4 cache has block scales made at run time; FP8 is evaluated here")
    if scheme.quant_method == "compressed-tensors":
        yield from _scheme_notes(artifact)


def _scheme_notes(artifact: ScaleArtifact) -> Iterator[Note]:
    scheme = artifact.scheme
    if not scheme.has_kv_scheme:
        yield Note(
            "information",
            "config.json declares no kv_cache_scheme: vLLM uses FP8 only with --kv-cache-dtype fp8",
        )
        return
    if scheme.num_bits != 8 or scheme.type != "float":
        yield Note(
            "crash",
            f"kv_cache_scheme is {scheme.type!r} with {scheme.num_bits} bits; vLLM takes 8-bit floats only",
        )
    if scheme.strategy not in ("tensor", "attn_head"):
        yield Note(
            "crash", f"kv_cache_scheme has strategy {scheme.strategy!r}; vLLM takes tensor and attn_head"
        )
    if not scheme.symmetric:
        yield Note(
            "crash", f"kv_cache_scheme has symmetric {scheme.symmetric}; vLLM takes symmetric scales only"
        )
    if scheme.dynamic and not artifact.layers:
        yield Note(
            "silent-default", "kv_cache_scheme is dynamic: vLLM writes FP8 all the same, every scale 1.0"
        )


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
