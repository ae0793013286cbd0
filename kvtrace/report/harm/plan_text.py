"""A layer plan for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, percent, two_digits
from kvtrace.formats.layered import ranges
from kvtrace.plain_text import plain
from kvtrace.report.harm.words import MEASURED_IN
from kvtrace.report.wording import paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.harm.plan import Choice, LayerPlan

_NAMES: Final[dict[Choice, str]] = {
    "by harm": "most harm",
    "ends": "vLLM's ends",
    "by clipping": "most clipped",
}


def plan_text(plan: LayerPlan) -> str:
    """Return the plan beside the two others, and the flags that serve it."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: LayerPlan) -> Iterator[str]:
    first = plan.plans[0]
    under = "" if plan.bound is None else f", so that harm is at most {_figure(plan, plan.bound)}"
    kept = count(len(first.layers), "layer")
    yield from paragraph(f"kvtrace plan · {plain(plan.candidate, 60)}: keep {kept} native{under}", "  ", "")
    yield from paragraph(f"harm: {MEASURED_IN[plan.knowledge]}")
    yield f"  {'layers kept native':<22}{'harm left':>11}{'removed':>10}{'bytes a token':>15}  layers"
    yield _row("none", plan.harm, plan, 0.0, plan.bytes_per_token, "")
    for one in plan.plans:
        layers = ranges(one.layers) if one.layers else "none"
        yield _row(_NAMES[one.chosen], one.harm, plan, one.removed, one.bytes_per_token, layers)
    yield ""
    if first.flags is None:
        yield from paragraph("No released vLLM serves that.")
    else:
        yield f"  serve with  {first.flags}"
    yield from paragraph(
        "Harm adds up over layers, and kept layers remove their own share. What errors do to one another "
        "from layer to layer is not in it: no more is promised."
    )


def _row(name: str, harm: float, plan: LayerPlan, removed: float, size: int | None, layers: str) -> str:
    shown = "–" if size is None else f"{size:,}"
    line = f"  {name:<22}{_figure(plan, harm):>11}{percent(removed):>10}{shown:>15}  {layers}"
    return line.rstrip()


def _figure(plan: LayerPlan, value: float) -> str:
    if plan.knowledge == "residual":
        return percent(value)
    return two_digits(value) if value else "0"
