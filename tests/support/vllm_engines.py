"""Starts real vLLM engines in processes of their own, and reads what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

if TYPE_CHECKING:
    from numpy.typing import NDArray

DRIVER = Path(__file__).parents[1] / "vllm" / "run_offline.py"
START_TIMEOUT_S = 900
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # the driver asks the worker process about itself
    "VLLM_NO_USAGE_STATS": "1",
    # With any KV connector vLLM's CPU worker leaves one core more to others (ompmultiprocessing.py), and
    # another number of threads sums in another order: said here, it is the same with and without.
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
}
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def connector(directory: Path, *, by_module: bool = True, **extra: Any) -> dict[str, Any]:
    """Return `kv_transfer_config` for a capture into `directory`."""
    return {
        "kv_connector": "KVTraceConnector",
        **({"kv_connector_module_path": "kvtrace_capture.connector"} if by_module else {}),
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"directory": str(directory), **extra},
    }


def run_offline(
    folder: Path,
    model: Path,
    engine: dict[str, Any],
    rounds: list[Any],
    *,
    driver: Path = DRIVER,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run one offline engine to its end; what it wrote is in `folder/out.json` if it got that far."""
    folder.mkdir(parents=True, exist_ok=True)
    job = {"model": str(model), "engine": engine, "rounds": rounds, "out": str(folder / "out.json")}
    (folder / "job.json").write_text(json.dumps(job))
    finished = subprocess.run(
        [sys.executable, str(driver), str(folder / "job.json")],
        env={**os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    (folder / "log.txt").write_text(finished.stdout + finished.stderr)
    return finished


@dataclass(frozen=True)
class StoredTrace:
    """A trace on disk, read with plain zarr and json."""

    path: Path

    @cached_property
    def requests(self) -> dict[int, dict[str, Any]]:
        """Return the last line of every request."""
        lines = [json.loads(line) for line in (self.path / "requests.jsonl").read_text().splitlines()]
        return {line["request"]: line for line in lines}

    @cached_property
    def sampling(self) -> list[dict[str, Any]]:
        """Return the sampling rules in force."""
        return [json.loads(line) for line in (self.path / "sampling.jsonl").read_text().splitlines()]

    @cached_property
    def layers(self) -> list[dict[str, Any]]:
        """Return rank 0's layers."""
        layers: list[dict[str, Any]] = json.loads((self.store / "rank.json").read_text())["layers"]
        return layers

    @property
    def layer_indices(self) -> list[int]:
        """Return the captured layers by the model's index."""
        return [layer["index"] for layer in self.layers if layer["captured"]]

    @property
    def store(self) -> Path:
        """Return rank 0's store."""
        return self.path / "rank-0.zarr"

    @property
    def commit(self) -> dict[str, Any]:
        """Return rank 0's commit record."""
        commit: dict[str, Any] = json.loads((self.store / "commit.json").read_text())
        return commit

    @property
    def dropped(self) -> list[dict[str, Any]]:
        """Return rank 0's counts of dropped rows."""
        return [json.loads(line) for line in (self.store / "dropped.jsonl").read_text().splitlines()]

    @cached_property
    def _used(self) -> NDArray[np.bool_]:
        used: NDArray[np.bool_] = self._array("rows/kv/request") >= 0
        return used

    @cached_property
    def tokens(self) -> list[tuple[int, int]]:
        """Return (request, position) of every stored row, in the order of the rows."""
        columns = [self._array(f"rows/kv/{name}")[self._used].tolist() for name in ("request", "position")]
        return list(zip(*columns, strict=True))

    def values(self, layer: int, tensor: str) -> NDArray[np.float32]:
        """Return [row, kv_head, head_dim] of a bfloat16 layer."""
        bits = self._array(f"layers/{layer:02d}/{tensor}")[self._used]
        return (bits.astype(np.uint32) << 16).view(np.float32)

    def rows_of(self, request: int) -> NDArray[np.int64]:
        """Return the rows of a request by position: the last of each, none beyond what it computed."""
        computed = self.requests[request]["computed_tokens"]
        mine = {
            position: row
            for row, (number, position) in enumerate(self.tokens)
            if number == request and position < computed
        }
        return np.array([mine[position] for position in sorted(mine)], dtype=np.int64)

    def expected(self, request: int) -> list[int]:
        """Return the positions of a request that the sampling rules ask for and the engine computed."""
        record = self.requests[request]
        stride = self.sampling[record["sampling_id"]]["position_stride"]
        missing = {position for start, end in record["missing"] for position in range(start, end)}
        wanted = range(record["offset"], record["computed_tokens"], stride) if record["sampled"] else ()
        return [position for position in wanted if position not in missing]

    def _array(self, name: str) -> NDArray[Any]:
        return np.asarray(zarr.open_array(self.store / name, mode="r")[:])


Captured = tuple[StoredTrace, list[Any], dict[str, Any]]
"""A trace, what each round of requests got, and all that the driver wrote."""


def only_trace(directory: Path) -> StoredTrace:
    """Return the one trace in a directory."""
    (path,) = directory.glob("*.kvtrace")
    return StoredTrace(path)
