"""Small real traces from given arrays, written by the capture plug-in's own writer."""

from __future__ import annotations

import time
import zlib
from itertools import groupby
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from kvtrace_capture.writer import StepRows, TraceWriter

from kvtrace.trace.format import (
    REQUESTS_FILE,
    SAMPLING_FILE,
    TRACE_FILE,
    EngineRecord,
    LayerRecord,
    ModelRecord,
    PrivacyRecord,
    RankRecord,
    RequestRecord,
    SamplingRecord,
    TraceRecord,
    rank_directory,
    seal,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

STORED = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def bits(values: NDArray[Any], dtype: str = "bfloat16") -> NDArray[Any]:
    """Return float values as the trace stores them: uint16 bits of bf16 or fp16, or float32."""
    stored = np.asarray(values).astype(STORED[dtype])
    return stored if dtype == "float32" else stored.view(np.uint16)


def request(number: int, *, prompt_tokens: int, **fields: Any) -> RequestRecord:
    """Return a finished, sampled request; every position sampled unless told otherwise."""
    output_tokens = fields.pop("output_tokens", 0)
    return RequestRecord(
        request=number,
        **{
            "workload": "chat",
            "sampled": True,
            "sampling_id": 0,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "computed_tokens": prompt_tokens + output_tokens,
            "status": "stop",
            "arrived_at": 1.7e9 + number,
        }
        | fields,
    )


def trace_id_of(path: Path) -> str:
    """Return an id of its own for each place: two traces of one id are one capture."""
    return f"fabricated-{zlib.crc32(str(path).encode()):08x}"


def fabricate_trace(
    path: Path,
    tensors: Mapping[tuple[int, str], NDArray[Any]],
    *,
    request_of_row: Sequence[int],
    position_of_row: Sequence[int],
    requests: Sequence[RequestRecord],
    step_of_row: Sequence[int] | None = None,
    sampling: Sequence[SamplingRecord] | None = None,
    dtype: str = "bfloat16",
    kv_cache_dtype: str = "auto",
    cache_dtype_of: Mapping[int, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    scales: Mapping[tuple[int, str], Sequence[float]] | None = None,
    ranks: Sequence[Sequence[int]] | None = None,
    rows_of_rank: Sequence[Sequence[int]] | None = None,
    rows_per_chunk: int = 64,
    kept_in_bf16: Collection[int] = (),
    backend: str = "FABRICATED",
    device: str = "cpu",
    model: Mapping[str, Any] | None = None,
) -> Path:
    """Write a trace and return its path.

    tensors: (layer, "k" | "v") → [num_rows, num_kv_heads, head_dim] floats, rounded to `dtype`.
    scales: effective scale(s) of (layer, tensor), one or one per KV head; 1.0 where absent.
    ranks: global KV heads of each rank; one rank with all heads by default.
    rows_of_rank: the rows each rank stores, in its order; all by default.
    model: fields of the model's record that differ from what the tensors show. settings: the engine's.
    cache_dtype_of: layers whose cache dtype is not `kv_cache_dtype`. A layer whose tensors have fewer heads
    than the widest has fewer KV heads.
    kept_in_bf16: layers whose cache is of the model's own dtype whatever `kv_cache_dtype` says.
    """
    num_rows = len(next(iter(tensors.values())))
    num_heads = max(values.shape[1] for values in tensors.values())
    heads_of = {layer: tensors[layer, "k"].shape[1] for layer, _ in tensors}
    ranks = ranks or [list(range(num_heads))]
    rows_of_rank = rows_of_rank or [list(range(num_rows))] * len(ranks)
    steps = np.asarray(step_of_row if step_of_row is not None else [0] * num_rows)
    sampling_of_request = {r.request: r.sampling_id for r in requests}
    layers = sorted({layer for layer, _ in tensors})
    path.mkdir(parents=True)
    _write_records(
        path,
        requests,
        sampling,
        tensors,
        dtype,
        kv_cache_dtype,
        len(ranks),
        device,
        model or {},
        settings or {},
    )
    for rank, heads in enumerate(ranks):
        record = RankRecord(
            trace_id=trace_id_of(path),
            rank=rank,
            tp_rank=rank,
            rows_per_chunk=rows_per_chunk,
            layers=tuple(
                LayerRecord(
                    index=layer,
                    name=f"model.layers.{layer}.self_attn.attn",
                    kv_heads=tuple(head for head in heads if head < heads_of[layer]),
                    head_dim_k=tensors[layer, "k"].shape[2],
                    head_dim_v=tensors[layer, "v"].shape[2],
                    dtype=dtype,  # type: ignore[arg-type]
                    backend=backend,
                    implementation="none",
                    kv_cache_dtype="auto"
                    if layer in kept_in_bf16
                    else (cache_dtype_of or {}).get(layer, kv_cache_dtype),
                    block_size=16,
                    k_scale=_scales_of(scales, layer, "k", heads),
                    v_scale=_scales_of(scales, layer, "v", heads),
                )
                for layer in layers
            ),
        )
        writer = TraceWriter(path / rank_directory(rank), record, flush_seconds=3600)
        for step, group in groupby(rows_of_rank[rank], key=lambda row: int(steps[row])):
            rows = list(group)
            numbers = [request_of_row[row] for row in rows]
            appended = writer.append(
                StepRows(
                    request=np.array(numbers, dtype=np.int32),
                    position=np.array([position_of_row[row] for row in rows], dtype=np.int32),
                    sampling_id=np.array([sampling_of_request.get(n, 0) for n in numbers], dtype=np.int32),
                    step=step,
                    tensors={
                        key: bits(
                            values[np.ix_(rows, [head for head in heads if head < values.shape[1]])], dtype
                        )
                        for key, values in tensors.items()
                    },
                )
            )
            assert appended
        writer.close()
        assert writer.failure is None
    return path


def _write_records(
    path: Path,
    requests: Sequence[RequestRecord],
    sampling: Sequence[SamplingRecord] | None,
    tensors: Mapping[tuple[int, str], NDArray[Any]],
    dtype: str,
    kv_cache_dtype: str,
    num_ranks: int,
    device: str,
    model: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    _, num_heads, head_dim = next(iter(tensors.values())).shape
    record = TraceRecord(
        trace_id=trace_id_of(path),
        created_at=time.time(),
        model=ModelRecord(
            dtype=dtype,  # type: ignore[arg-type]
            **{
                "name": "fabricated",
                "num_layers": len({layer for layer, _ in tensors}),
                "num_attention_heads": num_heads,
                "num_kv_heads": num_heads,
                "head_dim": head_dim,
                "max_model_len": 8192,
            }
            | dict(model),
        ),
        engine=EngineRecord(
            name="fabricated",
            version="0",
            torch_version="0",
            kvtrace_version="0",
            device=device,
            kv_cache_dtype=kv_cache_dtype,
            block_size=16,
            tensor_parallel_size=num_ranks,
            settings=dict(settings),
        ),
        privacy=PrivacyRecord(key_id="00000000"),
    )
    rules = sampling or [SamplingRecord(sampling_id=0, started_at=1.7e9, position_stride=1)]
    (path / TRACE_FILE).write_text(seal(record, indent=1))
    (path / REQUESTS_FILE).write_text("".join(seal(r) + "\n" for r in requests))
    (path / SAMPLING_FILE).write_text("".join(seal(r) + "\n" for r in rules))


def _scales_of(
    scales: Mapping[tuple[int, str], Sequence[float]] | None, layer: int, tensor: str, heads: Sequence[int]
) -> tuple[float, ...]:
    values = tuple((scales or {}).get((layer, tensor), (1.0,)))
    return values if len(values) == 1 else tuple(values[head] for head in heads)
