"""Log-probabilities of a variant beside BF16's, step by step."""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Top = Sequence[Any]
    """Of one step: the log-probability of the token that is there, and [token id, log-probability] of the
    most probable ones, most probable first."""


class Step(NamedTuple):
    """A generation step under a variant, beside the baseline."""

    step: int
    logprob: float | None
    """Of the token that is there, under the variant, in nats; None: the variant has another token there."""
    delta: float | None
    """Less that of the baseline."""
    is_flip: bool
    """Whether another token is the most probable one."""
    kl: float | None
    """KL divergence of the variant from the baseline in nats, at least; None: the lists do not bound it."""


def forced_steps(baseline: Sequence[Top], variant: Sequence[Top]) -> Iterator[Step]:
    """Yield the steps of one answer of the baseline, which both scored."""
    for step, (one, other) in enumerate(zip(baseline, variant, strict=False)):
        yield _step(step, one, other)


def free_steps(
    baseline_ids: Sequence[int], baseline: Sequence[Top], variant_ids: Sequence[int], variant: Sequence[Top]
) -> Iterator[Step]:
    """Yield the steps at which both wrote the same, then the first at which they did not, as a flip.

    What follows that step is conditioned on another text, and is left out.
    """
    for step in range(max(len(baseline_ids), len(variant_ids))):
        if step >= min(len(baseline_ids), len(variant_ids)) or baseline_ids[step] != variant_ids[step]:
            yield Step(step, None, None, is_flip=True, kl=None)
            return
        yield _step(step, baseline[step], variant[step])


def kl_at_least(baseline: Sequence[Sequence[Any]], variant: Sequence[Sequence[Any]]) -> float | None:
    """Return a lower bound of KL(baseline ‖ variant) in nats, from the most probable tokens of each.

    Tokens that both lists hold are cells of their own, and all others one cell together; a coarser partition
    never raises KL. None where a rest is not above 0, or no token is in both.

    >>> p, q = [[1, log(0.7)], [2, log(0.2)]], [[1, log(0.6)], [2, log(0.28)], [9, log(0.05)]]
    >>> round(kl_at_least(p, q), 7)
    0.0223789
    """
    others = {token: lp for token, lp in variant}  # noqa: C416 -- of pairs whose types are not known
    shared = [(exp(lp), exp(others[token])) for token, lp in baseline if token in others]
    rest_p, rest_q = (1 - sum(one[side] for one in shared) for side in (0, 1))
    if not shared or rest_p <= 0 or rest_q <= 0 or any(p <= 0 or q <= 0 for p, q in shared):
        return None
    return sum(p * log(p / q) for p, q in shared) + rest_p * log(rest_p / rest_q)


def _step(step: int, baseline: Top, variant: Top) -> Step:
    is_flip = baseline[1][0][0] != variant[1][0][0]
    return Step(step, variant[0], variant[0] - baseline[0], is_flip, kl_at_least(baseline[1], variant[1]))
