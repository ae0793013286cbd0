"""What a format is: how its content is recognized and read, and what is known about what it holds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvtrace.errors import ArtifactError
from kvtrace.plain_text import plain
from kvtrace.scales.artifact import DeclaredScheme, Granularity, ModuleScales, StoredScale, UnmatchedName
from kvtrace.scales.modules import TITLES, WITHOUT_CACHE, module_of, prefix_of
from kvtrace.scales.names import MAX_LAYER, is_per_channel, is_zero_point, layer_of, resembles_kv_scale
from kvtrace.scales.number_format import named_format
from kvtrace.scales.safetensors import FLOAT_DTYPES, MAX_SCALE_VALUES, TensorRef, read_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.scales.artifact import ScaleTensor
    from kvtrace.scales.loaders.loader import LoaderName
    from kvtrace.scales.modules import ModuleKind
    from kvtrace.scales.source import ArtifactSource
    from kvtrace.trace.cache_layers import CacheLayers


@dataclass(frozen=True, slots=True)
class Reading:
    """What a format found in a source."""

    scales: tuple[StoredScale, ...] = ()
    unmatched: tuple[UnmatchedName, ...] = ()
    scheme: DeclaredScheme = field(default_factory=DeclaredScheme)
    num_ranks: int | None = None
    other_modules: tuple[ModuleScales, ...] = ()

    @property
    def granularity(self) -> Granularity:
        """Return `attn_head` where any K or V scale has one value per head."""
        per_head = any(len(s.values) > 1 for s in self.scales if s.tensor in ("k", "v", "kv"))
        return "attn_head" if per_head or self.scheme.strategy == "attn_head" else "tensor"


@dataclass(frozen=True, slots=True)
class PerRank:
    """How a format with one scale per tensor-parallel rank is taken, whatever config.json declares."""

    read_by: tuple[LoaderName, ...]
    needs_every_layer: bool
    """Whether a rank without some layer makes the loader refuse it."""


@dataclass(frozen=True, slots=True)
class Format:
    """One on-disk format. All that kvtrace knows about it stands here, in the format's own file."""

    name: str
    recognizes: Callable[[ArtifactSource], bool]
    read: Callable[[ArtifactSource], Reading]
    native_loader: LoaderName = "vllm"
    """What it was made for: it loads the scales where nothing else is named."""
    quant_method: str | None = None
    """The method by which a loader takes it where no config.json declares one."""
    per_rank: PerRank | None = None
    """None: one scale per layer or head, taken by the quantization method."""
    before_rope: bool = False
    """Whether its tool calibrates on keys before the rotation."""
    remark: str | None = None
    """What a reader of every result must know."""
    remark_for: LoaderName | None = None
    """The loader that the remark is about; None: it holds for each."""


def read_tensors(
    source: ArtifactSource,
    rule: Callable[[str], ScaleTensor | None],
    rank_of: Callable[[TensorRef], int] | None = None,
) -> Reading:
    """Read every tensor that `rule` names, module by module, and list those that only look like KV-cache
    scales.

    All is in file order. The scheme is not read here. Raises ArtifactError: a file is cut.
    """
    scales: list[StoredScale] = []
    unmatched: list[UnmatchedName] = []
    for ref in source.tensors:
        tensor = rule(ref.name)
        if tensor is None and not _is_to_be_named(ref):
            continue
        file = source.relative(ref.path)
        problem = _problem(ref, tensor)
        if tensor is None or problem:
            unmatched.append(
                UnmatchedName(ref.name, file, problem, "unusable-tensor")
                if problem
                else UnmatchedName(ref.name, file, "an INT8 cache's, per channel", "other-format")
                if is_per_channel(ref.name)
                else UnmatchedName(ref.name, file, "no engine maps this name to a KV-cache scale")
            )
            continue
        layer = layer_of(ref.name)
        assert layer is not None
        rank = rank_of(ref) if rank_of else None
        scales.append(
            StoredScale(layer, tensor, read_values(ref), ref.shape, ref.dtype, file, ref.name, rank)
        )
    kept, others = _by_module(scales, source.model.cache)
    unmatched += [
        UnmatchedName(one.key, one.file, f"it belongs to {TITLES[module.kind]}", "other-module")
        for module in others
        if module.kind in WITHOUT_CACHE
        for one in module.scales
    ]
    return Reading(kept, tuple(unmatched), other_modules=others)


