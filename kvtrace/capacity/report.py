"""What `kvtrace capacity` says: model, cache dtypes, the engine's own words, warnings, the way back."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

CAPACITY_SCHEMA_VERSION: Final = "1.0"

WarningKind = Literal[
    "padding",
    "state-block",
    "block-rounding",
    "head-copies",
    "differs-from-engine",
    "too-small",
    "not-served",
    "map-unread",
]


class Part(BaseModel):
    """A part of the report. Bytes are those of one rank unless a name says otherwise."""

    model_config = ConfigDict(frozen=True)


class ModelPart(Part):
    """The model, as its configuration says."""

    name: str
    model_type: str
    dtype: str
    num_layers: int
    num_full: int
    """Layers that keep every token, draft layers included."""
    num_windows: int
    """Layers that keep the last tokens alone."""
    num_latent: int
    num_states: int
    """Layers that keep a state instead of K and V."""
    num_shared: int
    """Layers that read another layer's cache and own none."""
    num_draft: int
    kv_heads: int
    """Over all ranks, of the first layer that has some."""


class ServingPart(Part):
    """The settings that the numbers are of."""

    max_model_len: int
    tensor_parallel: int
    max_num_batched_tokens: int
    in_flight_tokens: int
    """Scheduled and not settled: windows keep their blocks for so many more."""
    prefix_caching: bool
    hybrid_manager: bool
    speculative_tokens: int
    platform: Literal["gpu", "cpu"]


class BudgetPart(Part):
    """The bytes for the cache of one rank."""

    num_bytes: int
    least: int
    most: int
    source: str


class GroupPart(Part):
    """Layers that share one table of blocks."""

    kind: str
    num_layers: int
    block_tokens: int
    page_bytes: int
    """Of one layer, padding included."""
    blocks_per_request: int
    """At full length, the most that a request holds at a time."""


class FormatPart(Part):
    """One cache dtype."""

    label: str
    cache_dtype: str
    skip_layers: tuple[str, ...]
    reason: str | None = None
    """Why it cannot be planned; then there is nothing else."""
    native_layers: tuple[int, ...] = ()
    backends: tuple[str, ...] = ()
    """Taken for the layers; an engine may choose others."""
    vllm_flags: str | None = None
    """That serve it so; None: no released vLLM does, and blocks are those of pages of several sizes."""
    block_size: int | None = None
    bytes_per_token: int | None = None
    """Over all layers that grow with tokens, scales in the page included, padding and states not."""
    bytes_per_token_all_ranks: int | None = None
    head_copies: int | None = None
    """Ranks that hold the same KV head."""
    state_bytes: int | None = None
    """Of one state of every layer that keeps one."""
    bytes_per_block: int | None = None
    padding_frac: float | None = None
    """Of a block's bytes, those that no layer uses."""
    blocks_per_request: int | None = None
    groups: tuple[GroupPart, ...] = ()
    num_blocks: int | None = None
    """None, as all below: no budget is known."""
    least_blocks: int | None = None
    most_blocks: int | None = None
    usable_blocks: int | None = None
    """One block never holds tokens."""
    num_tokens: int | None = None
    """The engine's "KV cache size": requests of full length × their length."""
    concurrency: float | None = None
    """Requests of full length."""
    holds_one_request: bool | None = None
    times_auto_bytes: float | None = None
    """Bytes a token of `auto` over those of this one."""
    times_auto_tokens: float | None = None


class EnginePart(Part):
    """What an engine said. None: it did not."""

    source: str
    cache_dtype: str | None
    block_size: int | None
    num_blocks: int | None
    num_tokens: int | None
    max_model_len: int | None
    concurrency: float | None
    weights_bytes: int | None
    pool_bytes: int | None
    rest_bytes: int | None
    """Of what was requested: neither weights nor pool."""
    requested_bytes: int | None
    activation_bytes: int | None
    graph_bytes: int | None
    agrees: bool | None
    """Whether the plan of its cache dtype gives its blocks and tokens; None: it cannot be told."""


class WarningPart(Part):
    """Something that an operator must know of one cache dtype."""

    kind: WarningKind
    label: str
    text: str


class HeadroomPart(Part):
    """One basis of a way back."""

    basis: Literal["worst", "planned", "simulated"]
    blocks_needed: float | None
    overflow_frac: float | None
    fits: bool
    largest_limit: int


class RollbackPart(Part):
    """Whether the baseline holds what the candidate's limit admits."""

    baseline: str
    limit: int
    """Requests that the candidate admits at a time."""
    usable_blocks: int
    basis: Literal["worst", "planned", "simulated"]
    """That decides."""
    headroom: tuple[HeadroomPart, ...]
    fits: bool
    limit_to_set: int
    """`max_num_seqs` to set before the baseline's cache is back; the limit itself where it fits."""


class CapacityReport(Part):
    """The whole report."""

    schema_version: str = CAPACITY_SCHEMA_VERSION
    model: ModelPart | None
    serving: ServingPart | None
    budget: BudgetPart | None
    engine: EnginePart | None
    formats: tuple[FormatPart, ...]
    warnings: tuple[WarningPart, ...]
    assumptions: tuple[str, ...]
    """What was taken for lack of a word; an option or an engine's log replaces it."""
    rollback: RollbackPart | None
