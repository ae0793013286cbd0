"""From a model, its serving and a budget to the capacity report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvtrace.capacity.budget import Budget
from kvtrace.capacity.cautions import warnings_of
from kvtrace.capacity.plan import CachePlan, plan_cache
from kvtrace.capacity.report import (
    BudgetPart,
    CapacityReport,
    EnginePart,
    FormatPart,
    GroupPart,
    HeadroomPart,
    ModelPart,
    RollbackPart,
    ServingPart,
)
from kvtrace.capacity.rollback import Basis, headroom
from kvtrace.capacity.serving import BASELINE, canonical, named_servings
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.capacity.engine_facts import EngineFacts
    from kvtrace.capacity.lengths import Lengths
    from kvtrace.capacity.model import ModelLayers
    from kvtrace.capacity.serving import Serving


@dataclass(frozen=True, slots=True)
class Rollback:
    """What is asked of the way back."""

    limit: int
    lengths: Lengths | None
    basis: Basis | None = None
    """None: the nearest to the traffic that can be told."""
    budget: Budget | None = None
    """The baseline's own; None: the candidate's."""


def capacity_report(
    model: ModelLayers,
    serving: Serving,
    cache_dtypes: Sequence[str],
    *,
    budget: tuple[Budget, str] | None,
    engine: EngineFacts | None = None,
    assumptions: Sequence[str] = (),
    rollback: Rollback | None = None,
) -> CapacityReport:
    """Return the report: `auto` first, each cache dtype after it, and once more where layers are skipped.

    budget: with where it is from. Raises InputError: the model cannot be planned at all.
    """
    plain = replace(serving, skip_layers=(), cache_dtype=BASELINE)
    baseline = plan_cache(model, plain)
    plans: dict[str, CachePlan] = {BASELINE: baseline}
    formats = []
    budget = budget or _of_the_engine(engine, model, serving)
    amount = budget[0] if budget else None
    for label, one in named_servings(cache_dtypes, serving, model).items():
        try:
            plans[label] = plan_cache(model, one)
        except InputError as error:
            formats.append(
                FormatPart(
                    label=label, cache_dtype=one.cache_dtype, skip_layers=one.skip_layers, reason=str(error)
                )
            )
            continue
        formats.append(_format(label, model, plans[label], amount, baseline))
    said = engine_part(engine, formats) if engine else None
    return CapacityReport(
        model=_model(model),
        serving=_serving(serving),
        budget=BudgetPart(
            num_bytes=budget[0].num_bytes, least=budget[0].least, most=budget[0].most, source=budget[1]
        )
        if budget
        else None,
        engine=said,
        formats=tuple(formats),
        warnings=tuple(warnings_of(model, plans, formats, engine, agrees=said.agrees if said else None)),
        assumptions=tuple(assumptions),
        rollback=_rollback(baseline, amount, rollback) if rollback else None,
    )


def engine_part(engine: EngineFacts, formats: Sequence[FormatPart] = ()) -> EnginePart:
    """Return what an engine said, and whether the plan of its cache dtype is the same."""
    same = next(
        (
            one
            for one in formats
            if engine.cache_dtype is not None
            and canonical(one.cache_dtype) == canonical(engine.cache_dtype)
            and set(one.skip_layers) == set(engine.skip_layers)
        ),
        None,
    )
    return EnginePart(
        source=engine.source,
        cache_dtype=engine.cache_dtype,
        block_size=engine.block_size,
        num_blocks=engine.num_blocks,
        num_tokens=engine.num_tokens,
        max_model_len=engine.max_model_len,
        concurrency=engine.concurrency,
        weights_bytes=_bytes(engine.weights),
        pool_bytes=_bytes(engine.pool),
        rest_bytes=engine.rest_bytes,
        requested_bytes=_bytes(engine.requested),
        activation_bytes=_bytes(engine.activations),
        graph_bytes=_bytes(engine.graphs),
        agrees=None if same is None else _agrees(engine, same),
    )


def _bytes(amount: Budget | None) -> int | None:
    return None if amount is None else amount.num_bytes


def _agrees(engine: EngineFacts, planned: FormatPart) -> bool | None:
    """Return whether blocks and tokens are the engine's, within what its log rounds away."""
    if planned.least_blocks is None or planned.most_blocks is None or planned.blocks_per_request is None:
        return None
    if engine.num_blocks is not None:
        return planned.least_blocks <= engine.num_blocks <= planned.most_blocks
    if engine.num_tokens is None or engine.max_model_len is None:
        return None
    per_request = planned.blocks_per_request
    least, most = (
        int(blocks / per_request * engine.max_model_len)
        for blocks in (planned.least_blocks, planned.most_blocks)
    )
    return least <= engine.num_tokens <= most


def _of_the_engine(
    engine: EngineFacts | None, model: ModelLayers, serving: Serving
) -> tuple[Budget, str] | None:
    """Return the bytes of an engine's pool as it says, or as its blocks imply."""
    if engine is None:
        return None
    if engine.pool is not None:
        return engine.pool, engine.source
    if engine.num_blocks is None or engine.cache_dtype is None:
        return None
    own = replace(serving, cache_dtype=engine.cache_dtype, skip_layers=engine.skip_layers)
    per_block = plan_cache(model, own).bytes_per_block
    least = engine.num_blocks * per_block
    return Budget(least, least, least + per_block - 1), f"{engine.source}: its blocks"


