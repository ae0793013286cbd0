"""`make bench-capture`: what capture costs a real engine, switched on and off in turn while it serves.

    python tests/bench/bench_capture.py --model FOLDER [--pairs 40]

One vLLM engine on this CPU serves the same batch of requests round after round. Between rounds the control
file switches capture off, to the default sampling, or to every token of every layer, in balanced order (off
on, on off, …). A pair is two neighbouring rounds; its ratio is on / off. Printed: the ratio of medians, and
the Hodges–Lehmann centre of the paired ratios (of their logarithms) with its 95 % interval. Chunks are
written while rounds run; what a level leaves unwritten is written at its end, and charged to its rounds
in full, as if the engine had waited for it.

The engine is bound to every core, so that the hook, the writer and the model compete for all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

os.environ |= {
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function is sent to the worker, see `flush`
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

PROMPT_TOKENS = (24, 48, 96, 96, 160, 240, 320, 480)
OUTPUT_TOKENS = 32
NUM_OUTPUT_TOKENS = len(PROMPT_TOKENS) * OUTPUT_TOKENS
OFF: dict[str, Any] = {"enabled": False}
LEVELS = {
    "1 in 16 positions": ({"enabled": True, "position_stride": 16}, 1.03),
    "every position": ({"enabled": True, "position_stride": 1}, 1.12),
}
"""By name: the control file, and the bound that the cost is held against."""
FEWEST_PAIRS = 20
WITHIN, BEYOND = "within the bound", "beyond the bound"
NOT_TOLD = "the noise of this machine does not tell"


@dataclass(frozen=True)
class Round:
    """What one batch took."""

    seconds: float
    per_output_token_s: float
    """Mean over requests of (last − first output token) / (output tokens − 1), as the caller sees them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=40)
    options = parser.parse_args()
    if options.pairs < FEWEST_PAIRS:
        parser.error(f"--pairs is {options.pairs}, expected {FEWEST_PAIRS} or more: fewer give no interval")
    sys.exit(measure(options.model, options.pairs))


