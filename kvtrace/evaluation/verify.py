"""`--verify`: the same sums by both paths, compared."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.errors import ReplayMismatchError
from kvtrace.evaluation.profiled import vectors_of
from kvtrace.evaluation.sums import TensorSums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from numpy.typing import NDArray

    from kvtrace.evaluation.ordinary import OrdinarySums
    from kvtrace.evaluation.sums import Vectors
    from kvtrace.profile.store import StoredProfile

RELATIVE_TOLERANCE: Final = 1e-9
"""Of squared sums, which are added in another order. Counts must be equal."""


def verified(
    profile: StoredProfile,
    profiled: Iterable[TensorSums | Vectors | OrdinarySums],
    direct: Iterable[TensorSums | Vectors],
    *,
    with_vectors: bool = True,
) -> Iterator[TensorSums | Vectors | OrdinarySums]:
    """Yield what a replay over the profile yields: vectors as they come, sums once all have been compared.

    Sums of ordinary channels have nothing to be compared with: `inspect --verify` recounts them.
    with_vectors: whether the profile's vectors are compared too.
    Raises ReplayMismatchError: the element-wise replay yields something else.
    """
    sums: list[TensorSums] = []
    for value in profiled:
        if isinstance(value, TensorSums):
            sums.append(value)
        else:
            yield value
    try:
        vectors = VectorCheck(profile) if with_vectors else None
        check_equal(sums, _sums_of(direct, vectors))
        if vectors:
            vectors.finish()
    except ReplayMismatchError as error:
        raise ReplayMismatchError(
            f"{profile.path}: {error}. Delete it: it is made again; if it differs then, please report this"
        ) from error
    yield from sums


def _sums_of(values: Iterable[TensorSums | Vectors], vectors: VectorCheck | None) -> Iterator[TensorSums]:
    for value in values:
        if isinstance(value, TensorSums):
            yield value
        elif vectors:
            vectors.add(value)


class VectorCheck:
    """Compares the vectors of a profile with those of the element-wise replay, as these come.

    Holds 4 bytes per vector: 1/32 of a bfloat16 trace at a head_dim of 64.
    """

    def __init__(self, profile: StoredProfile) -> None:
        self._left: dict[tuple[int, str], NDArray[np.int32]] = {}
        self._heads: dict[tuple[int, str], tuple[int, ...]] = {}
        for tensor in profile.tensors():
            record = tensor.record
            key = record.layer, record.tensor
            self._heads[key] = record.kv_heads
            self._left[key] = np.full(tensor.absmax.shape, _NO_VECTOR, np.int32)
            for vectors in vectors_of(tensor):
                columns = [record.kv_heads.index(head) for head in vectors.kv_heads]
                self._left[key][np.ix_(vectors.row, np.array(columns))] = _as_one_number(vectors)

    def add(self, vectors: Vectors) -> None:
        """Compare some vectors. Raises ReplayMismatchError."""
        key = vectors.layer, vectors.tensor
        if missing := set(vectors.kv_heads) - set(self._heads.get(key, ())):
            raise ReplayMismatchError(f"layer {key[0]} {key[1]}: the profile lacks KV head {min(missing)}")
        columns = [self._heads[key].index(head) for head in vectors.kv_heads]
        place = np.ix_(vectors.row, np.array(columns))
        differs = self._left[key][place] != _as_one_number(vectors)
        if differs.any():
            row, column = (int(i) for i in np.argwhere(differs)[0])
            raise _mismatch(key, int(vectors.row[row]), vectors.kv_heads[column])
        self._left[key][place] = _NO_VECTOR

    def finish(self) -> None:
        """Raise ReplayMismatchError where the profile has vectors that never came."""
        for key, left in self._left.items():
            if (left != _NO_VECTOR).any():
                row, column = (int(i) for i in np.argwhere(left != _NO_VECTOR)[0])
                raise _mismatch(key, row, self._heads[key][column])


_NO_VECTOR: Final = -(1 << 30)


def _as_one_number(vectors: Vectors) -> NDArray[Any]:
    return vectors.absmax_code.astype(np.int32) * 2 + vectors.has_nonfinite


def _mismatch(key: tuple[int, str], token: int, head: int) -> ReplayMismatchError:
    return ReplayMismatchError(
        f"layer {key[0]} {key[1]}, vector of token {token}, KV head {head}: its largest magnitude or its "
        "NaN and inf differ between the profile and the element-wise replay"
    )


def check_equal(profiled: Iterable[TensorSums], direct: Iterable[TensorSums]) -> None:
    """Raise ReplayMismatchError unless both hold the same layers with equal counts and squared sums."""
    by_tensor = {(sums.layer, sums.tensor): sums for sums in direct}
    for sums in profiled:
        other = by_tensor.pop((sums.layer, sums.tensor), None)
        if other is None:
            raise ReplayMismatchError(f"layer {sums.layer} {sums.tensor}: the element-wise replay lacks it")
        _compare(sums, other)
    if by_tensor:
        layer, tensor = min(by_tensor)
        raise ReplayMismatchError(f"layer {layer} {tensor}: the profile lacks it")


def _compare(sums: TensorSums, other: TensorSums) -> None:
    for left, right in ((sums.values, other.values), (sums.errors, other.errors)):
        for name in (field.name for field in fields(left)):
            a, b = np.asarray(getattr(left, name)), np.asarray(getattr(right, name))
            tolerance = RELATIVE_TOLERANCE if name.startswith("sum_sq_") else 0.0
            differs = ~np.isclose(a, b, rtol=tolerance, atol=0)
            if differs.any():
                place = tuple(int(i) for i in np.argwhere(differs)[0])
                raise ReplayMismatchError(
                    f"layer {sums.layer} {sums.tensor}, {name}[{', '.join(map(str, place))}]: the profile "
                    f"gives {a[place].item()!r}, the element-wise replay {b[place].item()!r}"
                )
