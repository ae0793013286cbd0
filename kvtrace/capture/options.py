"""What an operator asks the plug-in for, as the `kv_transfer_config` that carries it to vLLM."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import InputError
from kvtrace.trace.capture_names import CONNECTOR, CONNECTOR_MODULE, DEFAULT_POSITION_STRIDE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.attention_format import QueryMode

_PREFIXES: Final = "kmgt"
_BYTES_OF_UNIT: Final = {"": 1} | {
    f"{prefix}{binary}": base**power
    for binary, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate(_PREFIXES, start=1)
}


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Keys of `kv_connector_extra_config`, by the same names; None leaves one to the plug-in."""

    directory: Path
    """Where traces go."""
    enabled: bool = True
    """False: nothing is captured until the control file says so."""
    position_stride: int = DEFAULT_POSITION_STRIDE
    request_fraction: float = 1.0
    layers: tuple[int, ...] | None = None
    workloads: tuple[str, ...] | None = None
    byte_budget: int | None = None
    external_ids: bool = True
    """False: no hash of the front end's request ids is kept."""
    hash_key_file: Path | None = None
    flush_seconds: float | None = None
    seed: int | None = None
    queries: QueryMode = "none"
    probe_requests: int | None = None
    probe_positions: int | None = None

    def kv_transfer_config(self) -> dict[str, Any]:
        """Return what `vllm serve --kv-transfer-config` and `LLM(kv_transfer_config=…)` take."""
        extra = {
            "directory": str(self.directory.absolute()),
            "enabled": None if self.enabled else False,
            "position_stride": self.position_stride,
            "request_fraction": None if self.request_fraction == 1.0 else self.request_fraction,
            "layers": None if self.layers is None else list(self.layers),
            "workloads": None if self.workloads is None else list(self.workloads),
            "byte_budget": self.byte_budget,
            "external_ids": None if self.external_ids else False,
            "hash_key_file": None if self.hash_key_file is None else str(self.hash_key_file.absolute()),
            "flush_seconds": self.flush_seconds,
            "seed": self.seed,
            "queries": None if self.queries == "none" else self.queries,
            "probe_requests": self.probe_requests,
            "probe_positions": self.probe_positions,
        }
        return {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": CONNECTOR_MODULE,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {key: value for key, value in extra.items() if value is not None},
        }


def parse_bytes(text: str) -> int:
    """Return a number of bytes; k, M, G, T count in thousands, Ki, Mi, Gi, Ti in 1,024.

    Raises InputError: it is none, or not above 0.

    >>> parse_bytes("20GB"), parse_bytes("1.5 GiB"), parse_bytes("4096")
    (20000000000, 1610612736, 4096)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    factor = _BYTES_OF_UNIT.get(match[2]) if match else None
    num_bytes = int(float(match[1]) * factor) if match and factor else 0
    if num_bytes < 1:
        raise InputError(f"{text!r} is not a number of bytes; expected one such as 20GB, 500MB or 1.5GiB")
    return num_bytes


def check_label(option: str, text: str, max_chars: int) -> None:
    """Raise InputError where the plug-in would not record a label as it was given."""
    if not 0 < len(text) <= max_chars or not text.isprintable() or text != text.strip():
        raise InputError(
            f"{option} {text[:80]!r}: expected 1 to {max_chars} printable characters, no blank around them"
        )


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """Return layer indices of a list such as `0,1,29`, in order; None: all.

    Raises InputError: it is no such list.

    >>> parse_layers("29, 0,1")
    (0, 1, 29)
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"--layers {text!r}: expected layer indices such as 0,1,29")
    return tuple(sorted({int(part) for part in parts}))
