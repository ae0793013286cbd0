"""R: how large the cache's error is against the residual stream, by layer, and what was known for it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvtrace.attention.replay import AttentionErrors

Knowledge = Literal["residual", "projected", "heads"]
"""What a number rests on, best first. Two numbers of different kinds are never compared.

residual: Σ over layers of w_l · ‖W_O Δo‖² / ‖W_O o‖², with w_l = ‖W_O o‖² / ‖h‖² and h the residual stream
after the layer's attention. projected: the same without w_l. heads: the mean over layers and query heads of
‖Δo‖² / ‖o‖²: without W_O.
"""


@dataclass(frozen=True, slots=True)
class ResidualError:
    """One number a candidate, and what each layer adds to it."""

    knowledge: Knowledge
    layers: tuple[int, ...]
    by_layer: NDArray[np.float64]
    """[candidate, layer]; NaN where a layer's outputs are all 0."""

    @property
    def total(self) -> NDArray[np.float64]:
        """Return R, [candidate]: the sum over layers."""
        total: NDArray[np.float64] = self.by_layer.sum(axis=1)
        return total


class ResidualSums:
    """Adds errors of requests up, by layer. Ratios are of sums, so each query counts by its output."""

    def __init__(self) -> None:
        self._heads: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
        self._projected: dict[int, list[NDArray[np.float64]]] = defaultdict(list)

    def add(self, layer: int, errors: AttentionErrors) -> None:
        """Add one request's errors in one layer. All must have the same candidates."""
        of_candidates = errors.sum_do2.sum(axis=1)
        self._add(self._heads, layer, np.vstack([errors.sum_o2.sum(axis=0)[None], of_candidates]))
        if errors.projected is not None and errors.projected_output is not None:
            sums = [errors.projected_output.sum(keepdims=True), errors.projected.sum(axis=1)]
            self._add(self._projected, layer, np.concatenate(sums))

    def error(self, weights: Mapping[int, float] | None = None) -> ResidualError:
        """Return R by the best that is known of every layer alike.

        weights: w_l by layer. Where a layer lacks its W_O, none counts by it.
        """
        layers = tuple(sorted(self._heads))
        if not layers or not all(layer in self._projected for layer in layers):
            ratios = [_ratio(self._heads[layer][0]).mean(axis=1) / len(layers) for layer in layers]
            return ResidualError("heads", layers, _by_layer(ratios))
        ratios = [_ratio(self._projected[layer][0]) for layer in layers]
        if weights is None or not all(layer in weights for layer in layers):
            return ResidualError("projected", layers, _by_layer(ratios))
        weighted = [weights[layer] * ratio for layer, ratio in zip(layers, ratios, strict=True)]
        return ResidualError("residual", layers, _by_layer(weighted))

    @staticmethod
    def _add(sums: dict[int, list[NDArray[np.float64]]], layer: int, more: NDArray[np.float64]) -> None:
        if sums[layer]:
            sums[layer][0] += more
        else:
            sums[layer].append(more)


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the candidates' sums over the exact one, which comes first. An output of 0 has no ratio."""
    exact = np.where(sums[:1] > 0, sums[:1], np.nan)
    ratio: NDArray[np.float64] = sums[1:] / exact
    return ratio


def _by_layer(ratios: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.stack(ratios, axis=1) if ratios else np.empty((0, 0))
