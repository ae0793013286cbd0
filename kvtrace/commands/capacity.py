"""`kvtrace capacity`: how many tokens and requests a KV cache holds, by cache dtype, and the way back."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from kvtrace.capacity.build import Rollback
    from kvtrace.capacity.engine_facts import EngineFacts
    from kvtrace.capacity.model import ModelLayers
    from kvtrace.capacity.report import CapacityReport
    from kvtrace.trace.reader import Trace

_SIZES = "Layout and size"
_BACK = "Way back"


def capacity(
    model: Annotated[
        Path | None, typer.Argument(help="A checkpoint, a config.json, or a trace: NAME.kvtrace.")
    ] = None,
    cache_dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--cache-dtype",
            help="vLLM's --kv-cache-dtype, K and V apart as k=bf16,v=fp8, by layer as "
            "fp8/0,1:auto/4-7:nvfp4, or a checkpoint whose recipe it is; repeat for more. Default: fp8.",
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="Bytes for the cache of one rank, such as 40GiB.")
    ] = None,
    from_log: Annotated[
        Path | None, typer.Option("--from-log", help="The engine's start-up log: its memory and its cache.")
    ] = None,
    from_metrics: Annotated[
        Path | None, typer.Option("--from-metrics", help="A saved /metrics of the engine.")
    ] = None,
    skip_layers: Annotated[
        str | None,
        typer.Option(
            "--skip-layers", help="Layers left native: numbers and sliding_window.", rich_help_panel=_SIZES
        ),
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, help="Tensor-parallel ranks.", rich_help_panel=_SIZES)
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", min=1, help="Default: the engine's.", rich_help_panel=_SIZES),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option("--block-size", min=1, help="Default: the backend's.", rich_help_panel=_SIZES),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option("--max-num-batched-tokens", min=1, help="Of a batch.", rich_help_panel=_SIZES),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", help="Attention backend of all layers.", rich_help_panel=_SIZES),
    ] = None,
    platform: Annotated[
        Literal["gpu", "cpu"] | None,
        typer.Option("--platform", help="Default: the engine's, else gpu.", rich_help_panel=_SIZES),
    ] = None,
    prefix_caching: Annotated[
        bool | None,
        typer.Option("--prefix-caching/--no-prefix-caching", help="vLLM's.", rich_help_panel=_SIZES),
    ] = None,
    hybrid_manager: Annotated[
        bool | None,
        typer.Option(
            "--hybrid-manager/--no-hybrid-manager",
            help="Whether windows free blocks.",
            rich_help_panel=_SIZES,
        ),
    ] = None,
    num_gpu_blocks_override: Annotated[
        int | None,
        typer.Option("--num-gpu-blocks-override", min=2, help="vLLM's.", rich_help_panel=_SIZES),
    ] = None,
    mtp: Annotated[
        bool, typer.Option("--mtp", help="With the model's own draft layers.", rich_help_panel=_SIZES)
    ] = False,
    draft: Annotated[
        Path | None, typer.Option("--draft", help="A draft model beside it.", rich_help_panel=_SIZES)
    ] = None,
    speculative_tokens: Annotated[
        int, typer.Option("--speculative-tokens", min=0, help="A step.", rich_help_panel=_SIZES)
    ] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help="The candidate's max_num_seqs: does auto hold it?", rich_help_panel=_BACK
        ),
    ] = None,
    rollback: Annotated[
        Literal["worst", "planned", "simulated"] | None,
        typer.Option("--rollback", help="The case that decides.", rich_help_panel=_BACK),
    ] = None,
    tokens_per_request: Annotated[
        int | None,
        typer.Option("--tokens-per-request", min=1, help="Planned, without a trace.", rich_help_panel=_BACK),
    ] = None,
    baseline_budget: Annotated[
        str | None,
        typer.Option("--baseline-budget", help="Default: the candidate's.", rich_help_panel=_BACK),
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", help="Write the steps back, Markdown.", rich_help_panel=_BACK)
    ] = None,
    drain_s: Annotated[
        int, typer.Option("--drain-s", min=0, help="Seconds to drain.", rich_help_panel=_BACK)
    ] = 60,
    manifest: Annotated[
        Path | None, typer.Option("--manifest", help="The baseline's manifest.", rich_help_panel=_BACK)
    ] = None,
    write_recipe: Annotated[
        Path | None,
        typer.Option(
            "--write-recipe",
            help="Write the last --cache-dtype's formats by layer as ModelOpt's hf_quant_config.json.",
        ),
    ] = None,
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Say how many tokens and requests a KV cache holds, exactly as vLLM's own planning does.

    With --limit, say whether auto's cache holds what the candidate admits, and which limit to set before
    going back. Without MODEL, --from-log or --from-metrics alone shows what an engine said.
    """
    from kvtrace.capacity.budget import Budget, read_budget
    from kvtrace.capacity.build import capacity_report
    from kvtrace.capacity.cautions import with_unread_maps
    from kvtrace.capacity.inputs import Asked, planned
    from kvtrace.capacity.text import capacity_text

    if sum(one is not None for one in (budget, from_log, from_metrics)) > 1:
        raise InputError("expected one of --budget, --from-log and --from-metrics")
    if limit is None and (sheet or rollback or baseline_budget or tokens_per_request):
        raise InputError("--rollback, --tokens-per-request, --baseline-budget and --sheet need --limit")
    engine = _engine(from_log, from_metrics)
    if model is None:
        if engine is None:
            raise InputError("expected MODEL, --from-log or --from-metrics; see kvtrace capacity --help")
        report = _of_engine_alone(engine)
    else:
        source = _opened(model)
        asked = Asked(
            max_model_len=max_model_len,
            tp=tp,
            block_size=block_size,
            max_num_batched_tokens=max_num_batched_tokens,
            platform=platform,
            backend=backend,
            prefix_caching=prefix_caching,
            hybrid_manager=hybrid_manager,
            skip_layers=tuple(part.strip() for part in (skip_layers or "").split(",") if part.strip()),
            speculative_tokens=speculative_tokens,
            num_blocks=num_gpu_blocks_override,
            own_draft=mtp,
            draft=draft,
        )
        found = planned(source, engine, asked)
        caches = {one: _cache_name(one) for one in cache_dtype or ()}
        own = [engine.cache_dtype] if engine and engine.cache_dtype else []
        amount: tuple[Budget, str] | None = (read_budget(budget), "as given") if budget else None
        report = capacity_report(
            found.model,
            found.serving,
            [*own, *(caches.values() or ([] if own else ["fp8"]))],
            budget=amount,
            engine=engine,
            assumptions=found.assumptions,
            rollback=_rollback(limit, rollback, tokens_per_request, baseline_budget, source),
        )
        report = with_unread_maps(report, [name for text, name in caches.items() if name != text])
        if write_recipe is not None:
            if not caches:
                raise InputError("--write-recipe: needs --cache-dtype, which says what to write")
            text = _recipe(list(caches.values())[-1], found.model)
            deliver(text, write_recipe, force=force)
    if sheet is not None:
        from kvtrace.capacity.sheet import rollback_sheet

        candidate = report.formats[-1].label if report.formats else "the candidate"
        text = rollback_sheet(
            report, candidate, model=_served(model, report), drain_s=drain_s, manifest=manifest
        )
        deliver(text, sheet, force=force)
    if as_json or output_format == "json":
        deliver(report.model_dump_json(indent=2) + "\n", output, force=force, for_programs=True)
    else:
        deliver(capacity_text(report), output, force=force)


