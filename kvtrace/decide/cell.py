"""Which cell of a comparison a candidate is, and whether one thing alone was changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kvtrace.decide.decision import Cell, CellPart, Reason, Word
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.decide.evidence import Found
    from kvtrace.runs.manifest import ServingManifest
    from kvtrace.serving.scrapes import Scrape

_BUNDLE: Final = ("image_digest", "attention_backend", "kernel_revision")
"""May differ: then a bundle is compared, and is called one."""
_HELD: Final = (
    "weights_digest", "model_revision", "tokenizer_revision", "chat_template_digest", "gpu_inventory",
    "load_generator", "arrival_trace_sha256", "reuse_policy", "interval", "drain",
)  # fmt: skip
_FP8: Final = ("fp8", "fp8_e4m3")
"""Two names of one format."""
_UNQUANTIZED: Final = ("auto", "bfloat16", "float16", "float32")


def cell_of(found: Found) -> CellPart:
    """Return the candidate's cell and what both manifests have in common."""
    before, after = _manifest(found, found.baseline), _manifest(found, found.candidate)
    held: dict[str, str] = {}
    differs: dict[str, tuple[str, str]] = {}
    not_said: list[str] = []
    for name in (*_HELD, *_BUNDLE):
        one, other = (None if side is None else getattr(side, name) for side in (before, after))
        if one is None or other is None:
            not_said.append(name)
        elif one == other:
            held[name] = _shown(one)
        else:
            differs[name] = (_shown(one), _shown(other))
    return CellPart(
        candidate=None if after is None else _cell(after),
        held=held,
        differs=differs,
        not_said=tuple(not_said),
        is_bundle=any(name in differs for name in _BUNDLE),
    )


def invalid_reasons(found: Found, cell: CellPart) -> Iterator[Reason]:
    """Yield why the cell is invalid, which is no failed score."""
    for cell_variant in found.goodput.variants:
        if cell_variant.unsupported is not None:
            yield _invalid("unsupported-cell", plain(cell_variant.unsupported, 400), cell_variant.variant)
    for name, (one, other) in cell.differs.items():
        if name in _HELD:
            yield _invalid(
                "held-constant-differs", f"{name} is {one} and {other}: one thing may be changed", name
            )
    contract = found.contract.serving
    for variant in (found.baseline, found.candidate):
        manifest = _manifest(found, variant)
        for name, of_contract in (("interval", contract.interval_s), ("drain", contract.drain_s)):
            said = None if manifest is None else getattr(manifest, name)
            if said is not None and said != of_contract:
                yield _invalid(
                    "other-interval",
                    f"{plain(variant)} was run with {name} {said:g} s, the policy has {of_contract:g} s",
                    variant,
                )
        served, meant = _served_dtype(found, variant), None if manifest is None else manifest.kv_dtype
        if served is not None and meant is not None and _kind(served) != _kind(meant):
            yield _invalid(
                "silent-fallback",
                f"{plain(variant)} is said to have {plain(meant)} and its server reports {plain(served)}",
                variant,
            )
    both = [_served_dtype(found, one) for one in (found.baseline, found.candidate)]
    if None not in both and both[0] == both[1]:
        yield _invalid("same-cache-dtype", f"both servers report the cache dtype {plain(both[0] or '')}")
    for run in found.goodput.runs:
        if any(problem.id in ("closed-loop", "burst") for problem in run.problems):
            yield _invalid(
                "closed-loop",
                f"{plain(run.variant)} run {run.repetition} was not an open load, which a goodput needs",
                run.variant,
            )


def _manifest(found: Found, variant: str) -> ServingManifest | None:
    return next((table.manifests[variant] for table in found.tables if variant in table.manifests), None)


def _served_dtype(found: Found, variant: str) -> str | None:
    scrapes: list[Scrape] = [one for table in found.tables for one in table.scrapes.get(variant, ())]
    return next((one.cache_dtype for one in reversed(scrapes) if one.cache_dtype is not None), None)


def _kind(dtype: str) -> str:
    if dtype in _FP8:
        return _FP8[0]
    return _UNQUANTIZED[0] if dtype in _UNQUANTIZED else dtype


def _cell(manifest: ServingManifest) -> Cell | None:
    if manifest.kv_dtype is None or _kind(manifest.kv_dtype) == _UNQUANTIZED[0]:
        return None
    if manifest.skipped_layers:
        return "C3"
    calibrated = manifest.scale_artifact_sha256 or manifest.calibration_corpus_sha256
    return "C2" if calibrated else "C1"


def _shown(value: object) -> str:
    return plain(value if isinstance(value, str) else json.dumps(value), 80)


def _invalid(id_: str, text: str, of: str | None = None) -> Reason:
    return Reason.model_validate({"id": id_, "word": Word.invalid, "of": of, "text": text})
