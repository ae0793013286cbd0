"""A calibration as people read it: what it was made on, what it costs, and whether wider is the better
bet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.calibration.holdout_error import FACTORS, FREE, TensorCost, better_width, tensor_costs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.calibration.calibrate import Calibration
    from kvtrace.calibration.manifest import ManifestRows

MODEST_HEADROOM: Final = 4.0
"""Advised where wider is free: two octaves of room, and no more than the evidence of one trace supports."""


def calibration_text(calibration: Calibration) -> str:
    """Return the summary that `kvtrace calibrate` prints."""
    costs = tensor_costs(
        calibration.calibrated,
        calibration.scale_of,
        factors=FACTORS,
        engine=calibration.recipe.engine,
        dtype=calibration.model.dtype,
    )
    lines = [
        *_head(calibration),
        "",
        "What the width costs on the calibration rows: squared error over Σ x², mean over heads",
        "  scale      K error   of it clip  K clipped   V error   of it clip  V clipped",
        *(_width_line(factor, costs) for factor in FACTORS),
        *_flush_lines(costs),
        "",
        *_advice(costs),
        *_held_out(calibration),
    ]
    return "\n".join(lines) + "\n"


def _head(calibration: Calibration) -> Iterator[str]:
    recipe, dataset = calibration.recipe, calibration.dataset
    method = recipe.method if recipe.percentile is None else f"percentile {recipe.percentile:g}"
    unit = "layer and tensor" if recipe.granularity == "tensor" else "KV head"
    options = [
        f"headroom {recipe.headroom:g}" if recipe.headroom != 1 else "",
        "K and V merged" if recipe.merge_kv else "",
        "powers of two" if recipe.power_of_two else "",
    ]
    yield ", ".join(filter(None, [f"Scales by {method}, one per {unit}", *options]))
    yield f"  calibrated on  {_part_text(dataset.calibration)}"
    if dataset.held_out:
        yield f"  held out       {_part_text(dataset.held_out)}"
    if not dataset.duplicates_comparable:
        yield "  prompts of traces with different hash keys cannot be compared: equal ones go unseen"
    dead = sum(m.amax == 0 for m in calibration.calibrated.values())
    if dead:
        yield f"  {dead} heads have no value other than 0; their scale is 1.0"


def _part_text(part: ManifestRows) -> str:
    return (
        f"{part.num_requests:,} requests, {part.num_tokens:,} tokens, positions up to {part.max_position:,}"
    )


def _width_line(factor: float, costs: list[TensorCost]) -> str:
    by_tensor = {c.tensor: c for c in costs if c.factor == factor}
    cells = []
    for tensor in ("k", "v"):
        cost = by_tensor.get(tensor)
        if cost is None:
            cells.append(f"{'-':>9} {'-':>12} {'-':>10}")
            continue
        clip_share = cost.sum_sq_clip_error / cost.sum_sq_error if cost.sum_sq_error else 0.0
        clipped = cost.num_clipped / cost.num_values if cost.num_values else 0.0
        cells.append(f"{cost.mean_relative_error:>9.5f} {clip_share:>12.1%} {clipped:>10.2e}")
    mark = " <- chosen" if factor == 1 else ""
    name = f"× {factor:g}" if factor >= 1 else f"÷ {1 / factor:g}"
    return f"  {name:<8}{' '.join(cells)}{mark}"


def _flush_lines(costs: list[TensorCost]) -> Iterator[str]:
    for cost in costs:
        if cost.factor == 1 and cost.num_values:
            share = cost.num_flushed / cost.num_values
            yield f"  at the chosen scale {share:.2e} of {cost.tensor.upper()} values are flushed to 0"


def _advice(costs: list[TensorCost]) -> Iterator[str]:
    factor = better_width(costs)
    if factor is None:
        yield "The chosen width is the better bet: wider scales would cost more than 5 % in squared error."
        return
    chosen = max(c.mean_relative_error for c in costs if c.factor == 1)
    narrower = max(c.mean_relative_error for c in costs if c.factor == 0.5)
    ratio = f"{narrower / chosen:,.0f} times the error" if chosen else "far more"
    if narrower <= FREE * chosen:
        yield (
            f"The chosen width has room to spare: half of it would cost no more, and up to × {factor:g} is "
            "free."
        )
        return
    advised = min(factor, MODEST_HEADROOM)
    yield f"A wider scale is the better bet: up to × {factor:g} costs less than 5 % more squared error,"
    yield f"while a range half as wide as needed has {ratio}. Consider --headroom {advised:g}."


def _held_out(calibration: Calibration) -> Iterator[str]:
    if not calibration.held_out:
        return
    yield ""
    yield "On the held-out requests:"
    for cost in tensor_costs(
        calibration.held_out,
        calibration.scale_of,
        engine=calibration.recipe.engine,
        dtype=calibration.model.dtype,
    ):
        layer, head, _ = cost.worst
        out_of_range, clipped, flushed = (
            n / cost.num_values for n in (cost.num_out_of_range, cost.num_clipped, cost.num_flushed)
        )
        yield (
            f"  {cost.tensor.upper()}  error {cost.mean_relative_error:.5f}, out of range "
            f"{out_of_range:.2e}, clipped {clipped:.2e}, flushed {flushed:.2e}; most in layer {layer} head "
            f"{head}: {cost.worst_relative_error:.5f}"
        )
