"""The serving process's memory over a long capture: `python tests/bench/capture_memory.py [--chunks 40]`.

Requests arrive, run and end; each step goes through the real request log, recorder and writer into a store in
a temporary directory, as many rows as fill that many 94-MB chunks. Printed is the resident memory on the way.
From the second quarter to the last its median must not grow by more than 8 MiB; exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from kvtrace_capture.gathered_rows import HookedLayer
from kvtrace_capture.journal import Journal
from kvtrace_capture.recorder import StepRecorder
from kvtrace_capture.request_log import RequestLog
from kvtrace_capture.sampler import Sampler
from kvtrace_capture.settings import CaptureSettings
from kvtrace_capture.writer import TraceWriter, rows_per_chunk

from kvtrace.trace.format import LayerRecord, RankRecord

LAYERS, HEADS, DIM, BLOCK = 30, 3, 64, 128
RUNNING, PROMPT, OUTPUT = 8, 96, 32
MOST_GROWTH: Final = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--chunks", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvtrace-") as folder:
        sizes = run(Path(folder), options.chunks)
    quarter = len(sizes) // 4
    growth = statistics.median(sizes[-quarter:]) - statistics.median(sizes[quarter : 2 * quarter])
    print(
        f"from the second quarter to the last {growth / 2**20:+.1f} MiB, at most {MOST_GROWTH >> 20} allowed"
    )
    sys.exit(growth > MOST_GROWTH)


def run(folder: Path, num_chunks: int) -> list[int]:
    """Capture so many chunks' rows; return the resident bytes, looked at twenty times."""
    engine = Engine(folder)
    wanted, sizes, started = num_chunks * engine.rows_per_chunk, [], time.monotonic()
    print(f"{'rows':>10}{'MB of K and V':>16}{'requests':>10}{'resident MiB':>14}{'seconds':>9}")
    for part in range(1, 21):
        while engine.num_rows < wanted * part // 20:
            engine.step()
        engine.let_writer_catch_up(0)
        sizes.append(resident_bytes())
        megabytes = engine.num_rows * LAYERS * 2 * HEADS * DIM * 2 / 1e6
        print(
            f"{engine.num_rows:>10,}{megabytes:>16,.0f}{engine.num_requests:>10,}{sizes[-1] / 2**20:>14.1f}"
            f"{time.monotonic() - started:>9.1f}",
            flush=True,
        )
    engine.close()
    return sizes


@dataclass(eq=False)
class Request:
    """One of vLLM's requests, as far as the request log looks at it."""

    request_id: str
    sampling_params: Any
    prompt_token_ids: list[int]
    block: int
    num_prompt_tokens: int = PROMPT
    num_output_tokens: int = 0
    num_preemptions: int = 0
    resumable: bool = False
    status: str = "FINISHED"

    def get_finished_reason(self) -> str:
        """Return `length`."""
        return "length"


class Engine:
    """What vLLM would tell the plug-in of an endless load: `RUNNING` requests at any time."""

    def __init__(self, folder: Path) -> None:
        layers = tuple(
            LayerRecord(
                index=index,
                name=f"layers.{index}",
                kv_heads=tuple(range(HEADS)),
                head_dim_k=DIM,
                head_dim_v=DIM,
                dtype="bfloat16",
                backend="CPU_ATTN",
                implementation="x",
                kv_cache_dtype="auto",
                block_size=BLOCK,
                k_scale=(1.0,),
                v_scale=(1.0,),
            )
            for index in range(LAYERS)
        )
        rank = RankRecord(trace_id="t", rank=0, rows_per_chunk=1, layers=layers)
        self.rows_per_chunk = rows_per_chunk(rank)
        rank = rank.model_copy(update={"rows_per_chunk": self.rows_per_chunk})
        shape = (HEADS, DIM)
        self._names = [layer.name for layer in layers]
        self._writer = TraceWriter(folder / "rank-0.zarr", rank)
        self._recorder = StepRecorder(
            {name: HookedLayer(index, 0, shape, shape, "bfloat16") for index, name in enumerate(self._names)},
            [BLOCK],
            self._writer,
        )
        rules = CaptureSettings(directory=folder, position_stride=1, seed=0)
        self._log = RequestLog(Journal(folder / "requests.jsonl"), Sampler(rules), b"k" * 32, [BLOCK])
        self._running: dict[Request, int] = {}
        self.num_rows = self.num_requests = 0

    def step(self) -> None:
        """Prefill one request, or else decode one token of each; end those that are done."""
        new = self._arrive() if len(self._running) < RUNNING else None
        counts = {r: 1 for r in self._running if r is not new} | ({new: PROMPT} if new is not None else {})
        scheduled = SimpleNamespace(
            scheduled_new_reqs=[self._as_new(new)] if new is not None else [],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[r.request_id for r in counts if r is not new],
                resumed_req_ids=set(),
                num_computed_tokens=[self._running[r] for r in counts if r is not new],
                new_block_ids=[None for r in counts if r is not new],
            ),
            num_scheduled_tokens={r.request_id: count for r, count in counts.items()},
        )
        slots = torch.tensor(
            [r.block * BLOCK + self._running[r] + n for r, count in counts.items() for n in range(count)]
        )
        key = torch.zeros(len(slots), HEADS, DIM).bfloat16()
        self._recorder.begin(self._log.plan_step(scheduled))
        for name in self._names:
            self._recorder.take(name, key, key, slots)
        self._recorder.finish()
        self.num_rows += len(slots)
        for request, count in counts.items():
            self._advance(request, count)
        self.let_writer_catch_up(64 << 20)  # there is no model here that would take its time

    def let_writer_catch_up(self, queued_bytes: int) -> None:
        """Wait until no more than this is queued."""
        while self._writer._room._taken > queued_bytes:
            time.sleep(0.01)

    def close(self) -> None:
        """Close the store."""
        self._recorder.close()
        self._log.close()

    def _arrive(self) -> Request:
        request = Request(
            request_id=f"request {self.num_requests}",
            sampling_params=SimpleNamespace(extra_args={"kvtrace_id": str(self.num_requests)}),
            prompt_token_ids=[self.num_requests] * PROMPT,
            block=self.num_requests % (4 * RUNNING),
        )
        self.num_requests += 1
        self._running[request] = 0
        self._log.arrive(request)
        return request

    @staticmethod
    def _as_new(request: Request) -> Any:
        return SimpleNamespace(req_id=request.request_id, num_computed_tokens=0, block_ids=([request.block],))

    def _advance(self, request: Request, count: int) -> None:
        self._running[request] += count
        request.num_output_tokens += 1
        if request.num_output_tokens == OUTPUT:
            del self._running[request]
            self._log.finish(request)


def resident_bytes() -> int:
    """Return this process's resident memory."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main()
