"""What a worker logs once its layers are hooked: what is captured, what is not, and what would lose rows.

It needs torch and no vllm.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.trace.format import RankRecord
    from kvtrace_capture.rank_stores import Layer
    from kvtrace_capture.settings import CaptureSettings

logger = logging.getLogger("kvtrace.capture")


def say_what_is_captured(
    vllm_config: Any, settings: CaptureSettings, rank: RankRecord, layers: Sequence[Layer], trace: Path
) -> None:
    """Log what this rank captures into `trace`: as warnings, since vLLM shows no less of others' loggers."""
    what = "K and V" if settings.queries == "none" else "K, V and Q"
    hooked = [layer for layer in layers if layer.hooked is not None or layer.queries is not None]
    logger.warning("kvtrace: capturing %s of %d layers into %s", what, len(hooked), trace)
    if rank.draft_layers:
        logger.warning("kvtrace: a draft model's layers are not captured: %s", ", ".join(rank.draft_layers))
    _warn_of_steps_beyond_the_queue(vllm_config.scheduler_config.max_num_batched_tokens, settings, layers)
    if rank.rank == 0 and not vllm_config.shutdown_timeout:
        logger.warning(
            "kvtrace: a server without --shutdown-timeout kills its workers when it is stopped, and with "
            "them the rows of the last %g s; start it with --shutdown-timeout 30",
            settings.flush_seconds,
        )


def _warn_of_steps_beyond_the_queue(
    num_tokens: int, settings: CaptureSettings, layers: Sequence[Layer]
) -> None:
    """Say at the start what would lose whole prefill steps, and with them leave mostly decode."""
    row_bytes = sum(layer.hooked.row_bytes for layer in layers if layer.hooked is not None)
    num_rows = num_tokens if settings.queries == "probe" else -(-num_tokens // settings.position_stride)
    largest = num_rows * row_bytes
    if largest > settings.queue_bytes:
        logger.warning(
            "kvtrace: a step of %d tokens has up to %d bytes of captured rows, more than queue_bytes "
            "(%d), and would be dropped whole: raise queue_bytes%s",
            num_tokens,
            largest,
            settings.queue_bytes,
            "" if settings.queries == "probe" else " or position_stride",
        )
