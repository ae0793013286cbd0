"""All that a decision rests on, as small files of two variants."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from support.capacity_cases import SHAPE
from support.outcome_files import own_line, write_lines
from support.run_cli import Result, kvtrace
from support.serving_files import own_served, served_file

POLICY = """\
name = "chat"
date = 2026-11-30
[quality]
margin = 0.02
floor = 0.9
[serving]
interval_s = 10
drain_s = 5
runs = 3
goodput_gain = 0.05
max_rejected_frac = 0.2
[serving.classes.short]
prompt_tokens = [0, 2048]
ttft_ms = 2000
[serving.classes.long]
prompt_tokens = [2048, 8192]
ttft_ms = 2000
[capacity]
rollback = "worst"
"""
BF16, FP8 = "bf16-a", "fp8"
HELD = {"weights_digest": "w", "tokenizer_revision": "t", "reuse_policy": "prefix cache off"}


def request(number: int, second: float, slow: bool, **fields: Any) -> dict[str, Any]:
    """Every other prompt is long; a slow answer's first token comes after 3 s."""
    first = second + (3.0 if slow else 0.5)
    return own_served(
        f"r{number}", second, first_token_s=first, finished_s=first + 1,
        prompt_tokens=4000 if number % 2 else 100, **fields,
    )  # fmt: skip


def run_lines(num_slow: int, **fields: Any) -> list[dict[str, Any]]:
    """40 requests in 10 s, of which the first are late; load goes on in the drain."""
    return [request(n, n / 4, n < num_slow, **fields) for n in range(60)]


@dataclass
class Case:
    """Files in a folder; a test changes what it is about."""

    folder: Path
    policy: str = POLICY
    slow: dict[str, tuple[int, ...]] = field(default_factory=lambda: {BF16: (12, 13, 14), FP8: (6, 7, 8)})
    """Variant → late requests of each run."""
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    losses: int = 0
    pairs: int = 600
    manifests: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {BF16: HELD | {"kv_dtype": "auto"}, FP8: HELD | {"kv_dtype": "fp8"}}
    )
    metrics: dict[str, str] = field(default_factory=dict)
    load: str = "open"
    limit: int = 40
    check: dict[str, Any] | None = None
    leave_out: tuple[str, ...] = ()

    def files(self) -> list[object]:
        """Write all files and return the command line of `kvtrace decide`."""
        (self.folder / "policy.toml").write_text(self.policy)
        arguments: list[object] = ["decide", self._served(), "--policy", self.folder / "policy.toml"]
        if "quality" not in self.leave_out:
            arguments += ["--quality", self._quality()]
        if "capacity" not in self.leave_out:
            arguments += ["--capacity", self._capacity()]
        if self.check is not None:
            if self.check["policy"]["sha256"] is None:
                self.check["policy"]["sha256"] = hashlib.sha256(self.policy.encode()).hexdigest()
            (self.folder / "check.json").write_text(json.dumps(self.check))
            arguments += ["--check", self.folder / "check.json"]
        return arguments

    def decide(self, *more: object) -> Result:
        """Return what the command left behind."""
        return kvtrace(*self.files(), *more)

    def decision(self) -> dict[str, Any]:
        """Return the decision as JSON."""
        result = self.decide("--json")
        assert not result.stderr, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def _served(self) -> Path:
        arguments: list[object] = ["serving"]
        for variant, runs in self.slow.items():
            for number, num_slow in enumerate(runs):
                lines = run_lines(num_slow, **self.fields.get(variant, {}))
                file = served_file(self.folder, lines, f"{variant}-{number}.jsonl")
                arguments.append(f"{variant}={file}")
        for variant, manifest in self.manifests.items():
            (self.folder / f"{variant}.json").write_text(json.dumps(manifest))
            arguments += ["--manifest", f"{variant}={self.folder / f'{variant}.json'}"]
        for variant, text in self.metrics.items():
            (self.folder / f"{variant}.prom").write_text(text)
            arguments += ["--metrics", f"{variant}={self.folder / f'{variant}.prom'}"]
        table = self.folder / "all.serving"
        result = kvtrace(*arguments, "--load", self.load, "-o", table, "--force")
        assert result.returncode == 0, result.stderr
        return table

    def _quality(self) -> Path:
        found = self.folder / "quality.json"
        found.write_text(_compared(self.policy, self.losses, self.pairs))
        return found

    def _capacity(self) -> Path:
        found = self.folder / "capacity.json"
        found.write_text(_planned(self.limit))
        return found