def read_scaling_factors(source: ArtifactSource) -> Reading:
    """Read the JSON schema that vLLM's old versions and SGLang share: {rank: {layer: number}} for K and V at
    once.

    Raises ArtifactError: the schema does not hold, or there is no factor in it.
    """
    document = source.document or {}
    cache = document.get("kv_cache")
    ranks = cache.get("scaling_factor") if isinstance(cache, dict) else None
    if not isinstance(ranks, dict) or not ranks:
        raise ArtifactError(
            f"{source.path}: has no kv_cache.scaling_factor object with one entry per tensor-parallel rank"
        )
    scales = []
    for rank_key, layers in ranks.items():
        rank = _index(rank_key, source, "rank")
        if not isinstance(layers, dict) or not layers:
            raise ArtifactError(f"{source.path}: rank {rank} of kv_cache.scaling_factor has no layers")
        for layer_key, value in layers.items():
            layer = _index(layer_key, source, "layer")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ArtifactError(
                    f"{source.path}: the factor of rank {rank}, layer {layer} is {str(value)[:40]!r}, not a "
                    "number"
                )
            key = f"kv_cache.scaling_factor.{rank_key}.{layer_key}"
            number = _as_float(value)
            scales.append(StoredScale(layer, "kv", (number,), (), "JSON", source.path.name, key, rank))
    dtype = cache.get("dtype") if isinstance(cache, dict) else None
    scheme = DeclaredScheme(
        has_kv_scheme=True,
        dynamic=False,
        algorithm=text_of(dtype),
        number_format=named_format(dtype) if isinstance(dtype, str) else None,
        model_type=text_of(document.get("model_type")),
        refused=_odd_key(ranks),
    )
    return Reading(tuple(scales), scheme=scheme, num_ranks=len(ranks))


def _odd_key(ranks: dict[str, Any]) -> str | None:
    keys = [key for rank, layers in ranks.items() for key in (rank, *layers)]
    odd = next((key for key in keys if not key.isdecimal()), None)
    return (
        None if odd is None else f"its keys are like {plain(odd, 20)!r}, where the engine reads bare numbers"
    )


def text_of(value: object) -> str | None:
    """Return a string of a configuration, cut to a length that fits a line; None for anything else."""
    return value[:80] if isinstance(value, str) else None


def _problem(ref: TensorRef, tensor: ScaleTensor | None) -> str | None:
    if tensor is None:
        return None
    if layer_of(ref.name) is None:
        return "the name has no single layer index"
    if ref.dtype not in FLOAT_DTYPES:
        return f"its dtype is {ref.dtype}, expected a float"
    num_values = 1
    for n in ref.shape:
        num_values *= n
    if not 0 < num_values <= MAX_SCALE_VALUES:
        return f"it has {num_values:,} values, expected one, or one per head"
    return None


def _is_to_be_named(ref: TensorRef) -> bool:
    """Whether a tensor that no rule reads looks like a KV-cache scale; one of blocks is a weight's."""
    if is_zero_point(ref.name) or sum(n > 1 for n in ref.shape) > 1:
        return False
    return is_per_channel(ref.name) or resembles_kv_scale(ref.name)


def _by_module(
    scales: list[StoredScale], layers: CacheLayers
) -> tuple[tuple[StoredScale, ...], tuple[ModuleScales, ...]]:
    """Return the language model's scales and those of each other module.

    A module of an unknown name is the language model where it is alone and no name of a language model is
    there.
    """
    found: dict[tuple[ModuleKind, str], list[StoredScale]] = defaultdict(list)
    for scale in scales:
        kind = module_of(scale.key, scale.layer, layers)
        found[kind, prefix_of(scale.key, scale.layer)].append(scale)
    kinds = [kind for kind, _ in found]
    if "language" not in kinds and kinds.count("unknown") == 1:
        found = {("language" if kind == "unknown" else kind, at): own for (kind, at), own in found.items()}
    others = tuple(
        ModuleScales(kind, prefix, tuple(own)) for (kind, prefix), own in found.items() if kind != "language"
    )
    apart = {id(scale) for module in others for scale in module.scales}
    return tuple(scale for scale in scales if id(scale) not in apart), others


def _index(text: str, source: ArtifactSource, what: str) -> int:
    # Published files spell ranks and layers so; engines read the number alone, and refuse these.
    key = text.removeprefix(f"{what}_").removeprefix(what)
    if not (key.isascii() and key.isdigit() and len(key) <= len(str(MAX_LAYER))):
        raise ArtifactError(f"{source.path}: {text[:40]!r} in kv_cache.scaling_factor is not a {what} number")
    return int(key)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of a float
        return float("inf")
