"""Saved /metrics of a vLLM server: several scrapes, cut where the server was started anew.

Source: vLLM 0.32, v1/metrics/loggers.py, and the transfer connectors' metrics. Names differ by release: one
that is not there is absent, never 0. Numbers are those of the whole engine; none is of a class.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kvtrace.capacity.engine_metrics import engine_facts_of
from kvtrace.errors import InputError
from kvtrace.files.regular import open_regular
from kvtrace.outcomes.fields import shown, table, text_or_none, whole_or_none
from kvtrace.outcomes.strict_files import located
from kvtrace.serving.times import MOST_AMOUNT, amount, microseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from kvtrace.capacity.engine_facts import EngineFacts

MAX_SCRAPES: Final = 10_000
"""Of a table: they lie in its header, which is one line."""
_LINE_BYTES: Final = 200_000
_SCRAPE_BYTES: Final = 16 << 20
_MARK: Final = b"# scraped_at "
_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][\w:]{0,200})(?:\{(.*)\})? ([^ ]{1,40})(?: [0-9]{1,20})?$")
_LABEL: Final = re.compile(r'(\w{1,80})="((?:[^"\\]|\\.){0,1000})"')

COUNTERS: Final = {
    "vllm:num_preemptions_total": ("preemptions", None),
    "vllm:admission_rejections_total": ("rejections", "reason"),
    "vllm:request_success_total": ("ended", "finished_reason"),
    "vllm:prompt_tokens_total": ("prompt_tokens", None),
    "vllm:generation_tokens_total": ("generation_tokens", None),
    "vllm:prefix_cache_queries_total": ("prefix_queried_tokens", None),
    "vllm:prefix_cache_hits_total": ("prefix_hit_tokens", None),
    "vllm:corrupted_requests_total": ("corrupted", None),
    "vllm:nixl_bytes_transferred_sum": ("moved_bytes", None),
    "vllm:mooncake_store_operation_bytes_total": ("moved_bytes", None),
    "vllm:hisparse_host_to_device_bytes_total": ("host_bytes", None),
}
"""Name → ours, and the label that splits it."""
GAUGES: Final = {
    "vllm:num_requests_running": ("running", None),
    "vllm:num_requests_waiting": ("waiting", None),
    "vllm:num_requests_waiting_by_reason": ("waiting", "reason"),
    "vllm:kv_cache_usage_perc": ("usage", None),
    "vllm:gpu_cache_usage_perc": ("usage", None),
}
_STARTED: Final = "process_start_time_seconds"
_CONFIG: Final = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One scrape, summed over engines; usage is the largest of any."""

    at_us: int | None = None
    """Epoch; None: the file does not say when."""
    started_us: int | None = None
    """When the server's process began."""
    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    cache_dtype: str | None = None
    num_blocks: int | None = None
    num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Scrapes of one life of a server. None: not measured."""

    begin_us: int | None
    end_us: int | None
    num_scrapes: int
    counters: dict[str, float]
    """How much each grew, first scrape to last; empty of one scrape."""
    peaks: dict[str, float]
    """Largest of each gauge."""
    cache_dtype: str | None
    num_blocks: int | None
    num_tokens: int | None


def read_scrapes(path: Path) -> Iterator[Scrape]:
    """Yield the scrapes of a file: pages of /metrics, each after a line `# scraped_at SECONDS` but the first.

    Raises OutcomesError: the file cannot be read, a scrape is too large, or it is no vLLM's.
    """
    with located(path), open_regular(path) as file:
        at: int | None = None
        lines: list[str] = []
        size = num = 0
        while line := file.readline(_LINE_BYTES + 1):
            if len(line) > _LINE_BYTES:
                raise ValueError(f"a line is longer than {_LINE_BYTES:,} bytes")
            if line.startswith(_MARK):
                if lines:
                    num += 1
                    yield _scrape(lines, at)
                at, lines, size = _at(line), [], 0
            elif line.strip() and not line.startswith(b"#"):
                size += len(line)
                if size > _SCRAPE_BYTES or num > MAX_SCRAPES:
                    raise ValueError(
                        f"holds a scrape of more than {_SCRAPE_BYTES >> 20} MiB, or more than "
                        f"{MAX_SCRAPES:,} scrapes"
                    )
                lines.append(line.decode("utf-8", "replace").rstrip())
        if not lines and num == 0:
            raise ValueError("holds no scrape; save one with curl -s http://HOST:8000/metrics > FILE")
        if lines:
            yield _scrape(lines, at)


def _at(line: bytes) -> int:
    try:
        return microseconds(float(line[len(_MARK) :].decode("ascii", "replace")), "scraped_at")
    except ValueError as error:
        raise ValueError(f"{shown(line[:60].decode('ascii', 'replace'))}: expected epoch seconds") from error


def _scrape(lines: Sequence[str], at: int | None) -> Scrape:
    counters, gauges = defaultdict[str, float](float), defaultdict[str, float](float)
    started: int | None = None
    config: list[str] = []
    for line in lines:
        found = _SAMPLE.match(line)
        if found is None:
            raise ValueError(f"{shown(line)} is not a line of /metrics")
        name, labels, written = found.groups()
        if name == _CONFIG:
            config.append(line)
        elif name == _STARTED:
            started = microseconds(_number(written), name)
        elif name in COUNTERS:
            counters[_named(COUNTERS[name], labels)] += _number(written)
        elif name in GAUGES:
            key, value = _named(GAUGES[name], labels), _number(written)
            gauges[key] = max(gauges[key], value) if key == "usage" else gauges[key] + value
    if not counters and not gauges:
        raise ValueError("has none of vLLM's metrics; is it the /metrics of a vLLM server?")
    facts = _facts(config) if config else None
    return Scrape(
        at_us=at,
        started_us=started,
        counters=dict(counters),
        gauges=dict(gauges),
        cache_dtype=facts.cache_dtype if facts else None,
        num_blocks=facts.num_blocks if facts else None,
        num_tokens=facts.num_tokens if facts else None,
    )


def _facts(config: Sequence[str]) -> EngineFacts:
    try:
        return engine_facts_of("\n".join(config), "a scrape")
    except InputError as error:
        raise ValueError(str(error)) from error


def _named(meaning: tuple[str, str | None], labels: str | None) -> str:
    name, split = meaning
    if split is None:
        return name
    return f"{name}: {dict(_LABEL.findall(labels or '')).get(split, '?')[:40]}"


def _number(written: str) -> float:
    try:
        value = float(written)
    except ValueError as error:
        raise ValueError(f"{shown(written)} is not a number") from error
    if not 0 <= value <= MOST_AMOUNT:  # NaN neither
        raise ValueError(f"{shown(written)} is not a finite number of 0 or more")
    return value


def spans(scrapes: Iterable[Scrape]) -> list[Span]:
    """Return the lives of a server: a new one begins where its process did, or where any counter falls.

    Nothing is subtracted across a boundary, so what happened between two lives is in neither.
    """
    lives: list[list[Scrape]] = []
    for scrape in scrapes:
        if lives and not _is_restarted(lives[-1][-1], scrape):
            lives[-1].append(scrape)
        else:
            lives.append([scrape])
    return [_span(life) for life in lives]


def _is_restarted(before: Scrape, after: Scrape) -> bool:
    if None not in (before.started_us, after.started_us) and before.started_us != after.started_us:
        return True
    return any(after.counters.get(name, 0.0) < value for name, value in before.counters.items())


def _span(life: Sequence[Scrape]) -> Span:
    first, last = life[0], life[-1]
    peaks: dict[str, float] = {}
    for scrape in life:
        for name, value in scrape.gauges.items():
            peaks[name] = max(peaks.get(name, value), value)
    grown = {
        # A labelled counter appears with its first event.
        name: value - first.counters.get(name, 0.0)
        for name, value in last.counters.items()
    }
    return Span(
        begin_us=first.at_us,
        end_us=last.at_us,
        num_scrapes=len(life),
        counters=grown if len(life) > 1 else {},
        peaks=peaks,
        cache_dtype=last.cache_dtype,
        num_blocks=last.num_blocks,
        num_tokens=last.num_tokens,
    )


def within(scrapes: Iterable[Scrape], begin_us: int, end_us: int) -> list[Scrape]:
    """Return the scrapes taken from `begin_us` to `end_us`, both included; one without a time is in none."""
    return [one for one in scrapes if one.at_us is not None and begin_us <= one.at_us <= end_us]


def num_restarts(found: Sequence[Span]) -> int:
    """Return how often the server was started anew."""
    return sum(1 for _ in pairwise(found))


def scrape_of_record(record: object) -> Scrape:
    """Return a scrape of a table. Raises ValueError: it has other fields."""
    if not isinstance(record, dict) or record.keys() != {one.name for one in fields(Scrape)}:
        raise ValueError("one of its scrapes has other fields")
    return Scrape(
        at_us=whole_or_none(record, "at_us"),
        started_us=whole_or_none(record, "started_us"),
        counters=_amounts(table(record, "counters")),
        gauges=_amounts(table(record, "gauges")),
        cache_dtype=text_or_none(record, "cache_dtype", most=80),
        num_blocks=whole_or_none(record, "num_blocks"),
        num_tokens=whole_or_none(record, "num_tokens"),
    )


def _amounts(record: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in record:
        value = amount(record, name)
        if value is None:
            raise ValueError(f"{shown(name)} is null")
        found[name] = value
    return found
