"""What the operator asked for in `kv_connector_extra_config`, and what a control file may change of it.

Only the operator's configuration is read here. A client's request can give labels (`sampler`), and nothing
it sends can switch capture on, widen the sampling or raise a budget.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvtrace.trace.capture_names import DEFAULT_POSITION_STRIDE, MAX_LABEL_CHARS
from kvtrace_capture.labels import clean_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.trace.attention_format import QueryMode

SAMPLING_KEYS: Final = ("enabled", "workloads", "position_stride", "request_fraction", "byte_budget")
"""What can change while the engine runs. Hooks and arrays of `layers` and `queries` are made at start-up."""

_INTEGERS: Final = {
    "position_stride": (1, 2**31 - 1),
    "byte_budget": (1, 2**63 - 1),
    "queue_bytes": (1, 2**63 - 1),
    "seed": (0, 2**63 - 1),
    "probe_requests": (1, 2**31 - 1),
    "probe_positions": (1, 1024),
}
_QUERY_MODES: Final = ("none", "stored", "probe")
_LONGEST_FLUSH_S: Final = 10**9
"""No lock can be waited for much longer."""


class SettingsError(ValueError):
    """The capture configuration cannot be used: an engine does not start, a running one keeps what it has."""


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """The keys of `kv_connector_extra_config`, checked."""

    directory: Path
    """Where traces go; every engine start makes a directory of its own in it."""
    enabled: bool = True
    """False: capture nothing until a control file says otherwise."""
    layers: tuple[int, ...] | None = None
    workloads: tuple[str, ...] | None = None
    position_stride: int = DEFAULT_POSITION_STRIDE
    request_fraction: float = 1.0
    byte_budget: int | None = None
    """Bytes of raw K, V and Q per rank since these rules came into force; None: no limit."""
    queries: QueryMode = "none"
    """stored: Q too, at every 4th sampled position. probe: Q at some positions of a few requests of which K
    and V of all positions are kept, and the engine's attention output there."""
    probe_requests: int = 8
    """With `probe`: so many sampled requests of each workload."""
    probe_positions: int = 8
    """With `probe`: at most so many positions of each; half in the prompt, half in what is generated."""
    queue_bytes: int = 256 << 20
    flush_seconds: float = 30.0
    external_ids: bool = True
    """Whether a keyed hash of the front end's request id is kept, to join answers that know only that."""
    hash_key_file: Path | None = None
    """The HMAC key; None: `kvtrace.key` in `directory`, made at the first start."""
    control_file: Path | None = None
    """Changes the sampling while the engine runs; None: `kvtrace-control.json` in `directory`."""
    seed: int | None = None
    """Of the choice of requests and offsets; None: the system's entropy."""


def parse_settings(extra_config: Mapping[str, Any]) -> CaptureSettings:
    """Check `kv_connector_extra_config` and return it as settings.

    Raises SettingsError: an unknown key, a value of a wrong type or out of range, or no `directory`.
    """
    known = [field.name for field in fields(CaptureSettings)]
    for key in extra_config:
        if key not in known:
            raise SettingsError(f"kv_connector_extra_config has {key!r}; kvtrace knows {', '.join(known)}")
    if not isinstance(extra_config.get("directory"), str):
        raise SettingsError(
            'kv_connector_extra_config needs "directory": the folder that traces are written to'
        )
    values = {key: value for key, value in extra_config.items() if value is not None}
    return CaptureSettings(**_checked(values))


def change_sampling(settings: CaptureSettings, changes: Mapping[str, Any]) -> CaptureSettings:
    """Return the settings with another sampling. changes: some of SAMPLING_KEYS; null: no limit, or all.

    Raises SettingsError: a key that cannot change while the engine runs, or a value that does not fit.
    """
    for key, value in changes.items():
        if key not in SAMPLING_KEYS:
            raise SettingsError(f"{key!r} cannot be changed; what can is {', '.join(SAMPLING_KEYS)}")
        if value is None and key not in ("workloads", "byte_budget"):
            raise SettingsError(f"{key} is null, expected a value")
    given = _checked({key: value for key, value in changes.items() if value is not None})
    return replace(settings, **{**dict.fromkeys(changes), **given})


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the given values as `CaptureSettings` holds them."""
    for key in ("directory", "hash_key_file", "control_file"):
        if key in values:
            values[key] = Path(_expect(values, key, str)).expanduser().absolute()
    if "queries" in values and values["queries"] not in _QUERY_MODES:
        raise SettingsError(f"queries is {values['queries']!r}, expected one of {', '.join(_QUERY_MODES)}")
    for key in ("enabled", "external_ids"):
        if key in values and not isinstance(values[key], bool):
            raise SettingsError(f"{key} is {values[key]!r}, expected true or false")
    for key, (lowest, highest) in _INTEGERS.items():
        if key in values and not lowest <= _expect(values, key, int) <= highest:
            raise SettingsError(f"{key} is {values[key]}, expected {lowest} to {highest}")
    for key, highest in (("request_fraction", 1), ("flush_seconds", _LONGEST_FLUSH_S)):
        if key in values:
            if not 0 < _expect(values, key, int, float) <= highest:
                raise SettingsError(f"{key} is {values[key]}, expected more than 0, at most {highest}")
            values[key] = float(values[key])
    for key, kind in (("layers", int), ("workloads", str)):
        if key in values:
            values[key] = _expect_list(values, key, kind)
    return values


def _expect(values: Mapping[str, Any], key: str, *kinds: type) -> Any:
    value = values[key]
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise SettingsError(f"{key} is {value!r}, expected {' or '.join(k.__name__ for k in kinds)}")
    return value


def _expect_list(values: Mapping[str, Any], key: str, kind: type) -> tuple[Any, ...]:
    items = values[key]
    is_list = isinstance(items, list | tuple) and items
    if not is_list or any(not isinstance(item, kind) or isinstance(item, bool) for item in items):
        raise SettingsError(f"{key} is {items!r}, expected a list of at least one {kind.__name__}")
    for item in items:
        if isinstance(item, str) and item != (clean := clean_label(item, MAX_LABEL_CHARS)):
            raise SettingsError(
                f"{key}: {item!r} is never the label of a request, which is recorded as {clean!r}"
            )
    return tuple(dict.fromkeys(items))
