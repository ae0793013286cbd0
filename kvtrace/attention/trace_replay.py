"""The attention of a whole trace, layer by layer and request by request, under some candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.attention.logits import require_replayable
from kvtrace.attention.projection import read_projection
from kvtrace.attention.quantizers import quantizer_of
from kvtrace.attention.replay import replay_layer
from kvtrace.attention.residual import ResidualSums
from kvtrace.errors import InputError
from kvtrace.trace.queries import DEFAULT_BATCH_BYTES, CapturedQueries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvtrace.attention.replay import AttentionErrors, Metrics
    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.scales.safetensors import TensorRef
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class LayerErrors:
    """One request's errors in one layer."""

    layer: int
    request: int
    is_dense: bool
    """Every key that the queries see was there; else attention was renormalised over those that were."""
    errors: AttentionErrors


def replay_attention(
    trace: Trace,
    candidates: Sequence[AppliedScales],
    *,
    metrics: Metrics = "all",
    device: str = "cpu",
    projections: Mapping[int, TensorRef] | None = None,
    most_bytes: int = DEFAULT_BATCH_BYTES,
) -> Iterator[LayerErrors]:
    """Yield the errors of all candidates, in the order given, for each layer and request with queries.

    projections: where W_O of each layer lies (`find_projections`). most_bytes: of K, V and Q held at a time.
    Raises InputError: the trace has no queries, or one request has too many. UnsupportedAttentionError: a
    layer cannot be replayed; before anything is yielded. ArtifactError: a W_O that cannot be used.
    IntegrityError: a chunk is missing or damaged.
    """
    if not trace.attention:
        raise InputError(
            f"{trace.path}: holds no queries, so what errors do to attention cannot be told. Capture with "
            '"queries": "probe" (kvtrace capture run --queries probe)'
        )
    queries = CapturedQueries(trace)
    for layer in queries.layers.values():
        require_replayable(layer)
    quantizers = {
        index: [quantizer_of(applied, layer, trace.layers[index].dtype) for applied in candidates]
        for index, layer in queries.layers.items()
    }
    for requests in queries.batches(most_bytes):
        for index, layer in queries.layers.items():
            num_inputs = len(layer.query_heads) * trace.layers[index].head_dim_v
            w_o = read_projection(projections, index, num_inputs) if projections else None
            for values in queries.read(index, requests):
                errors = replay_layer(
                    values, quantizers[index], metrics=metrics, device=device, projection=w_o
                )
                if len(errors.position):
                    yield LayerErrors(index, values.request, values.is_dense, errors)


def residual_sums(replayed: Iterator[LayerErrors]) -> ResidualSums:
    """Add a replay up over its requests."""
    sums = ResidualSums()
    for part in replayed:
        sums.add(part.layer, part.errors)
    return sums
