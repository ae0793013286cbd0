"""Write a repaired trace: sound chunk files byte for byte, records sealed anew, for the owner alone."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from typing import TYPE_CHECKING

import google_crc32c

from kvtrace.trace.chunks import CRC_BYTES, array_metadata, chunk_path, group_metadata
from kvtrace.trace.completeness import expected_positions
from kvtrace.trace.format import (
    COMMIT_FILE,
    DROPPED_FILE,
    RANK_FILE,
    ChunkCommit,
    CommitRecord,
    DroppedRecord,
    RankRecord,
    array_specs,
    seal,
)
from kvtrace.trace.lines import LinesCommit, lines_commit_file
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kvtrace.trace.repair.salvage import SoundChunk, SoundStore


def write_record(path: Path, content: str | bytes) -> None:
    """Write a file that its owner alone can read, and the directories it lacks."""
    for folder in reversed(path.parents):
        if not folder.is_dir():
            folder.mkdir(mode=0o700)  # one by one: `parents=True` would leave those above open to others
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_lines(path: Path, lines: Sequence[str], num_lost: int = 0) -> None:
    """Write a file of lines and its commit. num_lost: lines that the capture could not write."""
    content = "".join(line + "\n" for line in lines).encode()
    crc = google_crc32c.value(content)
    commit = LinesCommit(
        num_bytes=len(content), num_lines=len(lines), content_crc32c=f"{crc:08x}", num_lost=num_lost
    )
    write_record(path, content)
    write_record(lines_commit_file(path), seal(commit))


def write_store(store: Path, sound: SoundStore | RankRecord, requests: set[int]) -> None:
    """Write one rank's sound chunks, or a store without rows where a RankRecord is all that is left.

    requests: those that the trace keeps; lost rows of others are not counted.
    """
    rank = sound if isinstance(sound, RankRecord) else sound.rank
    commit = CommitRecord(trace_id=rank.trace_id, rank=rank.rank)
    dropped: list[str] = []
    if not isinstance(sound, RankRecord):
        commit = sound.commit.model_copy(
            update={"rank": rank.rank, "chunks": tuple(_copy_chunks(store, sound))}
        )
        dropped = [*sound.dropped.lines, *(seal(lost) for lost in _lost_rows(sound.chunks, requests))]
    _write_metadata(store, rank, len(commit.chunks))
    write_record(store / RANK_FILE, seal(rank.model_copy(update={"line_commits": True}), indent=1))
    write_lines(store / DROPPED_FILE, dropped)
    write_record(store / COMMIT_FILE, seal(commit))


def count_shortfall(trace: Path, stores: Mapping[int, SoundStore], *, num_lost_ranks: int) -> None:
    """Count, per request, what ranks lack where the rows or counts that were lost cannot be told.

    A finished request of which a rank has fewer rows than the sampling rules chose is thereby marked. What
    lost ranks had is counted with the first rank that is left.
    """
    opened = open_trace(trace)
    for store, token_of_row in zip(opened.ranks, opened.joined.token_of_row, strict=True):
        sound = stores.get(store.rank.rank)
        is_first = store is opened.ranks[0]
        is_told = sound and not sound.dropped.lost and all(c.request is not None for c in sound.chunks)
        if is_told and not (is_first and num_lost_ranks):
            continue
        counted = token_of_row[token_of_row >= 0]
        stored = Counter(opened.tokens.request[counted].tolist())
        lines = (store.path / DROPPED_FILE).read_text().splitlines()
        for number, request in sorted(opened.requests.items()):
            if not request.sampled or request.status == "running":
                continue
            expected = expected_positions(request, opened.sampling[request.sampling_id].position_stride)
            known = stored[number] + sum(store.dropped.get(number, {}).values())
            missing = 0 if is_told else max(expected - known, 0)
            missing += num_lost_ranks * expected if is_first else 0
            if missing:
                lines.append(seal(DroppedRecord(request=number, num_rows=missing, reason="damaged")))
        write_lines(store.path / DROPPED_FILE, lines)


def _copy_chunks(store: Path, sound: SoundStore) -> Iterator[ChunkCommit]:
    """Copy the chunks whose rows are known, numbered anew; what is damaged in one is marked as lost."""
    place, previous = 0, b""
    specs = array_specs(sound.rank)
    for number, chunk in enumerate(sound.chunks):
        if chunk.request is None or chunk.crcs is None:
            continue
        digest = hashlib.sha256(previous)
        lost = (*chunk.commit.lost, *chunk.problems)
        for spec in specs:
            digest.update(chunk.crcs[spec.path].to_bytes(CRC_BYTES, "little"))
            if spec.path not in lost:
                content = chunk_path(sound.path, spec, number).read_bytes()
                write_record(chunk_path(store, spec, place), content)
        previous, place = digest.digest(), place + 1
        yield chunk.commit.model_copy(
            update={
                "digest": digest.hexdigest(),
                "crcs": chunk.crcs.text,
                "lost": lost,
            }
        )


def _lost_rows(chunks: Sequence[SoundChunk], requests: set[int]) -> Iterator[DroppedRecord]:
    counts: Counter[int] = Counter()
    for chunk in chunks:
        if chunk.problems and chunk.request is not None:
            counts.update(chunk.request.tolist())
    for number, count in sorted(counts.items()):
        if number in requests:
            yield DroppedRecord(request=number, num_rows=count, reason="damaged")


def _write_metadata(store: Path, rank: RankRecord, num_chunks: int) -> None:
    group = json.dumps(group_metadata())
    for spec in array_specs(rank):
        folder = store / spec.path
        metadata = array_metadata(spec, num_chunks * rank.rows_per_chunk, rank.rows_per_chunk)
        write_record(folder / "zarr.json", json.dumps(metadata))
        for parent in folder.relative_to(store).parents:
            write_record(store / parent / "zarr.json", group)
