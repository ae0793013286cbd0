"""The KV connector that vLLM loads: scheduler side and worker side of capture.

It moves no KV: it never offers cached tokens, loads nothing and delays no block. vLLM's connector interface
is used for what it tells: requests and block tables on the scheduler's side, begin and end of a step on the
worker's.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import vllm
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.platforms import current_platform

from kvtrace.trace.capture_names import CONTROL_FILE, KEY_FILE
from kvtrace.trace.format import (
    REQUESTS_FILE,
    SAMPLING_FILE,
    TRACE_FILE,
    PrivacyRecord,
    RankRecord,
    TraceRecord,
    seal,
)
from kvtrace_capture.engine_facts import engine_record, model_record
from kvtrace_capture.hooks import (
    decoder_layer,
    find_layers,
    layers_without_kv,
    left_out,
    wrap_attention,
    wrap_cache_write,
)
from kvtrace_capture.journal import Journal
from kvtrace_capture.obstacles import UnsupportedEngineError, refuse_unsupported
from kvtrace_capture.privacy import key_id, load_or_make_key
from kvtrace_capture.private_files import write_private
from kvtrace_capture.rank_stores import make_recorder
from kvtrace_capture.request_log import RequestLog
from kvtrace_capture.residual import watch_layers
from kvtrace_capture.sampler import Sampler
from kvtrace_capture.sampling_switch import SamplingSwitch
from kvtrace_capture.self_check import CheckedRecorder
from kvtrace_capture.settings import parse_settings
from kvtrace_capture.start_log import say_what_is_captured
from kvtrace_capture.step_plan import StepPlan
from kvtrace_capture.trace_directory import find_trace_directory, make_trace_directory, start_id
from kvtrace_capture.vllm_versions import close_at_exit, is_tried

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from kvtrace_capture.recorder import StepRecorder

logger = logging.getLogger("kvtrace.capture")


@dataclass
class KVTraceMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """One step's plan on its way from the scheduler to the workers."""

    plan: StepPlan


class KVTraceConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Captures sampled K and V of a running engine into a `.kvtrace` directory."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._settings = parse_settings(transfer.kv_connector_extra_config)
        self._start = start_id(
            transfer.engine_id, vllm_config.instance_id, vllm_config.parallel_config.data_parallel_rank
        )
        self._block_sizes = [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups]
        self._recorder: StepRecorder | CheckedRecorder | None = None
        self._attention_of: dict[str, str] = {}
        self._log: RequestLog | None = None
        self._switch: SamplingSwitch | None = None
        self._is_fault_logged = False
        self._closers: list[Callable[[], Any]] = []
        if role == KVConnectorRole.SCHEDULER:
            self._switch, self._log = self._follow_requests()
            self._closers = [close_at_exit(self, self._log.close), close_at_exit(self, self._switch.close)]

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:  # noqa: ARG003
        """True: Python, and the hook with it, is skipped when a full CUDA graph is replayed."""
        return True

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a preempted request need not be recomputed for capture's sake."""
        return False

    # Worker side

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Hook every attention layer and create this rank's store.

        Raises UnsupportedEngineError, OSError or ValueError: the engine then does not start.
        """
        assert self._recorder is None, "vLLM registers its KV caches once"
        try:
            self._hook_layers(kv_caches)
        except (AttributeError, KeyError, TypeError) as error:
            raise UnsupportedEngineError(
                f"kvtrace does not fit {self._engine_name()}: {type(error).__name__}: {error}"
            ) from error

    def _hook_layers(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        config, settings = self._vllm_config, self._settings
        tp_rank, pp_rank = get_tp_group().rank_in_group, get_pp_group().rank_in_group
        refuse_unsupported(config)
        layers = find_layers(
            config, self._kv_cache_config, kv_caches, settings.layers, tp_rank, settings.queries
        )
        rank = pp_rank * config.parallel_config.tensor_parallel_size + tp_rank
        trace = self._create_trace() if rank == 0 else find_trace_directory(settings.directory, self._start)
        of_rank = RankRecord(
            trace_id=self._start,
            rank=rank,
            tp_rank=tp_rank,
            pp_rank=pp_rank,
            rows_per_chunk=1,
            layers=tuple(layer.record for layer in layers),
            draft_layers=left_out(config),
        )
        self._recorder = make_recorder(trace, of_rank, layers, self._block_sizes, settings)
        hooked = {
            layer.record.name for layer in layers if layer.hooked is not None or layer.queries is not None
        }
        if not is_tried(vllm.__version__, config.device_config.device_type):
            self._recorder = CheckedRecorder(self._recorder, hooked, self._engine_name())
        self._closers.append(close_at_exit(self, self._recorder.close))
        asked = [layer.record.name for layer in layers if layer.queries is not None]
        self._attention_of = {decoder_layer(name): name for name in asked}
        for layer in layers:
            if layer.record.name in hooked:
                wrap_cache_write(layer.module, self._recorder)
            if layer.queries is not None:
                wrap_attention(layer.module, self._recorder, with_output=layer.queries.o_shape is not None)
        say_what_is_captured(config, settings, of_rank, layers, trace)

    def watch_residual(self, model: Any) -> bool:
        """Measure how large attention is beside the residual stream. Return whether the model can be watched.

        model: run layer by layer (eager). Nothing is measured where queries are not captured.
        """
        if self._recorder is None or self._settings.queries == "none":
            return False
        return watch_layers(model, self._attention_of, self._recorder)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Begin a step."""
        super().bind_connector_metadata(connector_metadata)
        if self._recorder is not None and isinstance(connector_metadata, KVTraceMetadata):
            self._recorder.begin(connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load nothing."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for nothing."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Read nothing of the cache: its tiles may be permuted, and its values rounded to FP8."""

    def wait_for_save(self) -> None:
        """End a step."""
        if self._recorder is not None:
            self._recorder.finish()

    # Scheduler side

    def on_new_request(self, request: Any) -> None:
        """Number a request and note its arrival."""
        self._follow(lambda log: log.arrive(request))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:  # noqa: ARG002
        """Offer no tokens. A request that came through another connector's wrapper is noted here."""
        self._follow(lambda log: log.arrive(request))
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:  # noqa: ARG002
        """Note a request that was not seen before."""
        self._follow(lambda log: log.arrive(request))

    def build_connector_meta(self, scheduler_output: Any) -> KVTraceMetadata:
        """Return the step's plan."""
        plan = self._follow(lambda log: log.plan_step(scheduler_output))
        return KVTraceMetadata(plan or StepPlan(step=-1))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:  # noqa: ARG002
        """Note the request's end; its blocks are free at once."""
        self._follow(lambda log: log.finish(request))
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        """Note the request's end; its blocks are free at once."""
        return self.request_finished(request, list(block_ids[0]) if block_ids else [])

    def reset_cache(self) -> bool:
        """Return True: there is no cache here to reset."""
        return True

    def shutdown(self) -> None:
        """Write what is queued and mark the stores as closed."""
        self._recorder = self._log = None
        for close in self._closers:
            try:
                close()
            except Exception as error:
                logger.error("kvtrace: the trace was not closed in order: %s", error, exc_info=error)

    def _follow(self, action: Callable[[RequestLog], Any]) -> Any:
        """Run the scheduler's bookkeeping; a fault in it must never reach a request."""
        if self._log is None or self._switch is None:
            return None
        try:
            self._log.follow_sampling(self._switch.current)
            return action(self._log)
        except Exception as error:
            if not self._is_fault_logged:
                self._is_fault_logged = True
                logger.error("kvtrace: requests are not followed (logged once): %s", error, exc_info=error)
            return None

    def _engine_name(self) -> str:
        return f"vLLM {vllm.__version__} on {self._vllm_config.device_config.device_type}"

    def _create_trace(self) -> Any:
        engine = engine_record(self._vllm_config, vllm.__version__, current_platform)
        if stateful := layers_without_kv(self._vllm_config):
            engine.settings["layers_without_kv"] = stateful
            logger.warning("kvtrace: %d layers keep no K and V: %s", len(stateful), ", ".join(stateful))
        trace = make_trace_directory(self._settings.directory, self._start)
        record = TraceRecord(
            trace_id=self._start,
            created_at=time.time(),
            model=model_record(self._vllm_config),
            engine=engine,
            privacy=PrivacyRecord(key_id=key_id(self._key())),
            line_commits=True,
        )
        write_private(trace / TRACE_FILE, seal(record, indent=1))
        return trace

    def _follow_requests(self) -> tuple[SamplingSwitch, RequestLog]:
        settings = self._settings
        trace = find_trace_directory(settings.directory, self._start)
        switch = SamplingSwitch(
            settings.control_file or settings.directory / CONTROL_FILE, settings, trace / SAMPLING_FILE
        )
        speculative = self._vllm_config.speculative_config
        log = RequestLog(
            Journal(trace / REQUESTS_FILE),
            Sampler(switch.current.settings),
            self._key(),
            self._block_sizes,
            speculative.num_speculative_tokens if speculative is not None else 0,
            randomized_ids=not getattr(envs, "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", False),
        )
        return switch, log

    def _key(self) -> bytes:
        return load_or_make_key(self._settings.hash_key_file or self._settings.directory / KEY_FILE)
