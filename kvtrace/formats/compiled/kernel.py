"""What the compiled form of a coding is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Kernel(NamedTuple):
    """A compiled function, and what it needs beside the values."""

    function: Callable[[NDArray[Any], NDArray[Any], tuple[Any, ...], NDArray[Any]], None]
    """(x, scale, parameters, out): writes x̂ to out. x and out: [num_vectors, head_dim] float32, all finite;
    scale: [num_vectors] float32, what `Coding.round_trip` takes."""
    parameters: tuple[Any, ...]
    """Numbers and arrays: bits, signs, levels."""

    def fill(self, x: NDArray[Any], scale: NDArray[Any], out: NDArray[Any]) -> None:
        """Write what attention reads back for `x` to `out`."""
        self.function(x, scale, self.parameters, out)
