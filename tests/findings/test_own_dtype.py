"""What is advised instead of an FP8 cache: the model's own dtype by name, where vLLM takes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from incidents.bench import new_bench
from support.fabricate import fabricate_trace, request
from support.fabricate_run import fabricate_run, run_record, source_record

from kvtrace.calibration.recipe import Recipe
from kvtrace.calibration.save import save_scales
from kvtrace.candidates import ArtifactScales, ServingSetup
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.findings.diagnose import diagnose
from kvtrace.findings.run.case import Case
from kvtrace.findings.run.own_dtype import without_fp8
from kvtrace.runs.open import open_run
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from kvtrace.findings.diagnose import Diagnosis
    from kvtrace.runs.record import SourceRecord

ROOT = Path(__file__).parents[2]
ORIGINAL = "from the original checkpoint, the one without KV scales, and without --kv-cache-dtype"
OR_ORIGINAL = f", or, where vLLM refuses to start with scales per head, {ORIGINAL}"


def source(name: str = "day", dtype: str = "bfloat16", *backends: str) -> SourceRecord:
    made = source_record(name, attention_backends=backends)
    return made.model_copy(update={"model": made.model.model_copy(update={"dtype": dtype})})


def advised(
    folder: Path,
    *sources: SourceRecord,
    kind: str = "artifact",
    granularity: str = "tensor",
    collapsed: bool = False,
) -> str:
    """Return the advice on a candidate of a run of these sources."""
    one = {"candidate": "x", "kind": kind, "status": "valid", "granularity": granularity}
    found = (
        [
            {
                "source": "day",
                "candidate": "x",
                "id": "per-head-collapsed",
                "severity": "note",
                "evidence": "{}",
            }
        ]
        if collapsed
        else []
    )
    path = fabricate_run(folder / "run", {"candidates": [one], "findings": found}, run_record(*sources))
    case = Case(open_run(path))
    (subject,) = case.subjects
    return without_fp8(case, subject)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bfloat16", "with --kv-cache-dtype bfloat16"),
        ("float16", "with --kv-cache-dtype float16"),
        ("float32", ORIGINAL),  # no cache dtype of vLLM
    ],
)
@pytest.mark.parametrize("kind", ["artifact", "effective", "unit"])
def test_the_models_own_dtype_is_advised_by_name(
    tmp_path: Path, dtype: str, kind: str, expected: str
) -> None:
    assert advised(tmp_path, source("day", dtype, "FLASHINFER"), kind=kind) == expected


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        (("FLASHINFER",), ORIGINAL),
        (("TRITON_ATTN",), ORIGINAL),
        (("ROCM_AITER_FA",), ORIGINAL),
        (("FLASHINFER", "FLASH_ATTN"), ORIGINAL),
        (("CPU_ATTN",), "with --kv-cache-dtype bfloat16"),  # takes the maximum
        (("FLASH_ATTN",), f"with --kv-cache-dtype bfloat16{OR_ORIGINAL}"),  # version 3 and later do
        (("ONE_OF_NEXT_YEAR",), f"with --kv-cache-dtype bfloat16{OR_ORIGINAL}"),
        ((), f"with --kv-cache-dtype bfloat16{OR_ORIGINAL}"),  # a run that does not record them
    ],
)
def test_scales_per_head_that_a_backend_refuses_whatever_the_dtype_leave_the_original_checkpoint(
    tmp_path: Path, backends: tuple[str, ...], expected: str
) -> None:
    day = source("day", "bfloat16", *backends)
    assert advised(tmp_path, day, granularity="attn_head") == expected


def test_scales_per_head_count_as_such_where_they_were_replayed_as_their_maximum(tmp_path: Path) -> None:
    assert advised(tmp_path, source("day", "bfloat16", "FLASHINFER"), collapsed=True) == ORIGINAL


def test_scales_per_head_that_ran_are_not_refused(tmp_path: Path) -> None:
    day = source("day", "float16", "FLASH_ATTN")
    found = advised(tmp_path, day, kind="effective", granularity="attn_head")
    assert found == "with --kv-cache-dtype float16"


def test_sources_of_one_dtype_share_the_advice_and_others_are_named(tmp_path: Path) -> None:
    same = advised(tmp_path / "same", source("day"), source("night"))
    assert same == "with --kv-cache-dtype bfloat16"
    mixed = [source("day"), source("noon", "float16"), source("night"), source("small", "float32")]
    assert advised(tmp_path / "mixed", *mixed) == (
        "with --kv-cache-dtype bfloat16 (day, night), and with --kv-cache-dtype float16 (noon), and "
        f"{ORIGINAL} (small)"
    )
    many = [source(f"day-{number}") for number in range(5)]
    assert advised(tmp_path / "many", *many, source("half", "float16")) == (
        "with --kv-cache-dtype bfloat16 (day-0, day-1, day-2 and 2 more), and with --kv-cache-dtype float16 "
        "(half)"
    )


def clipping(folder: Path, dtype: str, backend: str, *, per_head: bool) -> Diagnosis:
    """Return the diagnosis of scales a quarter as wide as 8 requests' values: shipped, or also in effect."""
    values = np.tile(np.linspace(1, 8, 8), (8, 2, 1)) * np.array([1, 2]).reshape(1, 2, 1)
    wide = {"k": (8 / 448, 16 / 448), "v": (8 / 448, 16 / 448)}
    narrow = {(0, t): tuple(s / 4 for s in (wide[t] if per_head else wide[t][1:])) for t in "kv"}
    artifact = folder / "shipped"
    config = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    save_scales(artifact, narrow, model=config)
    trace = open_trace(
        fabricate_trace(
            folder / "day.kvtrace",
            {(0, tensor): values for tensor in "kv"},
            request_of_row=list(range(8)),
            position_of_row=[0] * 8,
            requests=[request(number, prompt_tokens=1) for number in range(8)],
            dtype=dtype,
            backend=backend,
        )
    )
    candidates = [ArtifactScales("shipped", load_artifact(artifact), ServingSetup("vllm-cuda"))]
    return diagnose(open_run(replay(ReplayRequest([trace], candidates, device="cpu"), folder / "run")))


