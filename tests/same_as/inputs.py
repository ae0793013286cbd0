"""What the commands read: made once with the code of the commit compared with, then copied for each side."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from same_as.cases import ARTIFACTS, CALIBRATED, FAMILIES, SAMPLE, Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from same_as.side import Side

_EACH_WORKLOAD = """
[[segments]]
name = "all"
"""
POLICIES = {
    "strict": f"""
[limits]
vectors_clipped_frac = 0.001
clip_error_frac = 0.01
sqnr_db = 35.0
out_of_range_frac = 1e-6
[coverage]
requests = 30
tokens = 500
{_EACH_WORKLOAD}""",
    "lenient": f"""
[limits]
vectors_clipped_frac = 0.99
sqnr_db = 1.0
[coverage]
requests = 2
tokens = 10
{_EACH_WORKLOAD}
[approved]
engine_version = "vllm 0.31.0"
attention_backend = "FLASH_ATTN"
""",
    "segments": """
[limits]
vectors_clipped_frac = 0.05
vectors_out_of_range_frac = 0.2
[coverage]
requests = 3
tokens = 20
[[segments]]
name = "long"
workloads = ["retrieval", "code"]
phase = "prefill"
positions = [0, 1024, 8192]
[[segments]]
name = "by prompt"
prompt_tokens = [0, 100, 8193]
limits = {vectors_clipped_frac = 0.02}
coverage = {requests = 10, tokens = 20}
""",
}


def make_inputs(base: Side, folder: Path, only: Sequence[str]) -> tuple[list[Fault], list[str]]:
    """Write the inputs below `folder`, by the case's name; return the faults and artifacts of all formats.

    only: patterns of outputs. Where each begins with a family's name, the others' inputs are not made.
    """
    places = [place for one in only if (place := f"{one}/".split("/"))[0] in FAMILIES]
    is_narrow = len(places) == len(only) > 0
    wanted = {place[0] for place in places} if is_narrow else FAMILIES
    faults = [place[1] for place in places if place[0] == "faults"] if is_narrow else []
    with ThreadPoolExecutor(2) as pool:
        # The longest first.
        planted = pool.submit(_plant, base, folder / "faults", faults) if "faults" in wanted else None
        biased = pool.submit(_biased, base, folder / "biased") if "biased" in wanted else None
        if "sample" in wanted:
            _sample(base, folder / "sample")
        formats = _formats(base, folder / "formats") if "formats" in wanted else []
        if biased is not None:
            biased.result()
        return planted.result() if planted is not None else [], formats


def _sample(base: Side, folder: Path) -> None:
    trace = base.tree / "samples" / f"{SAMPLE}.kvtrace"
    shutil.copytree(trace, folder / trace.name, ignore=shutil.ignore_patterns("profile*"))
    shutil.copytree(_biased_trace(base), folder / "biased.kvtrace")
    for name in ARTIFACTS:
        shutil.copytree(base.tree / "samples" / "scales" / name, folder / name)
    _write_policies(folder)


def _biased(base: Side, folder: Path) -> None:
    trace = _biased_trace(base)
    # Calibrated on a copy, which holds a profile then: each side is to make its own.
    with_profile = folder.with_name("biased-calibrated") / trace.name
    shutil.copytree(trace, with_profile)
    shutil.copytree(trace, folder / trace.name)
    for name, options in CALIBRATED.items():
        base.python("-m", "kvtrace", "calibrate", with_profile, "-o", folder / name, *options.split())
    _write_policies(folder)


def _biased_trace(base: Side) -> Path:
    return base.tree / "tests" / "incidents" / "biased.kvtrace"


def _write_policies(folder: Path) -> None:
    for name, content in POLICIES.items():
        heading = f'schema_version = "1.0"\nname = "{name}"\ndate = 2026-11-20\n'
        (folder / f"{name}.toml").write_text(heading + content)


def _plant(base: Side, folder: Path, names: Sequence[str]) -> list[Fault]:
    printed = base.python(Path(__file__).with_name("plant.py"), folder, *names)
    described = [json.loads(line) for line in printed.splitlines()]
    return [Fault(**one | {"artifacts": tuple(one["artifacts"])}) for one in described]


def _formats(base: Side, folder: Path) -> list[str]:
    """Copy the artifacts of every format; return their paths below `folder`."""
    shutil.copytree(base.tree / "tests" / "artifacts", folder)
    folders = {path.parent for path in folder.rglob("*") if path.suffix in (".safetensors", ".json")}
    found = [*sorted(folders - {folder}), *sorted(folder.glob("*.json"))]
    return [str(path.relative_to(folder)) for path in found]
