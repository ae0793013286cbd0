"""The report's own way out of an incident, each step run as printed, in a real vLLM.

The incidents need an FP8 cache (`make test-remedies`, by hand). With a cache in the model's own dtype,
printed lines run, the printed server starts up to its cache dtype, and vLLM loads the scales written.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import shlex
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from support.vllm_cpu import HAS_WIDE_VECTORS, needs_fp8_cache
from support.vllm_engines import connector, only_trace
from support.vllm_incidents import INCIDENTS, write_incident
from support.vllm_loaded import loaded
from support.vllm_printed import nll_served, printed

from kvtrace.scales import load_artifact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytestmark = pytest.mark.vllm

NUM_DRAWS = 5
SAME_NLL = 0.05
LENGTH = ("--max-model-len", "1024")


def texts(draw: int) -> list[tuple[str, str]]:
    """Return (workload, text) of one draw: pieces of source that no other draw has."""
    sources = [inspect.getsource(module) for module in (argparse, difflib, textwrap)]
    pieces = [source[at : at + 1_600] for source in sources for at in range(0, 17_600, 1_600)]
    own = [piece for piece in pieces if len(piece) == 1_600][draw :: NUM_DRAWS + 1]
    return [("code" if number % 2 else "text", piece) for number, piece in enumerate(own[:5])]


def serve_line(checkpoint: Path, dtype: str, folder: Path) -> str:
    """Return the line of a deployment before anything went wrong, as an operator types it."""
    capture = json.dumps(connector(folder / "traces", position_stride=4))
    words = ["vllm", "serve", str(checkpoint), "--kv-cache-dtype", dtype, "--shutdown-timeout", "30"]
    return shlex.join([*words, *LENGTH, "--kv-transfer-config", capture])


def served(checkpoint: Path, dtype: str, folder: Path, draw: int) -> tuple[float, Path]:
    """Serve one draw with capture on; return its NLL and the trace."""
    folder.mkdir(parents=True, exist_ok=True)
    nll = nll_served(serve_line(checkpoint, dtype, folder), folder, texts(draw))
    return nll, only_trace(folder / "traces").path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remedies")


@pytest.fixture(scope="module")
def bf16(folder: Path, model: Path) -> tuple[float, Path]:
    return served(model, "bfloat16", folder / "bf16", NUM_DRAWS)


@pytest.fixture(scope="module")
def calibrated(folder: Path, model: Path, bf16: tuple[float, Path]) -> tuple[Path, list[str]]:
    """Scales that fit, and the lines that `kvtrace calibrate` ends with."""
    command = f"kvtrace calibrate {bf16[1]} --granularity tensor --checkpoint {model} -o fitting"
    told = printed(command, folder).splitlines()
    return folder / "fitting", [line.strip() for line in told if line.startswith("  ")][-2:]


def test_vllm_loads_the_scales_that_were_written(calibrated: tuple[Path, list[str]]) -> None:
    written = {(one.layer, one.tensor): one.values for one in load_artifact(calibrated[0]).scales}
    assert loaded(calibrated[0]) == {
        layer: [written[layer, "k"][0], written[layer, "v"][0]] for layer, _ in written
    }


@pytest.mark.skipif(HAS_WIDE_VECTORS, reason="this CPU takes an FP8 cache: the printed line starts")
def test_the_printed_server_starts_up_to_its_cache_dtype(
    folder: Path, calibrated: tuple[Path, list[str]]
) -> None:
    serve, report = calibrated[1]
    with pytest.raises(AssertionError, match="ended before it was healthy"):
        nll_served(serve, folder, texts(0))
    (log,) = folder.glob("serve-*.log")
    assert "fp8" in log.read_text().lower()
    in_bf16 = serve.replace("--kv-cache-dtype fp8", "--kv-cache-dtype bfloat16")
    nll = nll_served(in_bf16, folder, texts(0))
    print(f"NLL of the calibrated checkpoint, cache in bfloat16: {nll:.3f}")
    told = printed(report, folder)
    assert told.startswith("kvtrace report")


@needs_fp8_cache
@pytest.mark.vllm_full
@pytest.mark.parametrize("incident", INCIDENTS)
def test_the_reports_steps_bring_the_likelihood_back(
    incident: str, folder: Path, model: Path, calibrated: tuple[Path, list[str]]
) -> None:
    own = folder / incident.replace(" ", "-")
    fitting = {(one.layer, one.tensor): list(one.values) for one in load_artifact(calibrated[0]).scales}
    checkpoint, dtype = write_incident(incident, own / "checkpoint", model, fitting)
    broken, trace = served(checkpoint, dtype, own, NUM_DRAWS)
    good, _ = served(calibrated[0], "fp8", own / "good", NUM_DRAWS)
    given = "" if checkpoint == model else f" --scales {checkpoint}"
    answer = json.loads(printed(f"kvtrace report {trace}{given} --json", own))["answer"]
    if not answer["action"]["steps"]:
        assert answer["state"] == "sound"
        assert broken <= good + SAME_NLL, "it is called sound, so it costs nothing"
        return
    nlls = take(answer["action"]["steps"], own, range(NUM_DRAWS))
    best = [served(calibrated[0], "fp8", own / f"good-{n}", n)[0] for n in range(NUM_DRAWS)]
    print(f"{incident}: NLL {broken:.3f}, calibrated {good:.3f}; after its steps {nlls}, calibrated {best}")
    assert all(nll <= other + SAME_NLL for nll, other in zip(nlls, best, strict=True))


def take(steps: Sequence[Mapping[str, Any]], folder: Path, draws: Sequence[int]) -> list[float]:
    """Take every step as printed, the server for each draw; each report after it is sound."""
    *first, serve, report = steps
    for step in first:
        printed(step["command"], folder)
    nlls = []
    for draw in draws:
        nlls.append(nll_served(serve["command"], folder, texts(draw)))
        printed(report["command"], folder)
        after = shlex.split(report["command"])[-1]
        told = json.loads(printed(f"kvtrace report {shlex.quote(after)} --json", folder))["answer"]
        assert (told["state"], told["kind"]) == ("sound", "as served")
    return nlls
