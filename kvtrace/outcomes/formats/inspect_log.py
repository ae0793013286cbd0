"""Inspect: an evaluation log as `.json`, or as `.eval`, which is a zip of one file a sample.

Source: inspect_ai 0.3.285, log/_log.py (EvalLog, EvalSample, version 2) and log/_recorders/eval.py. NaN is
written there as a bare constant.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from numcodecs.zstd import Zstd

from kvtrace.files.regular import open_regular
from kvtrace.outcomes.fields import name, shown, table, text, whole, zero_or_one
from kvtrace.outcomes.outcome import MAX_OUTCOMES, Answer, Kind
from kvtrace.outcomes.strict_files import located, parse_object

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from kvtrace.outcomes.source import Choices, Source

_ZSTANDARD: Final = 93
"""By the ZIP specification; Inspect 0.3.285 packs with it."""
_MEMBER_BYTES: Final = 64_000_000
_TIME_LIMITS: Final = ("time", "working")
_LETTERS: Final[dict[object, Kind]] = {"C": "pass", "I": "fail", "N": "fail"}
"""Correct, incorrect, no answer."""


def is_inspect(document: dict[str, Any]) -> bool:
    """Return whether a document is an evaluation log."""
    return {"version", "status", "eval"} <= document.keys()


def read_inspect_document(source: Source, document: dict[str, Any]) -> Iterator[Answer]:
    """Yield the answers of a `.json` log. Raises OutcomesError: a sample is not what the log says it is."""
    with located(source.path):
        task = text(table(document, "eval"), "task")
        samples = document.get("samples")
        if not isinstance(samples, list):
            raise ValueError("has no samples; write the log with them, not its header alone")
    for place, sample in enumerate(samples):
        with located(source.path, f"sample {place}"):
            if not isinstance(sample, dict):
                raise ValueError("expected a JSON object")
            yield _answer(sample, task, source.choices)


def read_inspect_archive(source: Source) -> Iterator[Answer]:
    """Yield the answers of an `.eval` log, a sample at a time. Raises OutcomesError as for a document."""
    with located(source.path), open_regular(source.path) as file, _archive(file) as archive:
        task = text(table(_member(archive, "header.json"), "eval"), "task")
        members = [one for one in archive.namelist() if one.startswith("samples/") and one.endswith(".json")]
        if len(members) > MAX_OUTCOMES:
            raise ValueError(f"has {len(members):,} samples, expected at most {MAX_OUTCOMES:,}")
        for member in members:
            with located(source.path, shown(member)):
                yield _answer(_member(archive, member), task, source.choices)


def _archive(file: IO[bytes]) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError("cannot be opened as a zip archive, which an .eval log is") from error


def _member(archive: zipfile.ZipFile, member: str) -> dict[str, Any]:
    try:
        info = archive.getinfo(member)
        if info.compress_type == _ZSTANDARD:
            content = _unpacked(archive, info)
        else:
            with archive.open(info) as packed:
                content = packed.read(_MEMBER_BYTES + 1)
    except KeyError as error:
        raise ValueError(f"has no {member}; was the evaluation ended before its log was whole?") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError("cannot be unpacked; convert the log with inspect log convert --to json") from error
    if len(content) > _MEMBER_BYTES:
        raise ValueError(f"is larger than {_MEMBER_BYTES:,} bytes when unpacked")
    return parse_object(content, constants=True)


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return a member packed with Zstandard, which this Python's zipfile does not know.

    Raises ValueError: it is too large. RuntimeError: it is not what the archive says of it.
    """
    if max(info.file_size, info.compress_size) > _MEMBER_BYTES:
        raise ValueError(f"is larger than {_MEMBER_BYTES:,} bytes when unpacked")
    as_stored = copy(info)
    as_stored.compress_type, as_stored.file_size = zipfile.ZIP_STORED, info.compress_size
    # Of what is packed there is none; that of the content is checked below.
    as_stored.CRC = None  # type: ignore[assignment]
    with archive.open(as_stored) as packed:
        frame = packed.read()
    content = bytearray(info.file_size)  # and no more, whatever the frame says
    if content:
        Zstd().decode(frame, out=content)
    if zlib.crc32(content) != info.CRC:
        raise RuntimeError("has another checksum")
    return bytes(content)


def _answer(sample: dict[str, Any], task: str, choices: Choices) -> Answer:
    kind, reason = _judged(sample, choices)
    return Answer(
        id=name(sample, "id"),
        task=task,
        repetition=whole(sample, "epoch"),
        outcome=kind,
        reason=reason,
        prompt=json.dumps(sample.get("input"), sort_keys=True),
    )


def _judged(sample: dict[str, Any], choices: Choices) -> tuple[Kind, str | None]:
    if sample.get("error") is not None:
        return "error", "the sample ended with an error"
    limit = table(sample, "limit")
    if limit:
        of = text(limit, "type", most=40)
        return ("timeout" if of in _TIME_LIMITS else "fail"), f"the limit of {of} was reached"
    if _is_filtered(table(sample, "output").get("choices")):
        return "refused", "content filter"
    return _scored(table(sample, "scores"), choices), None


def _is_filtered(choices: Any) -> bool:
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and first.get("stop_reason") == "content_filter"


def _scored(scores: dict[str, Any], choices: Choices) -> Kind:
    if not scores:
        return "unjudged"
    if choices.metric is None and len(scores) > 1:
        raise ValueError(
            f"its scorers are {shown(sorted(scores))}; choose the one that decides with --metric"
        )
    scorer = choices.metric or next(iter(scores))
    value = table(scores, scorer).get("value")
    if value is None:
        return "unjudged"
    if value == "P":
        if choices.partial is None:
            raise ValueError("has partial credit (P); say what it counts as with --partial pass or fail")
        return choices.partial
    if isinstance(value, str) and value in _LETTERS:
        return _LETTERS[value]
    return "pass" if zero_or_one(value, f"the score of {shown(scorer)}") else "fail"