@cache
def _compared(policy: str, losses: int, pairs: int) -> str:
    """Return what `kvtrace quality compare` says of answers of which FP8 fails the first."""
    lines = [
        own_line(f"q{n}", "fail" if variant == FP8 and n < losses else "pass", variant=variant)
        for variant in (BF16, "bf16-b", FP8)
        for n in range(pairs)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = write_lines(folder / "outcomes.jsonl", lines)
        (folder / "policy.toml").write_text(policy)
        assert kvtrace("outcomes", file, "-o", folder / "o").returncode == 0
        result = kvtrace("quality", "compare", folder / "o", "--policy", folder / "policy.toml", "--json")
    assert not result.stderr, result.stderr
    return result.stdout


@cache
def _planned(limit: int) -> str:
    """Return what `kvtrace capacity` says of 64 MiB: 1,638 blocks in BF16."""
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "config.json"
        config.write_text(json.dumps(SHAPE | {"model_type": "llama", "num_hidden_layers": 5}))
        result = kvtrace(
            "capacity", config, "--cache-dtype", "fp8", "--budget", "64MiB", "--max-model-len", "512",
            "--limit", limit, "--json",
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def check_outcome(limit: str, sha256: str | None = None) -> dict[str, Any]:
    """A breached check of one limit in one segment; sha256: of its policy, None: the case's own."""
    of_limit = {
        "limit": limit, "bound": 0.01, "is_minimum": False, "verdict": "breached", "basis": "interval",
        "has_interval": True, "num_heads": 2, "num_breached": 1, "num_untold": 0,
        "worst": {"layer": 0, "kv_head": 0, "tensor": "k", "value": None}, "breached": [],
    }  # fmt: skip
    segment = {
        "name": "all", "workload": "chat", "phase": None, "positions": None, "prompt_tokens": None,
        "output_tokens": None, "seen_positions": None, "seen_prompt_tokens": None, "seen_output_tokens": None,
        "num_requests": 40, "num_tokens": 4000, "num_incomplete_requests": 0, "min_requests": 1,
        "min_tokens": 1, "num_nonfinite_vectors": 0, "verdict": "breached", "reason": None,
        "limits": [of_limit],
    }  # fmt: skip
    policy = {
        "path": "policy.toml", "name": "chat", "date": "2026-11-30", "sha256": sha256,
        "written_after_run": False, "recorded_in_run": None,
    }  # fmt: skip
    return {
        "schema_version": "1.1", "run": "r", "candidate": FP8, "candidate_note": None, "hypothetical": False,
        "policy": policy, "verdict": "breached", "envelope": "x", "not_tested": [], "triggers": [],
        "confidence": 0.95, "interval_method": "x", "ratio_interval_method": "x", "multiple_testing": "x",
        "segments": [segment],
    }  # fmt: skip


def metrics_page(dtype: str, *, blocks: int, tokens: int, **gauges: float) -> str:
    lines = [
        f'vllm:cache_config_info{{block_size="16",cache_dtype="{dtype}",engine="0",'
        f'kv_cache_size_tokens="{tokens}",num_gpu_blocks="{blocks}"}} 1.0',
        'vllm:num_preemptions_total{engine="0"} 0.0',
        *(f'vllm:{name}{{engine="0"}} {value}' for name, value in gauges.items()),
    ]
    return "".join(f"{line}\n" for line in lines)
