"""The kinds of files. Whoever adds a kind of file adds its property here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fuzz import (
    of_arrays,
    of_artifacts,
    of_capacity,
    of_decide,
    of_outcomes,
    of_quality,
    of_runs,
    of_serving,
    of_settings,
    of_traces,
)

if TYPE_CHECKING:
    from fuzz.bases import Draw

KINDS: Final[dict[str, Draw]] = {
    "records of a trace": of_traces.records,
    "unsealed records": of_traces.unsealed,
    "rows": of_arrays.rows,
    "tensors": of_arrays.tensors,
    "tensors under formats": of_arrays.formats,
    "records of queries": of_traces.records_of_queries,
    "rows of queries": of_arrays.rows_of_queries,
    "forged profiles": of_traces.profiles,
    "records of a profile": of_traces.profile_records,
    "arrays of a profile": of_arrays.counts,
    "kept sums of a format": of_traces.kept_sums,
    "values of scales": of_arrays.scales,
    "artifacts": of_artifacts.artifacts,
    "model configs": of_artifacts.model_configs,
    "runs": of_runs.runs,
    "runs with harm": of_runs.runs_with_harm,
    "policies": of_settings.policies,
    "manifests": of_settings.manifests,
    "prompts": of_settings.prompts,
    "outcomes": of_outcomes.outcomes,
    "cases and answers": of_quality.judged,
    "prompts of variants": of_quality.asked,
    "log-probabilities": of_quality.scores,
    "served requests": of_serving.served,
    "scrapes": of_serving.scrapes,
    "tables of served requests": of_serving.tables,
    "evidence of a decision": of_decide.evidence,
    "capacity configs": of_capacity.configs,
    "recipes by layer": of_capacity.recipes,
    "engine logs": of_capacity.logs,
    "engine metrics": of_capacity.metrics,
}
REACH_NATIVE_CODE: Final = (
    "records of a trace", "rows", "tensors", "tensors under formats", "rows of queries", "forged profiles",
    "records of a profile", "arrays of a profile", "values of scales", "artifacts", "runs",
    "runs with harm",
)  # fmt: skip
"""Those whose arrays or tables come to numba, Blosc, DuckDB or torch."""
BEFORE_CHECKSUMS: Final = ("unsealed records",)
"""Those that a checksum keeps away, or stand before it."""
