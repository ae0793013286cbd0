"""How large attention is beside the residual stream that it is added to: watched in the model's own layers.

No hook of a KV connector reaches the residual stream. `capture run` gives vLLM this class as its worker
extension, and asks each worker to watch once its model is there. Only an eager model calls its layers one by
one; a compiled one is not watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

if TYPE_CHECKING:
    import torch

    from kvtrace_capture.recorder import StepRecorder
    from kvtrace_capture.self_check import CheckedRecorder

_NORM: Final = ".post_attention_layernorm"
"""Of a layer that takes what attention adds and the stream before it, and norms their sum."""


class WatchResidual:
    """Mixed into vLLM's worker."""

    def kvtrace_watch_residual(self) -> bool:
        """Watch this worker's layers. Return whether there are such."""
        model = self.model_runner.model  # type: ignore[attr-defined]
        return has_kv_transfer_group() and bool(get_kv_transfer_group().watch_residual(model))


def watch_layers(model: Any, name_of_layer: dict[str, str], recorder: StepRecorder | CheckedRecorder) -> bool:
    """Let the recorder see what each layer's attention adds, and to what. Return whether any can be seen.

    name_of_layer: a decoder layer's name → that of its attention.
    """
    found = False
    for name, module in model.named_modules():
        attention = name_of_layer.get(name.removesuffix(_NORM)) if name.endswith(_NORM) else None
        if attention is not None:
            module.register_forward_pre_hook(_hook(attention, recorder))
            found = True
    return found


def _hook(attention: str, recorder: StepRecorder | CheckedRecorder) -> Any:
    def before(module: Any, arguments: tuple[torch.Tensor | None, ...]) -> None:  # noqa: ARG001
        # Other models norm what attention adds before it is added, and give one argument.
        if len(arguments) == 2 and arguments[0] is not None and arguments[1] is not None:
            recorder.take_residual(attention, arguments[0], arguments[1])

    return before
