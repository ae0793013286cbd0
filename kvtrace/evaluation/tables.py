"""From sums to the rows of a run's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kvtrace.calibration.manifest import parse_manifest
from kvtrace.numerics.captured import magnitudes_of
from kvtrace.numerics.formats import find_format
from kvtrace.numerics.limits import max_in_range_code, max_unclipped_code
from kvtrace.numerics.rounding_floor import rounding_floor_db
from kvtrace.runs.schema import CANDIDATES, CELLS, GROUPS, LAYERS, REQUESTS, ROWS, SAMPLING, SCALES, VECTORS
from kvtrace.trace.completeness import rows_lost
from kvtrace.trace.strata import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.candidates.apply import AppliedScales
    from kvtrace.candidates.bind import BoundCandidate
    from kvtrace.candidates.candidate import Candidate, EngineSetup, ScaleKey
    from kvtrace.evaluation.sums import TensorSums, Vectors
    from kvtrace.runs.write import RunWriter
    from kvtrace.scales import ScaleArtifact
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import Trace


def write_candidates(run: RunWriter, bound: Sequence[BoundCandidate]) -> None:
    """Write the candidates, valid and invalid, in the order asked for."""
    artifacts = [one.candidate.artifact for one in bound]
    run.write(
        CANDIDATES,
        {
            "candidate": [one.candidate.name for one in bound],
            "ordinal": list(range(len(bound))),
            "kind": [one.candidate.kind for one in bound],
            "status": ["invalid" if one.reason else "valid" for one in bound],
            "reason": [one.reason for one in bound],
            "hypothetical": [one.hypothetical for one in bound],
            "engine": [one.candidate.engine for one in bound],
            "format": [one.candidate.format for one in bound],
            "granularity": [one.granularity for one in bound],
            "artifact": [artifact and str(artifact.path) for artifact in artifacts],
            "artifact_sha256": [artifact and artifact.sha256 for artifact in artifacts],
            "calibrated_max_length": [artifact and _calibrated_length(artifact) for artifact in artifacts],
            "note": [one.note for one in bound],
            "rounding_floor_db": [
                rounding_floor_db(one.candidate.engine, one.candidate.format) for one in bound
            ],
        },
    )


def _calibrated_length(artifact: ScaleArtifact) -> int | None:
    manifest = parse_manifest(artifact.manifest)
    return manifest.dataset.calibration.max_position + 1 if manifest else None


def write_layers(run: RunWriter, source: str, trace: Trace) -> None:
    """Write what the captured layers are."""
    layers = [trace.layers[index] for index in sorted(trace.layers)]
    copied = ("dtype", "backend", "kv_cache_dtype", "head_dim_k", "head_dim_v")
    run.write(
        LAYERS,
        {
            "source": [source] * len(layers),
            "layer": [layer.index for layer in layers],
            **{name: [getattr(layer, name) for layer in layers] for name in copied},
            "num_kv_heads": [len(layer.kv_heads) for layer in layers],
        },
    )


def write_requests_and_rows(run: RunWriter, source: str, trace: Trace) -> None:
    """Write the trace's sampling rules, requests and sampled tokens."""
    rules = [trace.sampling[number] for number in sorted(trace.sampling)]
    run.write(
        SAMPLING,
        {
            "source": [source] * len(rules),
            "sampling_id": [rule.sampling_id for rule in rules],
            "position_stride": [rule.position_stride for rule in rules],
            "request_fraction": [rule.request_fraction for rule in rules],
        },
    )
    tokens = trace.tokens
    numbers, counts = np.unique(tokens.request, return_counts=True)
    num_rows = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    requests, lost = [trace.requests[number] for number in sorted(trace.requests)], rows_lost(trace)
    copied = ("request", "workload", "client_id", "prompt_hash", "sampled", "sampling_id", "prompt_tokens",
              "output_tokens", "computed_tokens", "status")  # fmt: skip
    run.write(
        REQUESTS,
        {
            "source": [source] * len(requests),
            **{name: [getattr(request, name) for request in requests] for name in copied},
            "num_rows": [num_rows.get(request.request, 0) for request in requests],
            "num_missing": [sum(end - start for start, end in request.missing) for request in requests],
            "num_dropped": [lost[request.request] for request in requests],
        },
    )
    run.write(
        ROWS,
        {
            "source": _repeated(source, len(tokens)),
            "row": np.arange(len(tokens)),
            "request": tokens.request,
            "position": tokens.position,
            "position_octave": tokens.octave,
            "phase": _chosen(PHASES, tokens.phase),
            "sampling_id": tokens.sampling_id,
        },
    )


def write_scales(
    run: RunWriter, source: str, trace: Trace, candidate: Candidate, applied: AppliedScales
) -> None:
    """Write one candidate's scales in one trace, with the largest codes that they cover."""
    keys = list(applied.scales)
    values = [applied.scales[key].value for key in keys]
    calibrated = _calibrated_amax(candidate.artifact) if candidate.artifact else {}
    run.write(
        SCALES,
        {
            "source": _repeated(source, len(keys)),
            "candidate": _repeated(candidate.name, len(keys)),
            "layer": [layer for layer, _, _ in keys],
            "kv_head": [head for _, head, _ in keys],
            "tensor": [tensor for _, _, tensor in keys],
            "scale": values,
            "calibrated_amax": [calibrated.get(key) for key in keys],
            **_limits(trace, keys, values, candidate.setup),
            "origin": [applied.scales[key].origin for key in keys],
        },
    )