def measure(model: Path, num_pairs: int) -> int:
    """Print the table; return 1 if a cost is beyond its bound, interval and all."""
    with tempfile.TemporaryDirectory(prefix="kvtrace-") as folder:
        bench = Bench(model, Path(folder))
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {num_pairs} pairs a level; a round:")
        prompt, output = sum(PROMPT_TOKENS), NUM_OUTPUT_TOKENS
        print(f"{len(PROMPT_TOKENS)} requests, {prompt} prompt and {output} output tokens")
        print(f"\n{'':36}{'off':>9}{'on':>9}{'medians':>9}{'paired':>8}{'95 %':>14}{'bound':>7}", flush=True)
        verdicts = [(name, verdict) for name in LEVELS for verdict in bench.compare(name, num_pairs)]
        bench.print_off_against_off(max(FEWEST_PAIRS, num_pairs // 2))
        bench.close()
    print()
    for name, (what, verdict) in verdicts:
        print(f"{name}, {what}: {verdict}")
    return int(any(verdict == BEYOND for _, (_, verdict) in verdicts))


class Bench:
    """One engine, its control file and its trace."""

    def __init__(self, model: Path, folder: Path) -> None:
        from vllm import LLM

        self.folder = folder
        self.llm = LLM(
            str(model),
            max_model_len=1024,
            max_num_seqs=len(PROMPT_TOKENS),
            max_num_batched_tokens=512,
            enable_prefix_caching=False,
            enforce_eager=True,
            gpu_memory_utilization=0.4,
            seed=0,
            kv_transfer_config={
                "kv_connector": "KVTraceConnector",
                "kv_connector_module_path": "kvtrace_capture.connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "directory": str(folder),
                    "enabled": False,
                    "flush_seconds": 3600.0,  # chunks are written when they are full, and where `flush` asks
                },
            },
        )
        (self.trace,) = folder.glob("*.kvtrace")
        for _ in range(3):
            self.serve()

    def close(self) -> None:
        """End the engine. Left to the interpreter's exit, it would be waited for before it is told to end."""
        self.llm.llm_engine.engine_core.shutdown()

    def compare(self, name: str, num_pairs: int) -> list[tuple[str, str]]:
        """Print one level's rows of the table; return what is measured and how it lies to the bound."""
        control, bound = LEVELS[name]
        before = self.cost()
        rounds = self.alternate(control, num_pairs)
        in_rounds = self.cost()
        self.llm.collective_rpc(flush)
        after = self.cost()
        unwritten_s = (after["write_s"] - in_rounds["write_s"]) / num_pairs
        tokens = sum(PROMPT_TOKENS) + NUM_OUTPUT_TOKENS
        times = [(off.seconds, on.seconds + unwritten_s) for off, on in rounds]
        per_token = [(off.per_output_token_s, on.per_output_token_s) for off, on in rounds]
        throughput = print_ratio(f"{name}, tokens/s", times, bound, lambda s: f"{tokens / s:.0f}")
        latency = print_ratio("  time per output token", per_token, bound, lambda s: f"{s * 1e3:.1f} ms")
        spent = {key: after[key] - before[key] for key in after}
        served_s = sum(on.seconds for _, on in rounds)
        shares = (f"{what} {spent[f'{what}_s'] / served_s:.2%}" for what in ("hook", "copy", "write"))
        late = unwritten_s * num_pairs / served_s
        print(
            f"  of the time: {', '.join(shares)} ({late:.2%} after the rounds); "
            f"{spent['raw_bytes'] / 1e6:.0f} MB in {spent['stored_bytes'] / 1e6:.0f} MB"
        )
        return [("throughput", throughput), ("time per output token", latency)]

    def print_off_against_off(self, num_pairs: int) -> None:
        """Print the same comparison with capture off in both rounds: what noise alone gives."""
        rounds = self.alternate(OFF, num_pairs)
        (off_s,) = self.llm.collective_rpc(time_off)
        print(f"\nswitched off, all hooks of a step take {off_s * 1e6:.0f} µs in the worker")
        print_ratio("off against off, seconds", [(a.seconds, b.seconds) for a, b in rounds])

    def alternate(self, control: dict[str, Any], num_pairs: int) -> list[tuple[Round, Round]]:
        """Return (off, on) rounds, served in the order off on, on off, off on, …"""
        pairs = []
        for number in range(num_pairs):
            states = [OFF, control] if number % 2 == 0 else [control, OFF]
            taken = []
            for state in states:
                self.switch(state)
                taken.append(self.serve())
            pairs.append((taken[0], taken[1]) if number % 2 == 0 else (taken[1], taken[0]))
        return pairs

    def serve(self) -> Round:
        """Serve the batch once."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False)
        engine = self.llm.llm_engine
        times: dict[str, list[tuple[float, int]]] = {}
        started = time.perf_counter()
        for number, length in enumerate(PROMPT_TOKENS):
            token_ids = [(number * 7919 + n * 104_729) % 40_000 + 10 for n in range(length)]
            engine.add_request(str(number), {"prompt_token_ids": token_ids}, sampling)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            for one in outputs:
                times.setdefault(one.request_id, []).append((now, len(one.outputs[0].token_ids)))
        per_token = [(last - first) / (n - m) for (first, m), *_, (last, n) in times.values()]
        return Round(time.perf_counter() - started, statistics.mean(per_token))

    def switch(self, state: dict[str, Any]) -> None:
        """Write the control file and wait until its rules are recorded, or are those in force."""
        file = self.trace / "sampling.jsonl"
        last = json.loads(file.read_text().splitlines()[-1])
        is_on = bool(last["request_fraction"])
        if is_on == state["enabled"] and (not is_on or last["position_stride"] == state["position_stride"]):
            return
        fresh = self.folder / "new.json"
        fresh.touch(0o600)
        fresh.write_text(json.dumps(state))
        fresh.replace(self.folder / "kvtrace-control.json")
        while json.loads(file.read_text().splitlines()[-1]) == last:
            time.sleep(0.02)
        time.sleep(0.05)

    def cost(self) -> dict[str, float]:
        """Return what the trace says of its own cost so far."""
        commit = json.loads((self.trace / "rank-0.zarr" / "commit.json").read_text())
        return dict(commit["cost"])


def flush(worker: Any) -> None:
    """In the worker's process: write and commit what is waiting."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    get_kv_transfer_group()._recorder.flush()


def time_off(worker: Any) -> float:
    """In the worker's process: the median seconds that a step's hooks take while nothing is planned."""
    import torch
    from kvtrace_capture.step_plan import StepPlan
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    recorder = get_kv_transfer_group()._recorder
    names, tokens, slots = list(recorder._layers), torch.zeros(8, 3, 64), torch.arange(8)
    taken = []
    for _ in range(200):
        started = time.perf_counter()
        recorder.begin(StepPlan(0))
        for name in names:
            recorder.take(name, tokens, tokens, slots)
        recorder.finish()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def print_ratio(
    name: str,
    pairs: list[tuple[float, float]],
    bound: float | None = None,
    show: Callable[[float], str] = "{:.3f}".format,
) -> str:
    """Print one row; return how the interval lies to the bound. pairs: (off, on)."""
    off, on = (statistics.median(side) for side in zip(*pairs, strict=True))
    centre, low, high = map(math.exp, centre_and_interval([math.log(on / off) for off, on in pairs]))
    print(
        f"{name:36}{show(off):>9}{show(on):>9}{on / off:>9.3f}{centre:>8.3f}"
        f"{low:>8.3f}–{high:.3f}{f'{bound:.2f}' if bound else '':>7}",
        flush=True,
    )
    if bound is None or high <= bound:
        return WITHIN
    return BEYOND if low > bound else NOT_TOLD


def centre_and_interval(values: list[float]) -> tuple[float, float, float]:
    """Return the Hodges–Lehmann centre of values that spread alike to both sides, and its 95 % interval.

    The interval inverts Wilcoxon's signed-rank test, by its normal approximation, so for 20 values and more
    (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.2 and 3.3).

    >>> centre_and_interval([float(n) for n in range(1, 22)])
    (11.0, 8.0, 14.0)
    """
    n = len(values)
    averages = sorted((values[i] + values[j]) / 2 for i in range(n) for j in range(i, n))
    beyond = int(n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    return statistics.median(averages), averages[beyond], averages[-1 - beyond]


if __name__ == "__main__":
    main()
