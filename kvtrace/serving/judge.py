"""The one outcome of a served request, and the latencies that it is judged by, in whole microseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from kvtrace.serving.contract import ClassLimits
    from kvtrace.serving.record import Served

Outcome = Literal["accepted", "late", "wrong", "unjudged", "rejected", "failed", "unfinished"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""As they are shown; `judge` says which comes first."""


class Unmeasured(Exception):  # noqa: N818 -- no error: what lacks
    """A time that a limit needs is not in the file; the text names it."""


def judge(served: Served, limits: ClassLimits, deadline_us: int) -> Outcome:
    """Return a request's outcome, the first that fits.

    rejected; failed, timed out or cancelled; not ended by the deadline; not judged; wrong; right and too
    late; accepted. Raises Unmeasured: the request was completed, and a limit needs what the file has not.
    """
    if served.status == "rejected":
        return "rejected"
    if served.status != "completed":
        return "failed"
    if served.done_us is None:
        raise Unmeasured("the end of requests")
    if served.done_us > deadline_us:
        return "unfinished"
    if served.accepted is None:
        return "unjudged"
    if not served.accepted:
        return "wrong"
    return "accepted" if in_time(served, limits) else "late"


def in_time(served: Served, limits: ClassLimits, *, from_dispatch: bool = False) -> bool:
    """Return whether a completed request keeps its class's limits; the clock starts at the planned arrival.

    from_dispatch: start it when the request was sent, as most tools do. Raises Unmeasured as `judge` does.
    """
    start = served.dispatched_us if from_dispatch else served.planned_us
    if start is None or served.done_us is None:
        raise Unmeasured("when requests were sent")
    if limits.e2e_us is not None and served.done_us - start > limits.e2e_us:
        return False
    if limits.ttft_us is not None:
        if served.first_us is None:
            raise Unmeasured("the time of the first token")
        if served.first_us - start > limits.ttft_us:
            return False
    if limits.tpot_us is None:
        return True
    after = after_first(served)
    if after is None:
        raise Unmeasured("the number of output tokens, or the time of the first")
    taken_us, num_tokens = after
    return taken_us <= limits.tpot_us * num_tokens


def after_first(served: Served) -> tuple[int, int] | None:
    """Return the time from the first token to the last and how many came in it; None: it is not told.

    Their ratio is TPOT. Where no time of the last token is known the answer's end stands for it. An answer of
    one token takes (0, 0).
    """
    last = served.last_us if served.last_us is not None else served.done_us
    if served.output_tokens is None or served.first_us is None or last is None:
        return None
    if served.output_tokens <= 1:
        return (0, 0)
    return (last - served.first_us, served.output_tokens - 1)
