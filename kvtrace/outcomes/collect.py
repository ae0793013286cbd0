"""Files of several tools and variants into one table of outcomes, row by row."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Final

from kvtrace.errors import InputError, OutcomesError
from kvtrace.files.key_file import load_or_make_key
from kvtrace.files.regular import open_regular
from kvtrace.files.replaced import replacing
from kvtrace.outcomes.formats import read_answers
from kvtrace.outcomes.outcome import MAX_OUTCOMES, Answer, Outcome
from kvtrace.outcomes.strict_files import located
from kvtrace.outcomes.table import TABLE_VERSION
from kvtrace.plain_text import plain
from kvtrace.trace.keyed import key_name, keyed_client_id, keyed_external_id, keyed_hash, keyed_prompt
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.outcomes.source import Source

_REASON_CHARS: Final = 200


@dataclass(slots=True)
class Collected:
    """What went into a table."""

    by_variant: dict[str, Counter[str]] = field(default_factory=dict)
    """Variant → outcome → answers."""
    formats: list[str] = field(default_factory=list)
    """Of each source, in order."""


@dataclass(frozen=True, slots=True)
class Key:
    """What hashes prompts and ids. Under a fresh key only the rows of one table can be compared."""

    content: bytes
    is_shared: bool
    """Whether it was given: then the hashes are those of traces under the same key."""


def load_key(path: Path | None) -> Key:
    """Return the key in a file, such as the `kvtrace.key` beside traces; without a file, a fresh one.

    Raises InputError: there is no such file, it is no key, or somebody else could have written it.
    """
    if path is None:
        return Key(secrets.token_bytes(32), is_shared=False)
    try:
        if not path.exists():
            raise InputError(f"{path}: does not exist; expected the kvtrace.key beside the traces")
        return Key(load_or_make_key(path), is_shared=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be used as the key: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(str(error)) from error


def collect_outcomes(sources: Sequence[Source], out: Path, key: Key) -> Collected:
    """Write the table of all sources' answers to `out`, whole or not at all, and return what is in it.

    No prompt and no answer is kept; prompts become keyed digests.
    Raises OutcomesError: a source cannot be read, has no variant, or an answer is there twice. InputError:
    `out` cannot be written.
    """
    found = Collected()
    seen: set[bytes] = set()
    described = []
    with tempfile.TemporaryFile() as rows:
        for source in sources:
            sha256 = _sha256(source.path)
            num_rows = _collect_one(source, key, rows, seen, found)
            described.append(
                {"file": source.path.name, "sha256": sha256, "format": found.formats[-1], "rows": num_rows}
            )
        header = {
            "kvtrace_outcomes": TABLE_VERSION,
            "kvtrace_version": __version__,
            "key": key_name(key.content),
            "key_is_shared": key.is_shared,
            "rows": len(seen),
            "sources": described,
        }
        rows.seek(0)
        try:
            with replacing(out) as file:
                file.write(json.dumps(header, ensure_ascii=False).encode() + b"\n")
                shutil.copyfileobj(rows, file, 1 << 20)
        except OSError as error:
            raise InputError(f"{out}: cannot be written: {error.strerror or error}") from error
    return found


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with located(path), open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _collect_one(source: Source, key: Key, rows: IO[bytes], seen: set[bytes], found: Collected) -> int:
    """Write the rows of one source and return how many there are."""
    before = len(seen)
    format_name, answers = read_answers(source)
    found.formats.append(format_name)
    for answer in answers:
        with located(source.path):
            outcome = _outcome(answer, source, key)
            _check_new(outcome, seen)
        found.by_variant.setdefault(outcome.variant, Counter())[outcome.outcome] += 1
        record = asdict(outcome) | {"tags": dict(outcome.tags)}
        rows.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    if len(seen) == before:
        raise OutcomesError(f"{source.path}: holds no answer")
    return len(seen) - before


def _outcome(answer: Answer, source: Source, key: Key) -> Outcome:
    if source.variant and answer.variant and source.variant != answer.variant:
        raise ValueError(
            f"has answers of the variant {plain(answer.variant)}, and is given as {plain(source.variant)}"
        )
    variant = source.variant or answer.variant
    if variant is None:
        raise ValueError("does not say which variant answered; give it as VARIANT=FILE, such as bf16-a=FILE")
    hashed = None if answer.prompt_token_ids is None else keyed_prompt(key.content, answer.prompt_token_ids)
    digest = (
        hashed if answer.prompt is None else keyed_hash(key.content, b"prompt text", answer.prompt.encode())
    )
    return Outcome(
        id=answer.id,
        variant=variant,
        repetition=answer.repetition,
        task=answer.task,
        cluster=answer.cluster,
        outcome=answer.outcome,
        reason=None if answer.reason is None else plain(answer.reason, _REASON_CHARS),
        output_tokens=answer.output_tokens,
        tags=answer.tags,
        prompt_digest=digest,
        client_id=keyed_client_id(key.content, answer.id) if key.is_shared and answer.has_own_id else None,
        prompt_hash=hashed if key.is_shared else None,
        external_id=keyed_external_id(key.content, answer.external_id)
        if key.is_shared and answer.external_id is not None
        else None,
    )


def _check_new(outcome: Outcome, seen: set[bytes]) -> None:
    """Note a row. Raises ValueError: its variant answered that before, or there are too many rows."""
    key = repr((outcome.variant, *outcome.pair_key)).encode()
    digest = hashlib.blake2b(key, digest_size=16).digest()
    if digest in seen:
        raise ValueError(
            f"variant {plain(outcome.variant)} has two answers to id {plain(outcome.id)}, repetition "
            f"{outcome.repetition}; give repeated ones a repetition"
        )
    if len(seen) >= MAX_OUTCOMES:
        raise ValueError(f"there are more than {MAX_OUTCOMES:,} answers")
    seen.add(digest)