def _cache_name(text: str) -> str:
    """Return what is planned: the text itself, or the formats that the recipe at a path gives."""
    from kvtrace.candidates.recipe import cache_of, is_path_of_recipe
    from kvtrace.capacity.stored import FLAT_LATENTS

    return cache_of(text).name if text not in FLAT_LATENTS and is_path_of_recipe(text) else text


def _recipe(name: str, model: ModelLayers) -> str:
    from kvtrace.candidates.recipe import recipe_text
    from kvtrace.formats import parse_format

    cache = parse_format(name)
    return recipe_text(cache, model.attending, model.num_layers, is_hybrid=model.is_hybrid)


def _served(model: Path | None, report: CapacityReport) -> str:
    """Return the model as the server gets it: a trace knows its name alone."""
    is_trace = model is not None and (model / "trace.json").is_file()
    return report.model.name if report.model and (is_trace or model is None) else str(model)


def _engine(from_log: Path | None, from_metrics: Path | None) -> EngineFacts | None:
    from kvtrace.capacity.engine_log import read_engine_log
    from kvtrace.capacity.engine_metrics import read_engine_metrics

    if from_log is not None:
        return read_engine_log(from_log)
    return read_engine_metrics(from_metrics) if from_metrics is not None else None


def _of_engine_alone(engine: EngineFacts) -> CapacityReport:
    from kvtrace.capacity.build import engine_part
    from kvtrace.capacity.report import CapacityReport

    return CapacityReport(
        model=None,
        serving=None,
        budget=None,
        engine=engine_part(engine),
        formats=(),
        warnings=(),
        assumptions=(),
        rollback=None,
    )


def _opened(model: Path) -> Path | Trace:
    if not (model / "trace.json").is_file():
        return model
    from kvtrace.trace.reader import open_trace

    return open_trace(model, may_lack_tokens=True)


def _rollback(
    limit: int | None,
    basis: Literal["worst", "planned", "simulated"] | None,
    tokens_per_request: int | None,
    baseline_budget: str | None,
    source: Path | Trace,
) -> Rollback | None:
    from kvtrace.capacity.budget import read_budget
    from kvtrace.capacity.build import Rollback
    from kvtrace.capacity.lengths import lengths_of, one_length
    from kvtrace.trace.reader import Trace

    if limit is None:
        return None
    lengths = lengths_of(source) if isinstance(source, Trace) else None
    if tokens_per_request is not None:
        lengths = one_length(tokens_per_request)
    return Rollback(limit, lengths, basis, read_budget(baseline_budget) if baseline_budget else None)
