"""What vLLM 0.32's V2 runner needs besides a backend to run on a CPU; called in each of its processes.

Each part says what it mends. None touches what capture sees: K, V, positions, batches.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

ASYNC_SCHEDULING = "KVTRACE_TEST_ASYNC_SCHEDULING"
"""Set to 1, asynchronous scheduling stays as the engine was asked for."""


def register() -> None:
    """Mend the interpreter and vLLM, where kernels are interpreted."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    _take_any_mask()
    _let_all_be_nan()
    _sample_in_one_program()
    if os.environ.get(ASYNC_SCHEDULING) == "1":
        _keep_async_scheduling()


def _take_any_mask() -> None:
    """A mask of integers, as the n-gram kernel makes one, is refused by the interpreter's load and store."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

    def taking(original: Any) -> Any:
        place = list(inspect.signature(original).parameters).index("mask")

        def with_booleans(*arguments: Any, **named: Any) -> Any:
            mask = arguments[place]
            mask.data = mask.data.astype(np.bool_, copy=False)
            return original(*arguments, **named)

        return with_booleans

    for name in ("create_masked_load", "create_masked_store"):
        setattr(InterpreterBuilder, name, taking(getattr(InterpreterBuilder, name)))


def _let_all_be_nan() -> None:
    """Warm-up skips attention and samples from NaN: numpy raises there, where a GPU gives some place."""
    import numpy as np
    from triton.runtime.interpreter import ReduceOps

    original = ReduceOps.min_max

    def min_max(self: Any, values: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        def place(found: Any, **named: Any) -> Any:
            try:
                return idx_reduce_op(found, **named)
            except ValueError:
                return np.argmax(found, **named)

        return original(self, values, val_reduce_op, idx_reduce_op and place)

    ReduceOps.min_max = min_max


def _sample_in_one_program() -> None:
    """A program for every 1,024 tokens of the vocabulary takes the interpreter half a second a step."""
    from vllm.v1.worker.gpu.sample import gumbel

    before, after = "BLOCK_SIZE = 1024", "BLOCK_SIZE = triton.next_power_of_2(vocab_size)"
    source = inspect.getsource(gumbel.gumbel_sample)
    if source.count(before) != 1:
        raise RuntimeError(f"{gumbel.__file__}: gumbel_sample has changed; expected {before} once")
    exec(compile(source.replace(before, after), gumbel.__file__, "exec"), vars(gumbel))


def _keep_async_scheduling() -> None:
    """The CPU platform switches asynchronous scheduling off, whatever was asked for."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    original = platform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = bool(asked)

    platform.check_and_update_config = classmethod(check_and_update_config)
