"""The parts of all evidence that are of this candidate, this baseline and this policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.decide.decision import WayBack

if TYPE_CHECKING:
    from kvtrace.decide.evidence import Found
    from kvtrace.gate.outcome import CheckOutcome
    from kvtrace.quality.comparison import VariantQuality
    from kvtrace.serving.report import VariantGoodput, VariantPair


def way_back(found: Found) -> WayBack | None:
    """Return the contract's reading of the room for the baseline; None: it was not given."""
    report = found.capacity
    if report is None or report.rollback is None:
        return None
    back, basis = report.rollback, found.contract.capacity.rollback
    one = next((part for part in back.headroom if part.basis == basis), None)
    if one is None:
        return None
    tokens = {part.label: part.num_tokens for part in report.formats}
    return WayBack(
        basis=basis,
        limit=back.limit,
        fits=one.fits,
        limit_to_set=back.limit if one.fits else one.largest_limit,
        candidate_tokens=report.formats[-1].num_tokens if report.formats else None,
        baseline_tokens=tokens.get(back.baseline),
    )


def quality_of(found: Found) -> VariantQuality | None:
    """Return what was found of the candidate's answers; None: they were not compared with this baseline."""
    if found.quality is None or found.quality.baseline != found.baseline:
        return None
    return next((one for one in found.quality.variants if one.variant == found.candidate), None)


def pair_of(found: Found) -> VariantPair | None:
    """Return the candidate against the baseline."""
    return next((one for one in found.goodput.pairs if one.candidate == found.candidate), None)


def variant_of(found: Found, name: str) -> VariantGoodput:
    """Return one of the two variants."""
    return next(one for one in found.goodput.variants if one.variant == name)


def own_check(found: Found) -> CheckOutcome | None:
    """Return the check where it is of this candidate, by this very policy."""
    check = found.check
    if check is None or (check.candidate, check.policy.sha256) != (found.candidate, found.contract.sha256):
        return None
    return check


def same_policy(found: Found) -> bool:
    """Return whether answers were compared by this very policy."""
    return found.quality is not None and found.quality.policy_sha256 == found.contract.sha256
