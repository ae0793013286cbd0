"""Keyed hashes: what a trace holds in place of prompts and client ids.

A plain hash of a prompt can be guessed by hashing candidates; a keyed one only by who has the key. The key
lives beside the traces, never inside one, so that a `.kvtrace` can be handed on without it. Whoever holds
the key can join a trace with outcomes of their own: hash the id their log holds with `hash_client_id` and
compare.
"""

from __future__ import annotations

import hashlib
import hmac
from array import array
from typing import TYPE_CHECKING

from kvtrace.files.key_file import load_or_make_key as load_or_make_key
from kvtrace.trace.capture_names import MAX_CLIENT_ID_CHARS
from kvtrace_capture.labels import clean_label

if TYPE_CHECKING:
    from collections.abc import Sequence


def key_id(key: bytes) -> str:
    """Return 8 hex digits that name the key without giving it away."""
    return hashlib.sha256(b"kvtrace key id\0" + key).hexdigest()[:8]


def hash_client_id(key: bytes, client_id: str) -> str:
    """Return the keyed hash (64 hex digits) of the id that a client gave as `kvtrace_id`.

    Of its plain text, as recorded (`labels.clean_label`), so that an outcome's id joins as its owner has it.
    """
    return _keyed_hash(key, b"client id", _plain_id(client_id))


def hash_external_id(key: bytes, external_id: str) -> str:
    """Return the keyed hash (64 hex digits) of a front end's request id (`kvtrace.trace.request_ids`).

    Of its plain text, as of a client's id; another purpose, so that the two are never taken for each other.
    """
    return _keyed_hash(key, b"external id", _plain_id(external_id))


def hash_prompt(key: bytes, token_ids: Sequence[int]) -> str:
    """Return the keyed hash (64 hex digits) of a prompt's token ids, as little-endian uint32."""
    packed = array("I", token_ids)
    return _keyed_hash(key, b"prompt", packed.tobytes())


def _plain_id(value: str) -> bytes:
    return (clean_label(value, MAX_CLIENT_ID_CHARS) or "").encode()


def _keyed_hash(key: bytes, purpose: bytes, content: bytes) -> str:
    return hmac.new(key, b"kvtrace " + purpose + b"\0" + content, hashlib.sha256).hexdigest()
