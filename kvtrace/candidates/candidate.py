"""A candidate: scales as one engine setup would apply them. What is compared in a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kvtrace.errors import InputError
from kvtrace.numerics import DEFAULT_ENGINE, ENGINES, find_engine
from kvtrace.numerics.online import find_policy
from kvtrace.numerics.vllm_platforms import fp8_format_on, numerics_on
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kvtrace.findings.artifact.weights import WeightsComparison
    from kvtrace.numerics.online import OnlinePolicy
    from kvtrace.scales import ScaleArtifact
    from kvtrace.trace.reader import MergedLayer, Trace

Kind = Literal["bf16", "effective", "unit", "artifact", "online"]
ScaleKey = tuple[int, int, str]
"""(layer, global kv_head, "k" | "v")."""


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The engine that a candidate is applied by."""

    engine: str = DEFAULT_ENGINE
    """Numerics: a name of `kvtrace.numerics.ENGINES`."""
    format: str | None = None
    """FP8 format; None: the engine's default."""
    backend: str | None = None
    """Attention backend by the engine's own name; None: one that honours scales per head."""
    tp: int | None = None
    """Tensor-parallel ranks; None: as many as the artifact has, else 1."""
    skip_layers: tuple[int, ...] = ()
    """Layers whose cache stays unquantized."""

    @property
    def fp8_format(self) -> str:
        """Return the FP8 format's name."""
        return self.format or find_engine(self.engine).formats[0]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row of a comparison. Made by the functions below; bound to a trace by `apply_candidate`."""

    name: str
    kind: Kind
    setup: EngineSetup | None
    """None: not quantized (bf16)."""
    artifact: ScaleArtifact | None = None
    scales: Mapping[ScaleKey, float] | None = None
    """Given directly instead of an artifact."""
    policy: OnlinePolicy | None = None
    """Scales chosen per token and head while serving; it has no scales of its own."""
    weights: WeightsComparison | None = None
    """The artifact's checkpoint against another, for the audit; None: not asked."""

    @property
    def engine(self) -> str | None:
        """Return the numerics replayed; None where nothing is quantized."""
        if self.policy:
            return self.policy.name
        return self.setup.engine if self.setup else None

    @property
    def format(self) -> str | None:
        """Return the cache's format; None where nothing is quantized."""
        if self.policy:
            return self.policy.format
        return self.setup.fp8_format if self.setup else None


def bf16() -> Candidate:
    """Return the unquantized baseline: the values as captured."""
    return Candidate("bf16", "bf16", None)


def unit(setup: EngineSetup = EngineSetup()) -> Candidate:
    """Return the scales that an engine uses when it is given none: 1.0 everywhere."""
    return Candidate("unit", "unit", setup)


def effective(trace: Trace, setup: EngineSetup | None = None) -> Candidate | None:
    """Return the scales that the captured engine really used; None where its cache was not static FP8.

    setup: other numerics than those of the captured engine.
    """
    if trace.cache_kind != "static_fp8":
        return None
    return Candidate("effective", "effective", setup or captured_setup(trace))


def from_artifact(name: str, artifact: ScaleArtifact, setup: EngineSetup = EngineSetup()) -> Candidate:
    """Return the artifact's scales as the engine of `setup` would apply them."""
    return Candidate(name, "artifact", setup, artifact=artifact)


def from_scales(name: str, scales: Mapping[ScaleKey, float], setup: EngineSetup = EngineSetup()) -> Candidate:
    """Return scales given as numbers, one per (layer, global kv_head, tensor)."""
    return Candidate(name, "artifact", setup, scales=scales)


def online(policy: str) -> Candidate:
    """Return a cache that scales every token and head by its own absmax.

    policy: fp8-per-token-head or int8-per-token-head. Raises InputError: unknown.
    """
    return Candidate(policy, "online", None, policy=find_policy(policy))