@pytest.mark.parametrize(
    ("dtype", "backend", "per_head", "expected"),
    [
        ("bfloat16", "FLASHINFER", False, "with --kv-cache-dtype bfloat16"),
        ("float16", "FLASHINFER", False, "with --kv-cache-dtype float16"),
        ("float32", "FLASHINFER", False, ORIGINAL),
        ("bfloat16", "FLASHINFER", True, ORIGINAL),
        ("bfloat16", "CPU_ATTN", True, "with --kv-cache-dtype bfloat16"),
    ],
)
def test_a_clipping_traces_dtype_and_backend_decide_what_is_advised_meanwhile(
    tmp_path: Path, dtype: str, backend: str, per_head: bool, expected: str
) -> None:
    found = clipping(tmp_path, dtype, backend, per_head=per_head).findings
    actions = [one.action for one in found if one.id in ("k-clips", "v-clips")]
    assert len(actions) == 2
    assert all(action.endswith(f"Until then serve {expected}") for action in actions)


def test_fp8_is_acquitted_only_by_the_models_own_dtype_in_effect(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    bench.live = bench.scales(Recipe(headroom=2.0))
    (note,) = [one for one in bench.diagnosed().findings if one.id == "not-the-scales"]
    assert note.action == (
        "Look elsewhere: serve the same prompts with --kv-cache-dtype bfloat16. If quality stays low with "
        "the cache in the model's own dtype, an FP8 cache is not the cause; if it recovers, suspect the "
        "attention kernel or the cache transfer"
    )


def test_a_workload_that_drifted_is_served_in_its_models_own_dtype_meanwhile(tmp_path: Path) -> None:
    bench = new_bench(6, tmp_path)
    bench.live = bench.scales(Recipe(granularity="tensor"))
    bench.scale_values(3, bench.workload == "code", bench.heads[:4], "k")
    (drift,) = [one for one in bench.diagnosed().findings if one.id == "drift-workload"]
    assert drift.action.endswith("until then serve it with --kv-cache-dtype bfloat16")


def product_text() -> list[Path]:
    """Return every file of which a user reads a part: code, templates, queries, documentation."""
    folders = [ROOT / name for name in ("kvtrace", "capture", "queries", "docs", "samples")]
    suffixes = {".py", ".sql", ".md", ".j2", ".js", ".css", ".html", ".toml", ".json", ".txt"}
    found = [
        path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix in suffixes
        and not any(part.endswith((".kvtrace", ".egg-info")) for part in path.parts)
    ]
    return [*found, *sorted(ROOT.glob("*.md")), ROOT / "Makefile"]


ADVISES_AUTO = re.compile(r"""--kv-cache-dtype[\s"'`=,\\f]*auto\b|kv_cache_dtype=["']?auto\b""")


def test_no_text_of_the_product_advises_the_default_as_a_way_to_switch_fp8_off() -> None:
    """Over line ends and the quotes between parts of one string."""
    assert ADVISES_AUTO.search('"serve with --kv-cache-dtype "\n    f"auto"')
    assert ADVISES_AUTO.search("--kv-cache-dtype=auto")
    assert ADVISES_AUTO.search('kv_cache_dtype="auto"')
    assert not ADVISES_AUTO.search("--kv-cache-dtype bfloat16")
    files = product_text()
    assert {"drift.py", "README.md", "scale_audit.sql", "report.html.j2", "policy.md"} <= {
        f.name for f in files
    }
    assert [str(file) for file in files if ADVISES_AUTO.search(file.read_text())] == []
