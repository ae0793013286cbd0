"""What each candidate's K, V and Q do to the attention of captured queries: errors by query and head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import torch

from kvtrace.attention.logits import UNSEEN, blocks, exponentials, logits, require_replayable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from kvtrace.attention.logits import Block
    from kvtrace.trace.queries import AttentionValues

Metrics = Literal["output", "all"]
TOP_KEYS: Final = 8
"""Keys with the largest logits whose overlap is counted; all that a query sees where they are fewer."""
_HELD_BYTES: Final = 256 << 20
"""Of the exact logits and probabilities that are kept while candidates are compared with them."""


class Restored(NamedTuple):
    """What a candidate's cache gives back. k, v: [kv_head, key, head_dim]; q: as `Exact.q`; all float32."""

    k: Tensor
    v: Tensor
    q: Tensor | None = None
    """None: the queries are as they were captured."""


class Exact(NamedTuple):
    """A request's values in one layer, on the device, float32.

    q: [kv_head, group, query, head_dim]. k, v: [kv_head, key, head_dim].
    """

    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True)
class AttentionErrors:
    """Errors of some candidates in one layer, for one request. All arrays are float64.

    Axes are [candidate, query, query_head]; those without a candidate's are [query, query_head]. What only
    the metrics `all` have is NaN where they were not asked for. o is the output of exact K, V and Q, ô the
    candidate's, Δo = ô − o; p and s are probabilities and logits.
    """

    position: NDArray[np.int32]
    """[query]: those that see a key; the others are left out."""
    num_keys: NDArray[np.int64]
    """[query]: how many keys each sees."""
    sum_o2: NDArray[np.float64]
    """‖o‖²."""
    sum_do2: NDArray[np.float64]
    """‖Δo‖²."""
    sum_o_do: NDArray[np.float64]
    """⟨o, Δo⟩: over ‖o‖² the systematic part of the error, below 0 where outputs shrink."""
    sum_do2_k: NDArray[np.float64]
    """‖Σ (p̂ − p) v‖², p̂ from K̂ alone."""
    sum_do2_v: NDArray[np.float64]
    """‖Σ p (v̂ − v)‖²."""
    sum_do2_q: NDArray[np.float64]
    """‖Σ (p̂ − p) v‖², p̂ from q̂ alone; 0 where queries are not quantized."""
    sum_kl: NDArray[np.float64]
    """Σ p (ln p − ln p̂), nats."""
    sum_fisher: NDArray[np.float64]
    """Variance under p of ŝ − s, nats²: twice the KL where it is small."""
    num_flips: NDArray[np.float64]
    """1 where another key has the largest logit. Ties: the first position."""
    top_overlap: NDArray[np.float64]
    """Share of the `TOP_KEYS` keys of largest logits that are among the candidate's."""
    projected: NDArray[np.float64] | None
    """‖W_O Δo‖² over all query heads, [candidate, query]; None without W_O."""
    projected_output: NDArray[np.float64] | None
    """‖W_O o‖², [query]; None without W_O."""


def replay_layer(
    values: AttentionValues,
    quantizers: Sequence[Callable[[Exact], Restored]],
    *,
    metrics: Metrics = "all",
    device: str = "cpu",
    projection: Tensor | None = None,
) -> AttentionErrors:
    """Compare the attention output of each candidate with that of exact K, V and Q.

    quantizers: for each candidate, what its cache makes of exact values. projection: W_O,
    [hidden, query_head · head_dim_v], query heads in the order of `values.layer.query_heads`. float32
    throughout, sums over head_dim and over keys too; what is returned is float64. `sum_kl` is right to
    about 1e-6.
    Raises UnsupportedAttentionError: the layer's logits depend on what the trace does not hold.
    """
    require_replayable(values.layer)
    layer = _Layer(values, device)
    tables = {name: np.full(layer.shape(len(quantizers)), np.nan) for name in _OF_CANDIDATES}
    sum_o2 = np.empty(layer.shape(0)[1:])
    projected = np.empty((1 + len(quantizers), len(layer.position)))
    """‖W_O x‖² of the exact output and of each candidate's error."""
    w_o = None if projection is None else projection.to(device, torch.float32).T.contiguous()
    for group in layer.groups():
        kept = [(block, layer.exact(block, metrics)) for block in group]
        for block, exact in kept:
            output = layer.by_query(exact.o)
            sum_o2[block.queries] = _sum_squares(output).cpu().numpy()
            if w_o is not None:
                projected[0, block.queries] = _projected(output, w_o)
        for number, quantize in enumerate(quantizers):
            restored = quantize(layer.values)
            for block, exact in kept:
                found, error = layer.compare(block, exact, restored)
                for name, by_head in found.items():
                    tables[name][number, block.queries] = by_head
                if w_o is not None:
                    projected[1 + number, block.queries] = _projected(error, w_o)
    return AttentionErrors(
        position=layer.position_on_host,
        num_keys=layer.num_keys,
        sum_o2=sum_o2,
        projected=None if w_o is None else projected[1:],
        projected_output=None if w_o is None else projected[0],
        **tables,
    )


