"""The model and the engine that a trace was captured from, and what it holds of people."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kvtrace.trace.sealed import Count, Name, Record, Size, between

StoredDtype = Literal["bfloat16", "float16", "float32"]
Ranks = Annotated[int, between(1, 1 << 12)]


class ModelRecord(Record):
    """The model as the engine loaded it. Digests are `algorithm:hex`; None where it could not be read."""

    name: Name
    revision: str | None = None
    tokenizer_revision: str | None = None
    weights_digest: str | None = None
    """Over all tensors that are no scales (`kvtrace.trace.fingerprint`)."""
    tokenizer_digest: str | None = None
    chat_template_digest: str | None = None
    dtype: StoredDtype
    num_layers: Size
    num_attention_heads: Size
    num_kv_heads: Size
    """KV heads of the whole model, before tensor parallelism."""
    head_dim: Size
    max_model_len: Count
    hf_config: dict[str, Any] = Field(default_factory=dict)


class EngineRecord(Record):
    """The engine that ran, and the settings that shape what it wrote."""

    name: Name
    version: Name
    torch_version: str
    kvtrace_version: str
    platform: str | None = None
    """cuda, rocm, cpu, xpu, tpu, hpu, or another by the engine's name. Since 1.2; `kvtrace.trace.platforms`
    tells it of older traces."""
    device: Name
    """The product's name, such as "NVIDIA H100 80GB HBM3"; the device type where a platform has no names."""
    compute_capability: str | None = None
    """Such as "9.0"; None where the platform has none. Since 1.2."""
    kv_cache_dtype: str
    """As the engine resolved it: `auto` (the model's dtype), `fp8_e4m3`, …"""
    block_size: Count
    tensor_parallel_size: Ranks = 1
    pipeline_parallel_size: Ranks = 1
    data_parallel_rank: Count = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    """Scheduler, cache, compilation and decoding settings, by the engine's own names."""


class PrivacyRecord(Record):
    """What the trace holds of the people who sent the prompts."""

    prompt_text: bool = False
    token_ids: bool = False
    hash_algorithm: str = "hmac-sha256"
    key_id: str
    """First 8 hex digits of the key's SHA-256: hashes can be joined only between traces with equal key_id."""