def _format(
    label: str, model: ModelLayers, plan: CachePlan, budget: Budget | None, baseline: CachePlan
) -> FormatPart:
    part = FormatPart(
        label=label,
        cache_dtype=plan.serving.cache_dtype,
        skip_layers=plan.serving.skip_layers,
        native_layers=plan.pages.native,
        backends=plan.pages.backends,
        vllm_flags=plan.pages.flags,
        block_size=plan.pages.block_size,
        bytes_per_token=plan.bytes_per_token,
        bytes_per_token_all_ranks=plan.bytes_per_token * plan.serving.tp,
        head_copies=copies(model, plan.serving.tp),
        state_bytes=plan.state_bytes,
        bytes_per_block=plan.bytes_per_block,
        padding_frac=plan.pool.padding_frac,
        blocks_per_request=plan.blocks_per_request,
        groups=tuple(
            GroupPart(
                kind=group.pages[0].kind,
                num_layers=len(group.pages),
                block_tokens=group.block,
                page_bytes=group.pages[0].size,
                blocks_per_request=group.blocks_of(plan.serving.max_model_len, plan.serving),
            )
            for group in plan.pool.groups
        ),
        times_auto_bytes=baseline.bytes_per_token / plan.bytes_per_token if plan.bytes_per_token else None,
    )
    if budget is None and plan.serving.num_blocks is None:
        return part
    num_bytes = budget.num_bytes if budget else 0
    blocks, own = plan.num_blocks(num_bytes), baseline.num_blocks(num_bytes)
    own_tokens = baseline.num_tokens(own)
    return part.model_copy(
        update={
            "num_blocks": blocks,
            "least_blocks": plan.num_blocks(budget.least if budget else 0),
            "most_blocks": plan.num_blocks(budget.most if budget else 0),
            "usable_blocks": max(0, blocks - 1),
            "num_tokens": plan.num_tokens(blocks),
            "concurrency": plan.concurrency(blocks),
            "holds_one_request": plan.holds_one_request(blocks),
            "times_auto_tokens": plan.num_tokens(blocks) / own_tokens if own_tokens else None,
        }
    )


def copies(model: ModelLayers, tp: int) -> int:
    """Return how many ranks hold the same K and V: all of them where a latent stands for every head.

    The layers' largest number counts.
    """
    return max(
        (
            tp if layer.kind == "latent" else max(1, tp // layer.kv_heads)
            for layer in model.layers
            if layer.kind != "state"
        ),
        default=1,
    )


def _rollback(baseline: CachePlan, amount: Budget | None, asked: Rollback) -> RollbackPart:
    budget = asked.budget or amount
    if budget is None and baseline.serving.num_blocks is None:
        raise InputError("--limit: needs the bytes of the cache; give --budget, --from-log or --from-metrics")
    num_blocks = baseline.num_blocks(budget.least if budget else 0)
    found = headroom(baseline, num_blocks, asked.limit, asked.lengths)
    basis = asked.basis or found[-1].basis
    deciding = next((one for one in found if one.basis == basis), None)
    if deciding is None:
        needs = "a trace" if basis == "simulated" else "a trace, or --tokens-per-request"
        raise InputError(f"--rollback {basis}: needs {needs}")
    return RollbackPart(
        baseline=BASELINE,
        limit=asked.limit,
        usable_blocks=num_blocks - 1,
        basis=basis,
        headroom=tuple(
            HeadroomPart(
                basis=one.basis,
                blocks_needed=one.blocks_needed,
                overflow_frac=one.overflow_frac,
                fits=one.fits,
                largest_limit=one.largest_limit,
            )
            for one in found
        ),
        fits=deciding.fits,
        limit_to_set=asked.limit if deciding.fits else deciding.largest_limit,
    )


def _model(model: ModelLayers) -> ModelPart:
    kinds = [layer.kind for layer in model.layers]
    return ModelPart(
        name=model.name,
        model_type=model.model_type,
        dtype=model.dtype,
        num_layers=model.num_layers,
        num_full=kinds.count("full"),
        num_windows=kinds.count("sliding") + kinds.count("chunked"),
        num_latent=kinds.count("latent"),
        num_states=kinds.count("state"),
        num_shared=model.num_shared,
        num_draft=sum(layer.is_draft for layer in model.layers),
        kv_heads=model.kv_heads,
    )


def _serving(serving: Serving) -> ServingPart:
    return ServingPart(
        max_model_len=serving.max_model_len,
        tensor_parallel=serving.tp,
        max_num_batched_tokens=serving.max_num_batched_tokens,
        in_flight_tokens=serving.in_flight_tokens,
        prefix_caching=serving.prefix_caching,
        hybrid_manager=serving.hybrid_manager,
        speculative_tokens=serving.speculative_tokens,
        platform=serving.platform,
    )
