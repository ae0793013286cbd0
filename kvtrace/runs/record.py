"""`run.json`: what a run was made from, with the hash of every input."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from kvtrace.runs.manifest import ServingManifest
from kvtrace.runs.table import RUN_SCHEMA_VERSION
from kvtrace.trace.cache_dtypes import CacheKind, common_kind
from kvtrace.trace.format import EngineRecord, ModelRecord, Record
from kvtrace.trace.sealed import Seconds  # noqa: TC001 -- pydantic reads the annotations


class SourceRecord(Record):
    """One trace that was replayed."""

    name: str
    """The `source` column of every table."""
    path: str
    """As given on the command line; only for people."""
    trace_id: str
    trace_sha256: str
    """`Trace.digest`: over the commit digests of all ranks and the records."""
    created_at: Seconds
    """Unix seconds, when the engine started."""
    model: ModelRecord
    engine: EngineRecord
    has_fp8_cache: bool
    """Whether the engine wrote the captured layers' K and V as static FP8; it may have left some layers."""
    cache_dtypes: tuple[str, ...] = ()
    """Distinct cache dtypes of the captured layers, sorted. Empty in runs of an earlier kvtrace."""
    attention_backends: tuple[str, ...] = ()
    """Distinct backends of the captured layers, sorted."""
    closed: bool = True
    """False where a rank was not shut down in order: its last rows may be missing."""
    running: bool = False
    """Whether its engine still ran at the replay: later rows are not among those replayed."""
    method: str = "direct"
    """direct (element by element) or profile (over exact counts); float32 traces are always direct."""
    tensors_reread: bool = True
    """False where the trace's profile stood for its tensors: their files were looked at, not read."""

    @property
    def cache_kind(self) -> CacheKind:
        """Return what the captured layers' caches are taken together."""
        if self.cache_dtypes:
            return common_kind(self.cache_dtypes)
        return "static_fp8" if self.has_fp8_cache else "unquantized"


class RunRecord(Record):
    """`run.json`. Candidates and their artifacts' hashes are in candidates.parquet."""

    schema_version: str = RUN_SCHEMA_VERSION
    kvtrace_version: str
    created_at: Seconds
    """Unix seconds."""
    device: str
    """Where the round trip ran, such as cpu or cuda:0."""
    method: str = "direct"
    """direct, profile, or mixed where sources differ."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of the libraries that computed the numbers."""
    tables: dict[str, str] = Field(default_factory=dict)
    """File name → CRC32C of each table (`kvtrace.runs.checksums`); checked when the run is opened."""
    sources: tuple[SourceRecord, ...]
    replays_attention: bool = True
    """False where the replay was told to leave it out (--no-attention), whatever queries there are."""
    policy_sha256: str | None = None
    """Of the policy.toml that replay was given: limits are seen to be older than the results."""
    policy_date: str | None = None
    """ISO date, as that policy states it."""
    manifest: ServingManifest = ServingManifest()


@dataclass(frozen=True, slots=True)
class PolicyStamp:
    """The policy that was there before the results."""

    sha256: str
    date: str
    """ISO date."""