def _calibrated_amax(artifact: ScaleArtifact) -> dict[ScaleKey, float]:
    manifest = parse_manifest(artifact.manifest)
    groups = manifest.groups if manifest else ()
    return {(one.layer, one.kv_head, one.tensor): one.calibrated_amax for one in groups}


def _limits(
    trace: Trace, keys: list[tuple[int, int, str]], values: list[float | None], setup: EngineSetup | None
) -> dict[str, list[Any]]:
    """Return covered_amax and both code limits of each scale; NULL where nothing is quantized."""
    limits: dict[str, list[Any]] = {
        name: [None] * len(keys) for name in ("covered_amax", "max_in_range_code", "max_unclipped_code")
    }
    if setup is None:
        return limits
    max_value = find_format(setup.fp8_format).max_value
    for dtype in sorted({layer.dtype for layer in trace.layers.values()}):
        index = [
            i
            for i, (key, value) in enumerate(zip(keys, values, strict=True))
            if value is not None and trace.layers[key[0]].dtype == dtype
        ]
        scale = np.array([values[i] for i in index], np.float32)
        chosen = {"engine": setup.engine, "format": setup.fp8_format}
        found = {
            "covered_amax": scale * np.float32(max_value),
            "max_in_range_code": max_in_range_code(scale, dtype, **chosen),
            "max_unclipped_code": max_unclipped_code(scale, dtype, **chosen),
        }
        for name, column in found.items():
            for i, value in zip(index, column.tolist(), strict=True):
                limits[name][i] = value
    return limits


def write_cells(run: RunWriter, source: str, cells: Cells, names: Sequence[str], sums: TensorSums) -> None:
    """Write one layer's sums, K or V: a row per candidate, cell and head that has vectors."""
    rows = _SumRows(source, cells, names, sums)
    values = sums.values
    max_abs = magnitudes_of(values.max_code.clip(min=0), sums.dtype).astype(np.float64)
    run.write(
        CELLS,
        {
            **rows.columns(),
            "position_octave": rows.of_cells(cells.octave),
            "num_nonfinite": rows.of_values(values.num_nonfinite),
            "max_abs": pa.array(rows.of_values(max_abs), mask=rows.of_values(values.max_code) < 0),
        },
    )


def write_groups(run: RunWriter, source: str, cells: Cells, names: Sequence[str], sums: TensorSums) -> None:
    """Write the same by group of requests. cells: those of `find_group_cells`."""
    assert cells.request_group is not None, "the caller replays over groups"
    rows = _SumRows(source, cells, names, sums)
    run.write(GROUPS, {**rows.columns(), "request_group": rows.of_cells(cells.request_group)})


class _SumRows:
    """One layer's sums, K or V, as rows: candidate by candidate, the (cell, kv_head) that have vectors."""

    def __init__(self, source: str, cells: Cells, names: Sequence[str], sums: TensorSums) -> None:
        self._source, self._cells, self._names, self._sums = source, cells, names, sums
        self._cell, self._head = np.nonzero(sums.values.num_vectors)

    def of_cells(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.tile(array[self._cell], len(self._names))

    def of_values(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.tile(array[self._cell, self._head], len(self._names))

    def columns(self) -> dict[str, Any]:
        cells, names, sums = self._cells, self._names, self._sums
        rows, repeats = len(names) * len(self._cell), len(names)
        return {
            "source": _repeated(self._source, rows),
            "candidate": _chosen(names, np.repeat(np.arange(repeats), len(self._cell))),
            "layer": np.full(rows, sums.layer),
            "kv_head": np.tile(np.array(sums.kv_heads)[self._head], repeats),
            "tensor": _repeated(sums.tensor, rows),
            "workload": _chosen(cells.workload, np.tile(self._cell, repeats)),
            "phase": _chosen(PHASES, self.of_cells(cells.phase)),
            "sampling_id": self.of_cells(cells.sampling_id),
            **{name: self.of_values(getattr(sums.values, name)) for name in _VALUE_COLUMNS},
            **{
                name: getattr(sums.errors, name)[:, self._cell, self._head].reshape(-1)
                for name in _ERROR_COLUMNS
            },
        }


_VALUE_COLUMNS = ("num_vectors", "num_values", "sum_sq_signal")
_ERROR_COLUMNS = ("num_out_of_range", "num_clipped", "num_flushed", "sum_sq_error", "sum_sq_clip_error")


def write_vectors(run: RunWriter, source: str, vectors: Vectors) -> None:
    """Write some vectors of one layer, K or V, head by head."""
    num_rows, num_heads = vectors.absmax_code.shape
    codes = vectors.absmax_code.T.reshape(-1)
    run.write(
        VECTORS,
        {
            "source": _repeated(source, len(codes)),
            "row": np.tile(vectors.row, num_heads),
            "layer": np.full(len(codes), vectors.layer),
            "kv_head": np.repeat(np.array(vectors.kv_heads), num_rows),
            "tensor": _repeated(vectors.tensor, len(codes)),
            "absmax_code": pa.array(codes, mask=codes < 0),
            "has_nonfinite": vectors.has_nonfinite.T.reshape(-1),
        },
    )


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _chosen(texts: Sequence[str], index: NDArray[Any]) -> pa.Array:
    return pa.array(list(texts), pa.string()).take(pa.array(index))
