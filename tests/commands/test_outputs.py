"""Outputs are whole or absent: a full disk, a closed pipe or a signal costs no old file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace import cli

LONG_SQL = "SELECT count(*) FROM range(100000000000) a WHERE hash(a.range) % 7 = 3"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(4)
    return fabricate_trace(
        tmp_path_factory.mktemp("outputs") / "small.kvtrace",
        {(layer, t): random.normal(size=(40, 2, 8)) for layer in range(2) for t in "kv"},
        request_of_row=[0] * 20 + [1] * 20,
        position_of_row=[*range(20), *range(20)],
        requests=[request(0, prompt_tokens=20), request(1, prompt_tokens=20, workload="a\x9b31m\u202eb")],
    )


@pytest.fixture(scope="module")
def run(trace: Path) -> Path:
    path = trace.parent / "run"
    assert kvtrace("replay", trace, "-o", path).returncode == 0
    return path


def process(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "kvtrace", *map(str, arguments)], **options)


def commands(trace: Path, run: Path) -> list[tuple[object, ...]]:
    return [
        ("inspect", trace), ("inspect", trace, "--json"), ("report", run),
        ("report", run, "--format", "html"),
        ("query", run, "coverage"), ("query", run, "coverage", "--format", "csv"), ("query", "--list"),
    ]  # fmt: skip


def test_a_full_output_costs_no_old_file_and_is_one_line(
    trace: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    old.write_text("precious")
    with monkeypatch.context() as full:
        full.setattr(os, "fdopen", full_disk)
        for command in commands(trace, run):
            if "inspect" in command or "--list" in command:  # what reads through os.fdopen is in another test
                continue
            result = kvtrace(*command, "-o", old, "--force")
            assert result.returncode == 2
    assert old.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [old]


def full_disk(descriptor: int, mode: str = "r", *arguments: Any, **options: Any) -> Any:
    file = os_fdopen(descriptor, mode, *arguments, **options)
    if "w" in mode:
        file.close()
        raise OSError(28, "No space left on device")
    return file


os_fdopen = os.fdopen


def test_a_parquet_output_is_whole_or_absent(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.parquet"
    file.write_text("precious")
    asked = ("query", run, "coverage", "--format", "parquet", "-o", file)
    assert kvtrace(*asked).returncode == 2
    with monkeypatch.context() as full:
        full.setattr(os, "fdopen", full_disk)
        assert kvtrace(*asked, "--force").returncode == 2
    assert file.read_text() == "precious"
    assert kvtrace(*asked, "--force").returncode == 0
    assert file.read_bytes().startswith(b"PAR1")


def test_a_full_device_as_output_stays_a_device_and_is_one_line(trace: Path) -> None:
    for device in ("/dev/full", "/dev/stdout"):
        refused = kvtrace("inspect", trace, "-o", device)
        assert (refused.returncode, "exists" in refused.stderr) == (2, True)
    full = kvtrace("inspect", trace, "-o", "/dev/full", "--force")
    assert (full.returncode, full.stderr) == (
        2,
        "kvtrace: /dev/full: cannot be written: No space left on device\n",
    )
    assert Path("/dev/full").is_char_device()


def test_an_output_behind_a_link_is_replaced_and_the_link_stays(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert kvtrace("inspect", trace, "-o", tmp_path / "link", "--force").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert "sampled positions" in (tmp_path / "real").read_text()
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("where", ["full", "closed pipe"])
def test_a_stdout_that_takes_nothing_is_one_line_and_never_the_exit_code_of_a_breach(
    trace: Path, where: str
) -> None:
    if where == "full":
        with Path("/dev/full").open("wb") as stdout:
            ended = process("inspect", trace, stdout=stdout, stderr=subprocess.PIPE)
            _, err = ended.communicate(timeout=60)
    else:
        read, write = os.pipe()
        os.close(read)
        ended = process("inspect", trace, stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        _, err = ended.communicate(timeout=60)
    why = "No space left on device" if where == "full" else "Broken pipe"
    assert (ended.returncode, err.decode()) == (2, f"kvtrace: stdout: cannot be written: {why}\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("after", [0.25, 4.0])
def test_a_signal_in_the_imports_or_in_a_query_ends_with_its_code_and_no_word(
    run: Path, number: signal.Signals, code: int, after: float
) -> None:
    ended = process("query", run, "--sql", LONG_SQL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(after)
    while True:  # before Python minds signals, they end it by themselves
        mask = next(
            line for line in Path(f"/proc/{ended.pid}/status").read_text().splitlines() if "SigCgt" in line
        )
        if int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            break
        time.sleep(0.01)
    ended.send_signal(number)
    out, err = ended.communicate(timeout=60)
    assert (ended.returncode, out, err) == (code, b"", b"")


def test_own_sql_is_stopped_in_time_and_says_so(run: Path) -> None:
    stopped = kvtrace("query", run, "--sql", LONG_SQL, "--seconds", "0.5")
    assert (stopped.returncode, stopped.stderr) == (
        2,
        "kvtrace: the SQL was stopped after 0.5 s; --seconds gives it more\n",
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT list(a.range) FROM range(1000000000) a",
            "the SQL needs too much memory; --memory gives more",
        ),
        ("SELECT * FROM range(2000000)", "more than 1,000,000 rows"),
        ("SELECT " + "(" * 2000 + "1" + ")" * 2000, "depth limit"),
        ("SELECT 1" + " UNION ALL SELECT 1" * 20_000, "characters, expected at most 20,000"),
    ],
)
def test_own_sql_has_limits_of_memory_rows_depth_and_length(run: Path, sql: str, expected: str) -> None:
    refused = kvtrace("query", run, "--sql", sql, "--memory", "100MB")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert expected in refused.stderr


def test_a_fault_of_kvtrace_has_an_exit_code_of_its_own(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("\x1b[31mno\nsuch thing")

    monkeypatch.setattr("kvtrace.gate.policy.load_policy", broken)
    for command in (("check", run), ("compare", run)):
        ended = kvtrace(*command, "--policy", tmp_path / "p.toml")
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (cli.EXIT_FAULT, "", 1)
        assert "TypeError: \\x1b[31mno\\nsuch thing" in ended.stderr


def test_no_command_prints_what_a_terminal_would_obey(trace: Path, run: Path) -> None:
    for command in (("inspect", trace), ("report", run), ("query", run, "by_workload")):
        shown = kvtrace(*command)
        assert shown.returncode == 0
        assert not set(shown.stdout) & set("\x9b\u202e\x1b")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_a_finalizer_ends_the_command_all_the_same(number: signal.Signals, code: int) -> None:
    script = f"""
import os, time
from kvtrace.signals import end_on_signals, try_again_after_finalizers
end_on_signals()
try_again_after_finalizers()
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), {int(number)})
Finalized()
while True:
    time.sleep(0.001)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
