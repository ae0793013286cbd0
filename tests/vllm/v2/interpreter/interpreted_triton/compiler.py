"""The half of a Triton backend that compiles: never asked to, as kernels are interpreted."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend

_REFUSED = "this Triton interprets; set TRITON_INTERPRET=1"


class InterpretedBackend(BaseBackend):
    """Known by its name alone."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "interpreted"

    def get_module_map(self) -> dict[str, Any]:
        return {}

    def parse_options(self, options: dict[str, Any]) -> object:
        raise NotImplementedError(_REFUSED)

    def add_stages(self, stages: dict[str, Any], options: object, language: Any = None) -> None:
        raise NotImplementedError(_REFUSED)

    def load_dialects(self, context: Any) -> None:
        raise NotImplementedError(_REFUSED)