_OF_CANDIDATES: Final = (
    "sum_do2",
    "sum_o_do",
    "sum_do2_k",
    "sum_do2_v",
    "sum_do2_q",
    "sum_kl",
    "sum_fisher",
    "num_flips",
    "top_overlap",
)


class _ExactBlock(NamedTuple):
    """What candidates are compared with. Rows are group · query."""

    o: Tensor
    weights: _ExactWeights | None
    """None where outputs alone are compared."""


class _ExactWeights(NamedTuple):
    s: Tensor
    p: Tensor
    log_total: Tensor
    """ln Σ exp(s), sinks included, [kv_head, row]."""
    top: Tensor
    """[kv_head, row, TOP_KEYS]: keys by falling logit."""
    is_seen: Tensor
    """Of these, which the query sees: one at an early position sees fewer."""


class _Layer:
    """One request's values in one layer, laid out by KV head."""

    def __init__(self, values: AttentionValues, device: str) -> None:
        layer = values.layer
        order = np.argsort(np.asarray(layer.kv_head_of), kind="stable")
        self._order = torch.as_tensor(order, device=device)
        kv_heads = len(layer.kv_heads)
        self._group = len(order) // kv_heads
        seen = np.searchsorted(values.key_position, values.query_position, side="right")
        since = np.zeros_like(seen)
        if layer.sliding_window is not None:
            oldest = values.query_position.astype(np.int64) - layer.sliding_window
            since = np.searchsorted(values.key_position, oldest, side="right")
        has_key = seen > since
        self.num_keys = (seen - since)[has_key]
        self.position_on_host = values.query_position[has_key]
        self.position = torch.as_tensor(self.position_on_host.astype(np.int64), device=device)
        self._key_position = torch.as_tensor(values.key_position.astype(np.int64), device=device)
        self._layer = layer
        q = torch.as_tensor(values.q[has_key][:, order], device=device)
        self.values = Exact(
            q.permute(1, 0, 2).reshape(kv_heads, self._group, len(q), -1).contiguous(),
            *(torch.as_tensor(x, device=device).transpose(0, 1).contiguous() for x in (values.k, values.v)),
        )
        self._sinks = None
        if layer.sinks is not None:
            sinks = torch.tensor(layer.sinks, dtype=torch.float32, device=device)[self._order]
            self._sinks = sinks.reshape(kv_heads, self._group)

    def shape(self, num_candidates: int) -> tuple[int, int, int]:
        """Return the shape of a table."""
        return num_candidates, len(self.position), len(self._order)

    def groups(self) -> list[list[Block]]:
        """Return all blocks, in groups whose exact logits and probabilities may be kept together."""
        groups: list[list[Block]] = []
        held = _HELD_BYTES
        window, num_heads = self._layer.sliding_window, len(self._order)
        for block in blocks(self.position, self._key_position, window, num_heads):
            rows = block.queries.stop - block.queries.start
            num_bytes = 8 * num_heads * rows * (block.keys.stop - block.keys.start)
            if not groups or held + num_bytes > _HELD_BYTES:
                groups.append([])
                held = 0
            groups[-1].append(block)
            held += num_bytes
        return groups

    def exact(self, block: Block, metrics: Metrics) -> _ExactBlock:
        """Return the attention of exact values."""
        s = self._logits(self.values.q, self.values.k, block)
        p, total, top = exponentials(s if metrics == "output" else s.clone(), self._sinks_of(block))
        # Divided in the end, as for a candidate: equal K and V then give equal bits, and an error of 0.
        o = torch.bmm(p, self.values.v[:, block.keys]).div_(total)
        if metrics == "output":
            return _ExactBlock(o, None)
        largest = s.topk(min(TOP_KEYS, s.shape[-1]))
        log_total, is_seen = (total.log() + top).squeeze(-1), largest.values > UNSEEN / 2
        return _ExactBlock(o, _ExactWeights(s, p.div_(total), log_total, largest.indices, is_seen))

    def compare(
        self, block: Block, exact: _ExactBlock, restored: Restored
    ) -> tuple[dict[str, NDArray[np.float64]], Tensor]:
        """Return a candidate's errors by name, [query, query_head] each, and Δo by query."""
        q = self.values.q if restored.q is None else restored.q
        s = self._logits(q, restored.k, block)
        found = _of_logits(s, exact.weights) if exact.weights else {}
        e, total, top = exponentials(s, self._sinks_of(block))
        if exact.weights:
            found["sum_kl"] += (total.log() + top).squeeze(-1) - exact.weights.log_total
            found |= self._parts(block, exact.o, exact.weights.p, restored, e, total)
        error = torch.bmm(e, restored.v[:, block.keys]).div_(total).sub_(exact.o)
        found["sum_do2"] = _sum_squares(error)
        found["sum_o_do"] = (exact.o * error).sum(-1, dtype=torch.float64)
        by_query = self.by_query(torch.stack(list(found.values()), dim=-1)).cpu().numpy()
        return dict(zip(found, np.moveaxis(by_query, -1, 0), strict=True)), self.by_query(error)

    def by_query(self, rows: Tensor) -> Tensor:
        """Return [query, query_head, …] of [kv_head, group · query, …], heads by their global ids."""
        by_head = rows.reshape(len(self._order), -1, *rows.shape[2:])
        heads = torch.empty_like(by_head)
        heads[self._order] = by_head
        return heads.transpose(0, 1)

    def _logits(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        scaled = q[:, :, block.queries] * self._layer.softmax_scale
        return logits(scaled, k, block, self._layer)

    def _sinks_of(self, block: Block) -> Tensor | None:
        if self._sinks is None:
            return None
        rows = block.queries.stop - block.queries.start
        return self._sinks.unsqueeze(-1).expand(-1, -1, rows).reshape(len(self._sinks), -1, 1)

    def _parts(
        self, block: Block, o: Tensor, p: Tensor, restored: Restored, e: Tensor, total: Tensor
    ) -> dict[str, Tensor]:
        """Return the error by K alone, V alone and Q alone. e, total: of the candidate's K and Q."""
        v = self.values.v[:, block.keys]
        of_v = torch.bmm(p, restored.v[:, block.keys] - v)
        if restored.q is None:
            of_k, of_q = torch.bmm(e, v).div_(total).sub_(o), torch.zeros_like(of_v)
        else:
            of_k = self._output(self.values.q, restored.k, block).sub_(o)
            of_q = self._output(restored.q, self.values.k, block).sub_(o)
        return {
            "sum_do2_k": _sum_squares(of_k),
            "sum_do2_v": _sum_squares(of_v),
            "sum_do2_q": _sum_squares(of_q),
        }

    def _output(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        e, total, _ = exponentials(self._logits(q, k, block), self._sinks_of(block))
        return torch.bmm(e, self.values.v[:, block.keys]).div_(total)


def _of_logits(s: Tensor, exact: _ExactWeights) -> dict[str, Tensor]:
    """Return what depends on a candidate's logits alone; of the KL, all but its normalisation."""
    delta = s - exact.s
    weighted = exact.p * delta
    mean = weighted.sum(-1, dtype=torch.float64)
    variance = (weighted.mul_(delta)).sum(-1, dtype=torch.float64) - mean.square()
    top = s.topk(exact.top.shape[-1]).indices
    shared = (top.unsqueeze(-2) == exact.top.unsqueeze(-1)).any(-1) & exact.is_seen
    return {
        "sum_kl": -mean,
        "sum_fisher": variance.clamp_(min=0),
        "num_flips": (s.argmax(-1) != exact.s.argmax(-1)).double(),
        "top_overlap": shared.sum(-1).double() / exact.is_seen.sum(-1),
    }


def _sum_squares(values: Tensor) -> Tensor:
    return values.square().sum(-1, dtype=torch.float64)


def _projected(values: Tensor, w_o: Tensor) -> NDArray[np.float64]:
    """Return ‖W_O x‖² by query. values: [query, query_head, head_dim_v]. w_o: transposed."""
    squares: NDArray[np.float64] = _sum_squares(values.reshape(len(values), -1) @ w_o).cpu().numpy()
    return squares
