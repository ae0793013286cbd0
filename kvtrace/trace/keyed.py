"""Keyed hashes as a trace holds them, for who has the key: ids of clients, token ids of prompts.

The plug-in makes the same ones inside the serving engine; a test holds the two together.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
import unicodedata
from array import array
from typing import TYPE_CHECKING

from kvtrace.trace.capture_names import MAX_CLIENT_ID_CHARS

if TYPE_CHECKING:
    from collections.abc import Sequence


def key_name(key: bytes) -> str:
    """Return 8 hex digits that name the key without giving it away."""
    return hashlib.sha256(b"kvtrace key id\0" + key).hexdigest()[:8]


def keyed_client_id(key: bytes, client_id: str) -> str:
    """Return 64 hex digits: the hash under which a trace knows the id that a client gave as `kvtrace_id`."""
    return keyed_hash(key, b"client id", _plain_label(client_id).encode())


def keyed_external_id(key: bytes, external_id: str) -> str:
    """Return 64 hex digits: the hash under which a trace knows the id that a front end gave a request."""
    return keyed_hash(key, b"external id", _plain_label(external_id).encode())


def keyed_prompt(key: bytes, token_ids: Sequence[int]) -> str:
    """Return 64 hex digits: the hash of a prompt's token ids, packed as little-endian uint32.

    token_ids: 0 to 2³² − 1. Raises OverflowError: one is outside.
    """
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return keyed_hash(key, b"prompt", packed.tobytes())


def keyed_hash(key: bytes, purpose: bytes, content: bytes) -> str:
    """Return 64 hex digits, HMAC-SHA256. purpose: keeps hashes of different things apart."""
    return hmac.new(key, b"kvtrace " + purpose + b"\0" + content, hashlib.sha256).hexdigest()


def _plain_label(text: str) -> str:
    """Return an id as capture records it: NFC, without control characters and line breaks, cut."""
    text = unicodedata.normalize("NFC", text[: 4 * MAX_CLIENT_ID_CHARS])
    printable = "".join(c for c in text if unicodedata.category(c)[0] not in "CZ" or c == " ")
    return printable.strip()[:MAX_CLIENT_ID_CHARS].strip()
