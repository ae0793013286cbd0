"""Make scales from traces: one pass of counting, then every choice is arithmetic on the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.calibration.dataset import Dataset, DatasetRules, split_dataset
from kvtrace.calibration.magnitudes import Group, Magnitudes, count_magnitudes, merged
from kvtrace.calibration.recipe import Recipe, scale_by
from kvtrace.errors import InputError
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
    """Return scales for every layer of the model. Every tensor is read once, whatever the recipe.

    Raises InputError: the traces are of different models or of one capture, or lack layers or heads, or the
    rules leave no rows.
    """
    refuse_same_capture(traces)
    model = one_model(traces)
    dataset = split_dataset(traces, rules)
    counts = count_magnitudes(dataset.sources, 1 if dataset.held_out is None else 2, progress)
    _require_every_group(counts[0], model)
    return Calibration(
        traces=tuple(traces),
        model=model,
        recipe=recipe,
        rules=rules,
        dataset=dataset,
        scales=scales_of(counts[0], recipe, model),
        calibrated=counts[0],
        held_out=counts[1] if dataset.held_out else None,
    )


def scales_of(groups: Mapping[Group, Magnitudes], recipe: Recipe, model: ModelRecord) -> ScaleSet:
    """Return the scales that a recipe gives on counted magnitudes, for every layer of the model."""
    scales: ScaleSet = {}
    for layer in range(model.num_layers):
        units = [("k", "v")] if recipe.merge_kv else [("k",), ("v",)]
        for tensors in units:
            per_head = [
                merged(groups[layer, head, tensor] for tensor in tensors)
                for head in range(model.num_kv_heads)
            ]
            pools = per_head if recipe.granularity == "attn_head" else [merged(per_head)]
            values = tuple(scale_by(recipe, pool, dtype=model.dtype) for pool in pools)
            scales.update({(layer, tensor): values for tensor in tensors})
    return scales


def one_model(traces: Sequence[Trace]) -> ModelRecord:
    """Return the model of all traces. Raises InputError: they differ, or the model's layers are not alike."""
    first = traces[0].record.model
    for trace in traces[1:]:
        for name in ("num_layers", "num_kv_heads", "head_dim", "dtype", "weights_digest"):
            expected, found = getattr(first, name), getattr(trace.record.model, name)
            if found != expected:
                raise InputError(
                    f"{trace.path}: its model has {name} {found}, that of {traces[0].path} has {expected}; "
                    "scales are made for one model"
                )
    for trace in traces:
        for layer in trace.layers.values():
            if layer.kv_heads != tuple(range(first.num_kv_heads)):
                raise InputError(
                    f"{trace.path}: layer {layer.index} has KV heads {list(layer.kv_heads)}, the model has "
                    f"{first.num_kv_heads}; models whose layers differ in KV heads cannot be calibrated"
                )
    return first


def _require_every_group(groups: Mapping[Group, Magnitudes], model: ModelRecord) -> None:
    missing = [
        (layer, head, tensor)
        for layer in range(model.num_layers)
        for head in range(model.num_kv_heads)
        for tensor in ("k", "v")
        if (layer, head, tensor) not in groups
    ]
    if missing:
        layers = sorted({layer for layer, _, _ in missing})
        raise InputError(
            f"no row of {len(missing)} of {model.num_layers * model.num_kv_heads * 2} heads is left (first: "
            f"layer {missing[0][0]}, KV head {missing[0][1]}, {missing[0][2]}; {len(layers)} layers in all); "
            "an engine would use 1.0 there: capture every layer, or loosen the restrictions"
        )
