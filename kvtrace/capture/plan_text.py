"""A capture plan as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.byte_text import byte_text

if TYPE_CHECKING:
    from kvtrace.capture.plan import CapturePlan


def plan_text(plan: CapturePlan) -> str:
    """Return the plan within 80 columns."""
    shape, question = plan.shape, plan.question
    sampled = "" if plan.request_fraction == 1 else f", {plan.request_fraction:.4g} of them sampled"
    lines = [
        f"{shape.num_layers} layers × {shape.num_kv_heads} KV heads × {shape.head_dim}, {shape.dtype}: "
        f"{plan.bytes_per_token:,} bytes of K and V a token",
        f"{plan.tokens_per_second:g} tokens/s in requests of {plan.tokens_per_request:g}{sampled}",
        "",
        f"{'sampled':<10}{'raw bytes':>10}  {'vectors':>9}  {'design':>7}  {'requests for':>13}  "
        f"{'their':>8}  {'hours of':>8}",
        f"{'positions':<10}{'a day':>10}  {'a request':>9}  {'effect':>7}  "
        f"{f'{question.fraction:g} ± {question.margin:g}':>13}  {'bytes':>8}  {'traffic':>8}",
    ]
    lines.extend(
        f"{f'1 in {s.position_stride:,}':<10}{byte_text(s.bytes_per_day):>10}  "
        f"{s.vectors_per_request:>9,.4g}  {s.design_effect:>7,.4g}  {s.requests_for_margin:>13,}  "
        f"{byte_text(s.bytes_for_margin):>8}  {s.hours_for_margin:>8,.3g}"
        for s in plan.samplings
    )
    lines += [
        "",
        "Requests of one stratum (a workload, a length class, …), for the share of one",
        f"head's vectors that is out of range, at {question.confidence:.4g} confidence and a correlation of",
        f"{question.correlation:g} between the vectors of a request. More positions hardly help; more",
        "requests do. Hours: if all traffic is that stratum.",
    ]
    if plan.requests_without_event is not None:
        lines.append(
            f"With none out of range, {plan.requests_without_event:,} requests say: "
            f"at most {question.fraction + question.margin:g}."
        )
    return "\n".join(lines) + "\n"
