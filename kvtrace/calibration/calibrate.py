"""Make scales from traces: one pass of counting, then every choice is arithmetic on the counts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from kvtrace.calibration.dataset import Dataset, DatasetRules, split_dataset
from kvtrace.calibration.magnitudes import Group, Magnitudes, count_magnitudes, merged
from kvtrace.calibration.recipe import Recipe, scale_by
from kvtrace.errors import InputError
from kvtrace.trace.cache_layers import CacheLayers
from kvtrace.trace.several import refuse_same_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvtrace.trace.format import ModelRecord
    from kvtrace.trace.reader import Trace

ScaleSet = dict[tuple[int, str], tuple[float, ...]]
"""(layer, `k` | `v`) → one value, or one per KV head, each as bfloat16 stores it."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scales, and the counts that they came from and are judged on."""

    traces: tuple[Trace, ...]
    model: ModelRecord
    recipe: Recipe
    rules: DatasetRules
    dataset: Dataset
    scales: ScaleSet
    calibrated: dict[Group, Magnitudes]
    held_out: dict[Group, Magnitudes] | None
    cache: CacheLayers
    """Which layers own a cache; those that read another's have its scales."""

    def scale_of(self, group: Group) -> float:
        """Return the scale that one layer, KV head and tensor gets."""
        layer, head, tensor = group
        values = self.scales[layer, tensor]
        return values[0] if len(values) == 1 else values[head]


def calibrate(
    traces: Sequence[Trace],
    recipe: Recipe,
    rules: DatasetRules,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Calibration:
    """Return scales for every layer that writes or reads K and V. Every tensor is read once, whatever the
    recipe.

    Raises InputError: the traces are of different models or of one capture, or lack layers or heads, or the
    rules leave no rows; scales per head where layers differ in their heads.
    """
    refuse_same_capture(traces)
    model, cache = one_model(traces)
    _require_equal_heads(traces, recipe)
    dataset = split_dataset(traces, rules)
    counts = count_magnitudes(dataset.sources, 1 if dataset.held_out is None else 2, progress)
    _require_every_group(counts[0], model, cache)
    return Calibration(
        traces=tuple(traces),
        model=model,
        recipe=recipe,
        rules=rules,
        dataset=dataset,
        scales=scales_of(counts[0], recipe, model, cache),
        calibrated=counts[0],
        held_out=counts[1] if dataset.held_out else None,
        cache=cache,
    )


def scales_of(
    groups: Mapping[Group, Magnitudes], recipe: Recipe, model: ModelRecord, cache: CacheLayers | None = None
) -> ScaleSet:
    """Return the scales that a recipe gives on counted magnitudes.

    cache: None: every layer has a cache of its own. A layer that reads another's gets that one's scales,
    since an engine asks for them under the reader's name.
    """
    cache = cache or CacheLayers(num_layers=model.num_layers)
    scales: ScaleSet = {}
    for layer in cache.own_cache(range(model.num_layers)):
        units = [("k", "v")] if recipe.merge_kv else [("k",), ("v",)]
        for tensors in units:
            per_head = [
                merged(groups[layer, head, tensor] for tensor in tensors)
                for head in range(cache.heads(layer, model.num_kv_heads))
            ]
            pools = per_head if recipe.granularity == "attn_head" else [merged(per_head)]
            values = tuple(scale_by(recipe, pool, dtype=model.dtype) for pool in pools)
            scales.update({(layer, tensor): values for tensor in tensors})
    for layer, target in cache.shared.items():
        scales.update(
            {(layer, t): scales[target, t] for t in "kv" if target is not None and (target, t) in scales}
        )
    return scales


def one_model(traces: Sequence[Trace]) -> tuple[ModelRecord, CacheLayers]:
    """Return the model of all traces, and which of its layers own a cache. Raises InputError: they differ."""
    first = traces[0].record.model
    for trace in traces[1:]:
        for name in ("num_layers", "num_kv_heads", "head_dim", "dtype", "weights_digest"):
            expected, found = getattr(first, name), getattr(trace.record.model, name)
            if found != expected:
                raise InputError(
                    f"{trace.path}: its model has {name} {found}, that of {traces[0].path} has {expected}; "
                    "scales are made for one model"
                )
    cache = reduce(CacheLayers.joined, (trace.cache_layers for trace in traces))
    for trace in traces:
        for layer in trace.layers.values():
            expected_heads = cache.heads(layer.index, first.num_kv_heads)
            if layer.kv_heads != tuple(range(expected_heads)):
                raise InputError(
                    f"{trace.path}: layer {layer.index} has KV heads {list(layer.kv_heads)}, expected "
                    f"{expected_heads}; the heads of every rank are needed"
                )
    return first, cache


def _require_equal_heads(traces: Sequence[Trace], recipe: Recipe) -> None:
    counts = {len(layer.kv_heads) for trace in traces for layer in trace.layers.values()}
    if recipe.granularity == "attn_head" and len(counts) > 1:
        raise InputError(
            f"{traces[0].path}: its layers have {' or '.join(map(str, sorted(counts)))} KV heads, and "
            "engines load scales per head only where all layers have the same number; give "
            "--granularity tensor"
        )


def _require_every_group(groups: Mapping[Group, Magnitudes], model: ModelRecord, cache: CacheLayers) -> None:
    every = [
        (layer, head, tensor)
        for layer in cache.own_cache(range(model.num_layers))
        for head in range(cache.heads(layer, model.num_kv_heads))
        for tensor in ("k", "v")
    ]
    missing = [group for group in every if group not in groups]
    if missing:
        layers = sorted({layer for layer, _, _ in missing})
        raise InputError(
            f"no row of {len(missing)} of {len(every)} heads is left (first: layer {missing[0][0]}, KV head "
            f"{missing[0][1]}, {missing[0][2]}; {len(layers)} layers in all); an engine would use 1.0 there: "
            "capture every layer, or loosen the restrictions"
        )
