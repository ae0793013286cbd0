"""A healthy incident-to-be: some layers and requests of a real capture, its scales, and how they are served.

A plant changes it; `diagnosed` writes trace and artifacts, replays them and diagnoses the run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from support.answer_limits import beyond_limits
from support.checkpoints import checkpoint
from support.fabricate import fabricate_trace

from incidents.base import SAMPLE, Base, read_base
from kvtrace.calibration.calibrate import calibrate
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.magnitudes import Magnitudes
from kvtrace.calibration.recipe import Recipe, scale_by
from kvtrace.calibration.save import save_checkpoint, save_scales
from kvtrace.calibration.write import write_calibration
from kvtrace.candidates import ServingSetup, standard_candidates
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.findings.diagnose import Diagnosis, diagnose
from kvtrace.report.build import build_report
from kvtrace.report.scales.build import scales_report
from kvtrace.runs.open import open_run
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.calibration.calibrate import ScaleSet
    from kvtrace.report.scales.model import ScalesReport
    from kvtrace.trace.format import RequestRecord, SamplingRecord

NUM_LAYERS = 5
RETRIEVAL_KEPT = 3
"""One in this many rows of the long requests is kept: they hold more than half of the sample."""
_ABSMAX = Recipe()
_ALL_ROWS = DatasetRules()
_VLLM = ServingSetup("vllm-cuda")
DIGESTS = {"weights_digest": "w" * 64, "tokenizer_digest": "t" * 64, "chat_template_digest": "c" * 64}


@dataclass
class Bench:
    """What a plant may change. tensors: (layer, tensor) → float32 [rows, heads, head_dim]."""

    rng: np.random.Generator
    folder: Path
    tensors: dict[tuple[int, str], NDArray[np.float32]]
    requests: list[RequestRecord]
    sampling: list[SamplingRecord]
    request_of_row: NDArray[np.int64]
    position: NDArray[np.int64]
    workload: NDArray[Any]
    step: NDArray[np.int64]
    """Generation step; negative in the prompt."""
    live: ScaleSet | None = None
    """Effective scales; None: the engine's cache was not FP8."""
    backend: str = "FLASH_ATTN"
    model: dict[str, Any] = field(default_factory=lambda: dict(DIGESTS))
    artifacts: list[Path] = field(default_factory=list)
    hardest: Literal["low", "high"] | None = None
    """The end of each range of strengths that is hardest to tell; None: strengths are drawn."""
    against: Path | None = None
    """A checkpoint that the artifacts' are compared with."""
    names: dict[str, str] = field(default_factory=dict)
    """What workloads, artifacts and traces are called instead: no rule may know the names used here."""
    setup: ServingSetup = _VLLM
    """How the artifacts are served."""
    cache_dtypes: tuple[str, ...] = ()
    """Cache formats that are compared beside the artifacts."""
    tp: int = 1
    """Tensor-parallel ranks of the captured engine."""
    fp8_dtype: str = "fp8_e4m3"
    """Of the captured engine's cache, if there are live scales."""
    kept_in_bf16: tuple[int, ...] = ()
    """Layers that an engine with an FP8 cache left in the model's own dtype."""
    beyond_limits: tuple[str, ...] = ()
    """What of the report's answer does not fit a first screen, once it was diagnosed."""
    redraw: Callable[[int], Base] | None = None
    """Another draw of the same traffic, by a seed; None: the base is one capture."""

    @property
    def num_heads(self) -> int:
        return int(next(iter(self.tensors.values())).shape[1])

    @property
    def num_layers(self) -> int:
        return len(self.tensors) // 2

    @property
    def heads(self) -> list[tuple[int, int]]:
        return [(layer, head) for layer in range(self.num_layers) for head in range(self.num_heads)]

    @property
    def all_rows(self) -> NDArray[np.bool_]:
        return np.ones(len(self.position), bool)

    def pick(self, count: int) -> list[tuple[int, int]]:
        """Return some (layer, head) at random."""
        chosen = self.rng.choice(len(self.heads), size=count, replace=False)
        return sorted(self.heads[number] for number in chosen)

    def between(self, low: float, high: float) -> float:
        """Return a strength at random, or the hardest one to tell."""
        if self.hardest is not None:
            return {"low": low, "high": high}[self.hardest]
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Keep these rows and the requests that have one: the others' positions passed no hook there."""
        gone: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, position in zip(self.request_of_row[~rows], self.position[~rows], strict=True):
            gone[int(number)].append((int(position), int(position) + 1))
        self.tensors = {key: values[rows] for key, values in self.tensors.items()}
        for name in ("request_of_row", "position", "workload", "step"):
            setattr(self, name, getattr(self, name)[rows])
        left = set(self.request_of_row.tolist())
        self.requests = [
            one.model_copy(update={"missing": tuple(sorted((*one.missing, *gone[one.request])))})
            for one in self.requests
            if one.request in left
        ]

    def scale_values(
        self, factor: float, rows: NDArray[np.bool_], heads: Sequence[tuple[int, int]], tensors: str = "kv"
    ) -> None:
        """Multiply the values of some rows in some heads."""
        for layer, head in heads:
            for tensor in tensors:
                self.tensors[layer, tensor][rows, head] *= np.float32(factor)

    def widen_channel(self, factor: float, layer: int, head: int) -> None:
        """Make one channel of a K head `factor` times as wide as the head's widest value."""
        values = self.tensors[layer, "k"][:, head]
        channel = int(self.rng.integers(values.shape[1]))
        values[:, channel] *= np.float32(factor * np.abs(values).max() / np.abs(values[:, channel]).max())

    def scales(self, recipe: Recipe = _ABSMAX) -> ScaleSet:
        """Return the scales that a recipe gives on the values as they are now."""
        found: ScaleSet = {}
        for layer in range(self.num_layers):
            units = [("k", "v")] if recipe.merge_kv else [("k",), ("v",)]
            for tensors in units:
                values = [self.tensors[layer, tensor] for tensor in tensors]
                parts = (
                    [[one[:, head] for one in values] for head in range(self.num_heads)]
                    if recipe.granularity == "attn_head"
                    else [values]
                )
                scales = tuple(scale_by(recipe, _counted(part, recipe)) for part in parts)
                found.update({(layer, tensor): scales for tensor in tensors})
        return found

    def ship(self, scales: ScaleSet, name: str = "shipped", **scheme: Any) -> Path:
        """Save an artifact and have the report judge it. scheme: changes to its kv_cache_scheme."""
        path = self.folder / self.called(name)
        save_scales(path, scales, model=self.config())
        if scheme:
            config = json.loads((path / "config.json").read_text())
            config["quantization_config"]["kv_cache_scheme"].update(scheme)
            (path / "config.json").write_text(json.dumps(config))
        self.artifacts.append(path)
        return path

    def calibrated(self, recipe: Recipe, rules: DatasetRules = _ALL_ROWS, name: str = "shipped") -> Path:
        """Save what `kvtrace calibrate` makes of the values as they are now, manifest included."""
        path, _ = self._calibrate(self.write("calibration"), recipe, rules, name)
        return path

    def calibrated_on_itself(self, recipe: Recipe, name: str = "shipped") -> Path:
        """Save what `kvtrace calibrate` makes of the trace that is judged, which nothing changes then."""
        path, _ = self._calibrate(self.incident(), recipe, _ALL_ROWS, name)
        return path

    def calibrated_on_another_draw(self, recipe: Recipe) -> ScaleSet:
        """Save what `kvtrace calibrate` makes of other requests of the same traffic; return its scales.

        Of a base that is one capture half of the requests are calibrated on, and the others stay.
        """
        if self.redraw is None:
            numbers = [one.request for one in self.requests]
            chosen = self.rng.choice(numbers, size=len(numbers) // 2, replace=False)
            is_chosen = np.isin(self.request_of_row, chosen)
            other = replace(self, artifacts=[])
            other.keep(is_chosen)
            self.keep(~is_chosen)
        else:
            seed = int(self.rng.integers(2**31))
            other = replace(whole_bench(seed, self.folder, self.redraw(seed), None), names=self.names)
        path, scales = other._calibrate(other.write("calibration"), recipe, _ALL_ROWS, "shipped")
        self.artifacts.append(path)
        return scales

    def _calibrate(
        self, trace: Path, recipe: Recipe, rules: DatasetRules, name: str
    ) -> tuple[Path, ScaleSet]:
        path = self.folder / self.called(name)
        named = replace(rules, workloads=tuple(map(self.called, rules.workloads)))
        calibration = calibrate([open_trace(trace)], recipe, named)
        write_calibration(path, calibration, checkpoint=None)
        self.artifacts.append(path)
        return path, dict(calibration.scales)

    def deploy(self, scales: ScaleSet, original: Path, name: str = "shipped") -> Path:
        """Save a copy of a checkpoint with these scales and have the report judge it."""
        path = self.folder / self.called(name)
        save_checkpoint(path, original, scales)
        self.artifacts.append(path)
        return path

    def checkpoint(self, name: str, *, num_changed: int = 0) -> Path:
        """Write a checkpoint of a few small weights, some of them changed in one value."""
        weights = {
            f"model.layers.{n}.self_attn.k_proj.weight": torch.ones(4, 4) for n in range(self.num_layers)
        }
        for number in self.rng.choice(self.num_layers, size=num_changed, replace=False).tolist():
            weights[f"model.layers.{number}.self_attn.k_proj.weight"][2, 1] = 1.5
        return checkpoint(self.folder / self.called(name), weights, model=self.config())

    def called(self, name: str) -> str:
        return self.names.get(name, name)

    def disguise(self) -> None:
        """Draw new names for all that a user names."""
        known = {str(one.workload) for one in self.requests}
        for name in sorted(known | {"incident", "shipped", "sound", "broken", "other", "original", "tuned"}):
            self.names[name] = bytes(self.rng.integers(97, 123, size=8, dtype=np.uint8)).decode()

    def config(self) -> dict[str, Any]:
        heads, head_dim = next(iter(self.tensors.values())).shape[1:]
        return {
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "head_dim": head_dim,
        }

    def write(self, name: str) -> Path:
        """Write the trace as it is now."""
        fp8 = self.live is not None and name != "calibration"
        return fabricate_trace(
            self.folder / f"{self.called(name)}.kvtrace",
            self.tensors,
            request_of_row=self.request_of_row.tolist(),
            position_of_row=self.position.tolist(),
            requests=[
                one.model_copy(update={"workload": self.called(one.workload)}) for one in self.requests
            ],
            sampling=self.sampling,
            kv_cache_dtype=self.fp8_dtype if fp8 else "auto",
            scales=self.live if fp8 else None,
            rows_per_chunk=512,
            ranks=np.array_split(range(self.num_heads), self.tp) if self.tp > 1 else None,
            kept_in_bf16=self.kept_in_bf16 if fp8 else (),
            backend=self.backend,
            device="cpu" if self.backend == "CPU_ATTN" else "cuda",
            model=self.model,
        )

    def incident(self) -> Path:
        """Return the trace that is judged, written once."""
        path = self.folder / f"{self.called('incident')}.kvtrace"
        return path if path.exists() else self.write("incident")

    def diagnosed(self) -> Diagnosis:
        trace = open_trace(self.incident())
        artifacts = [load_artifact(path) for path in self.artifacts]
        candidates = standard_candidates(
            [trace], artifacts, self.setup, self.cache_dtypes, against=self.against
        )
        run = open_run(replay(ReplayRequest([trace], candidates, device="cpu"), self.folder / "run"))
        self.beyond_limits = beyond_limits(build_report(run))
        return diagnose(run)

    def audited(self) -> ScalesReport:
        """Return what `kvtrace scales --trace` says of the last artifact."""
        artifact = load_artifact(self.artifacts[-1])
        return scales_report(artifact, open_trace(self.incident()), engine="vllm-cuda")


def times(scales: ScaleSet, factor: float, tensors: str = "kv", heads: Any = None) -> ScaleSet:
    """Return the scales with some multiplied. heads: (layer, head) pairs; None: all."""
    return {
        (layer, tensor): tuple(
            value * factor if tensor in tensors and (heads is None or (layer, head) in heads) else value
            for head, value in enumerate(values)
        )
        for (layer, tensor), values in scales.items()
    }


def whole_bench(seed: int, folder: Path, base: Base, redraw: Callable[[int], Base] | None) -> Bench:
    """Return all of a base, as it is."""
    return Bench(
        rng=np.random.default_rng(seed),
        folder=folder,
        tensors={key: values.copy() for key, values in base.tensors.items()},
        requests=list(base.requests),
        sampling=list(base.sampling),
        request_of_row=base.request_of_row,
        position=base.position,
        workload=base.workload,
        step=base.step,
        redraw=redraw,
    )


def new_bench(seed: int, folder: Path, base: Path = SAMPLE) -> Bench:
    """Return a random part of a real trace: some layers, most requests, all workloads."""
    rng = np.random.default_rng(seed)
    whole = read_base(base)
    layers = sorted(rng.choice(whole.num_layers, size=NUM_LAYERS, replace=False).tolist())
    tensors = {
        (number, tensor): whole.tensors[layer, tensor].copy()
        for number, layer in enumerate(layers)
        for tensor in ("k", "v")
    }
    bench = Bench(
        rng=rng,
        folder=folder,
        tensors=tensors,
        requests=list(whole.requests),
        sampling=list(whole.sampling),
        request_of_row=whole.request_of_row,
        position=whole.position,
        workload=whole.workload,
        step=whole.step,
    )
    short = sorted({r.request for r in whole.requests if r.workload != "retrieval"})
    left_out = rng.choice(short, size=int(rng.integers(0, 20)), replace=False)
    thin = (whole.workload == "retrieval") & (rng.random(len(whole.position)) > 1 / RETRIEVAL_KEPT)
    bench.keep(~thin & ~np.isin(whole.request_of_row, left_out))
    return bench


def _counted(parts: Sequence[NDArray[np.float32]], recipe: Recipe) -> Magnitudes:
    if recipe.method == "absmax":  # sorting all values would take most of a case's time
        return Magnitudes(
            np.array([max(np.abs(part).max() for part in parts)], np.float64), np.ones(1, np.int64)
        )
    values, counts = np.unique(np.abs(np.concatenate([part.ravel() for part in parts])), return_counts=True)
    return Magnitudes(values.astype(np.float64), counts.astype(np.int64))
