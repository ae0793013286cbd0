from __future__ import annotations

import hashlib
import hmac
import os
import stat
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from kvtrace_capture.privacy import hash_client_id, hash_external_id, hash_prompt, key_id, load_or_make_key

from kvtrace.trace.keyed import keyed_external_id

if TYPE_CHECKING:
    from pathlib import Path

KEY = b"k" * 32


def test_a_prompt_hash_is_an_hmac_over_little_endian_token_ids() -> None:
    message = b"kvtrace prompt\0" + struct.pack("<3I", 1, 2, 49_151)
    assert hash_prompt(KEY, [1, 2, 49_151]) == hmac.new(KEY, message, hashlib.sha256).hexdigest()


def test_another_key_or_another_purpose_gives_another_hash() -> None:
    assert hash_client_id(KEY, "a") != hash_client_id(b"j" * 32, "a")
    assert hash_prompt(KEY, [0x61616161]) != hash_client_id(KEY, "aaaa")


def test_an_outcomes_id_joins_however_its_owner_spells_the_label() -> None:
    message = b"kvtrace client id\0" + "café 7".encode()
    expected = hmac.new(KEY, message, hashlib.sha256).hexdigest()
    for spelled in ("café 7", "cafe\u0301 7", " café 7\n", "café\u200b 7"):
        assert hash_client_id(KEY, spelled) == expected


def test_a_front_ends_id_has_a_purpose_of_its_own() -> None:
    message = b"kvtrace external id\0ticket-17"
    assert hash_external_id(KEY, "ticket-17\n") == hmac.new(KEY, message, hashlib.sha256).hexdigest()
    assert keyed_external_id(KEY, "ticket-17") == hash_external_id(KEY, "ticket-17")


def test_a_missing_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "kvtrace.key"
    with ThreadPoolExecutor(8) as processes:
        keys = set(processes.map(lambda _: load_or_make_key(path), range(32)))
    assert len(keys) == 1
    assert keys == {path.read_bytes()}
    assert len(path.read_bytes()) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(ValueError, match="5 bytes, expected 16 or more"):
        load_or_make_key(tmp_path / "key")


def test_the_key_id_is_the_start_of_a_digest() -> None:
    assert key_id(KEY) == hashlib.sha256(b"kvtrace key id\0" + KEY).hexdigest()[:8]


def test_a_key_that_somebody_else_could_have_planted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(bytes(32))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for name in ("link", "dangling"):
        with pytest.raises(OSError, match="is a link, expected the file itself"):
            load_or_make_key(tmp_path / name)
    assert not (tmp_path / "nothing").exists()
    open_to_all = tmp_path / "open"
    open_to_all.write_bytes(bytes(32))
    open_to_all.chmod(0o622)
    with pytest.raises(PermissionError, match=r"with mode 0622.*chmod 600"):
        load_or_make_key(open_to_all)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a pipe, expected a regular file"):
        load_or_make_key(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="is a directory, expected a regular file"):
        load_or_make_key(tmp_path / "folder")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "kvtrace.key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    os.chown(key, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        load_or_make_key(key)
