"""What the compiled form of a coding is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Kernel(NamedTuple):
    """A compiled function, and what it needs beside the values."""

    function: Callable[..., None]
    """(x, scale, parameters, restored): see `fill`."""
    parameters: tuple[Any, ...]
    """Numbers and arrays: bits, signs, levels."""

    def fill(self, x: NDArray[Any], scale: NDArray[Any], restored: NDArray[Any]) -> None:
        """Write what attention reads back for `x` to `restored`.

        x and restored: [num_vectors, head_dim] float32, contiguous, x finite. scale: [num_vectors] float32,
        what `Coding.round_trip` takes.
        """
        # The kernels index without bounds checks.
        assert x.shape == restored.shape == (len(scale), x.shape[1]), "not one scale and vector for each"
        self.function(x, scale, self.parameters, restored)
