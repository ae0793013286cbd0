"""What a trace says of attention: how a layer turns Q, K and V into its output, and which queries are kept.

Part of the format (`kvtrace.trace.format`), since 1.3. This module is loaded inside the serving engine.
"""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, Self

from pydantic import ValidationInfo, model_validator

from kvtrace.trace.sealed import Name, Record, Size, between, is_read, repeated

QueryMode = Literal["none", "stored", "probe"]
QUERY_STRIDE: Final = 4
"""With `stored`, Q is kept at the first of so many sampled positions of a request."""
FIRST_POSITIONS: Final = 4
"""K and V of these are kept of every request with queries: attention is renormalised over what is kept, and
without the first tokens, on which much of it rests, errors come out 2.6 times too large (one small model)."""


class AttentionRecord(Record):
    """How the engine computes one layer's attention on one rank."""

    query_heads: tuple[Size, ...]
    """Global ids, in the order of the arrays' query_head axis."""
    kv_head_of: tuple[Size, ...]
    """The global KV head that each of `query_heads` reads."""
    softmax_scale: Annotated[float, between(1e-9, 1e9)]
    """Logits are this times q · k."""
    soft_cap: Annotated[float, between(1e-9, 1e9)] | None = None
    """Logits x become soft_cap · tanh(x / soft_cap); None: as they are."""
    sinks: tuple[float, ...] | None = None
    """One logit a query head that takes part in the softmax and has no value; None: the layer has none."""
    query_is_fp8: bool = False
    """True: the engine had divided Q by the layer's q_scale and rounded it to FP8, and these values are
    stored: a reader multiplies by q_scale."""
    not_replayable: tuple[Name, ...] = ()
    """What else shapes the logits and is not recorded here, such as `alibi_slopes`: no replay without it."""

    @model_validator(mode="after")
    def _agrees_with_itself(self, info: ValidationInfo) -> Self:
        if not is_read(info):
            return self
        if not self.query_heads:
            raise ValueError("query_heads is empty")
        if (head := repeated(self.query_heads)) is not None:
            raise ValueError(f"query_heads has {head} twice")
        for name in ("kv_head_of", "sinks"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.query_heads):
                raise ValueError(
                    f"{name} has {len(values)} values, expected one for each of {len(self.query_heads)} "
                    "query heads"
                )
        if self.sinks is not None and not all(math.isfinite(sink) for sink in self.sinks):
            raise ValueError("sinks has a value that is not finite")
        return self


class ResidualRecord(Record):
    """What one layer's attention adds to the residual stream, over the captured queries."""

    layer: Annotated[int, between(0, 9999)]
    num_queries: Annotated[int, between(1, 2**53)]
    sum_ratio: Annotated[float, between(0, 1e300)]
    """Σ ‖W_O o‖² / ‖h‖²; h is the residual stream after the layer's attention was added."""


def queries_of_stored(offset: int, stride: int, start: int, end: int) -> range:
    """Return the positions in [start, end) at which `stored` keeps Q of a request.

    >>> list(queries_of_stored(offset=3, stride=16, start=0, end=200))
    [3, 67, 131, 195]
    """
    step = QUERY_STRIDE * stride
    return range(start + (offset - start) % step, end, step)