def standard_candidates(
    traces: Sequence[Trace],
    artifacts: Iterable[ScaleArtifact],
    setup: EngineSetup | None = None,
    policies: Iterable[str] = (),
) -> list[Candidate]:
    """Return bf16, effective (where a cache was static FP8), unit, one per artifact, one per policy.

    setup: one for all; None: `default_setup`. policies: names that `online` takes; a repeated one counts
    once. Every candidate has a name of its own: an artifact called like another is numbered.
    Raises InputError: an unknown policy.
    """
    common = setup or default_setup(traces)
    in_effect = [found for trace in traces if (found := effective(trace, common))][:1]
    candidates = [bf16(), *in_effect, unit(common)]
    while_serving = [online(name) for name in dict.fromkeys(policies)]
    taken = {candidate.name for candidate in (*candidates, *while_serving)}
    shipped = [from_artifact(_unused_name(a.name, taken), a, common) for a in artifacts]
    return [*candidates, *shipped, *while_serving]


def compared_with(candidates: Sequence[Candidate], against: Path | None) -> list[Candidate]:
    """Return the candidates, each artifact's checkpoint compared with `against` (None: as they are).

    Raises ArtifactError: one of the two holds no weights. InputError: there is no artifact to compare, or
    nothing at `against`.
    """
    if against is None:
        return list(candidates)
    from kvtrace.findings.artifact.weights import compare_weights, require_existing

    require_existing(against)
    if not any(one.artifact for one in candidates):
        raise InputError(f"--against {against}: nothing to compare with it; give a checkpoint with --scales")
    return [
        replace(one, weights=compare_weights(one.artifact.path, against)) if one.artifact else one
        for one in candidates
    ]


def default_setup(traces: Sequence[Trace]) -> EngineSetup:
    """Return the captured engine's numerics if its cache was static FP8, else those of vLLM on CUDA.

    One setup for all candidates: they then differ in their scales alone, and compare with what really ran.
    """
    with_fp8 = [trace for trace in traces if trace.cache_kind == "static_fp8"]
    return captured_setup(with_fp8[0]) if with_fp8 else EngineSetup()


def captured_setup(trace: Trace) -> EngineSetup:
    """Return the numerics and the format in which the engine wrote the trace's static FP8 layers.

    Raises InputError: there is no such layer, one was written in a way that kvtrace cannot replay, or two in
    different ways.
    """
    found: dict[EngineSetup, list[str]] = {}
    for layer in trace.layers.values():
        if layer.cache_kind != "unquantized":
            setup = _setup_of(layer, trace)
            found.setdefault(setup, []).append(f"layer {layer.index} on {plain(layer.backend, 30)}")
    if len(found) != 1:
        ways = "; ".join(f"{one.engine} in {one.format}: {layers[0]}" for one, layers in found.items())
        raise InputError(
            f"{trace.path}: its layers were written in {len(found)} ways ({ways or 'none is FP8'}), and a "
            "replay has one; choose it with --engine and --fp8-format"
        )
    return next(iter(found))


def _setup_of(layer: MergedLayer, trace: Trace) -> EngineSetup:
    engine, platform = trace.record.engine, trace.platform
    where = f"{trace.path}: its engine ran on {plain(engine.device, 60)!r}"
    if platform is None:
        raise InputError(
            f"{where}, which tells no platform that kvtrace knows (cuda, rocm, cpu); choose the numerics to "
            f"replay with --engine: {', '.join(ENGINES)}"
        )
    numerics = numerics_on(platform, layer.backend)
    if numerics is not None and layer.cache_kind == "static_fp8":
        # vLLM's Triton write stores the platform's own format, whatever name was asked for
        # (0.32, triton_reshape_and_cache_flash).
        is_e5m2 = layer.kv_cache_dtype == "fp8_e5m2" and numerics != "vllm-triton"
        native = fp8_format_on(platform, engine.device, engine.compute_capability)
        if not is_e5m2 and native is None:
            raise InputError(
                f"{where}, which does not tell whether its FP8 is e4m3fnuz (AMD's gfx94x) or e4m3fn; choose "
                f"with --engine {numerics} --fp8-format"
            )
        setup = EngineSetup(numerics, "e5m2" if is_e5m2 else native)
        if setup.format in find_engine(numerics).formats:
            return setup
    raise InputError(
        f"{where} ({plain(platform, 20)}) with cache dtype {plain(layer.kv_cache_dtype, 30)} on backend "
        f"{plain(layer.backend, 30)}, for which kvtrace has no numerics; choose the ones to replay with "
        f"--engine: {', '.join(ENGINES)}"
    )


def _unused_name(name: str, taken: set[str]) -> str:
    number, unused = 1, name
    while unused in taken:
        number += 1
        unused = f"{name}#{number}"
    taken.add(unused)
    return unused
