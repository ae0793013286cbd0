"""Finds, in an engine's first steps, layers whose cache writes never come through the hook. It needs no vllm.

Some models write their cache themselves and call attention without K and V, and whether they do can depend on
the device, the cache dtype or the batch, so that no start-up check sees it. Such a layer's rows cannot be
captured, and a trace without one layer is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

STEPS: Final = 8
"""A fault of one step must not end a capture."""


class FirstSteps:
    """Knows which layers have not been seen yet, until all have.

    layers: names of the hooked layers.
    """

    def __init__(self, layers: Iterable[str]) -> None:
        self._unseen = tuple(layers)
        self._steps = 0

    def note(self, silent: Iterable[str]) -> str | None:
        """Note a step with planned rows and its silent layers. Return why to stop, once that is sure."""
        if not self._unseen:
            return None
        self._steps += 1
        silent = set(silent)
        self._unseen = tuple(name for name in self._unseen if name in silent)
        if self._unseen and self._steps >= STEPS:
            name, *more = self._unseen
            others = f" and {len(more)} more layers" if more else ""
            return (
                f"in {self._steps} steps the hook of layer {name}{others} saw no token: the model writes the "
                "cache itself, or calls attention without K and V"
            )
        return None
