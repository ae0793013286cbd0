"""Python sources of vLLM releases that no CPU build exists of: `unpack_sources.py 0.33.0 …`.

The release's wheel is downloaded, never installed; its .py files go to .cache/vllm-sources/VERSION and the
wheel is thrown away. Prints one folder `vllm` a line. What is unpacked already is not downloaded again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / ".cache" / "vllm-sources"


def main(versions: list[str]) -> None:
    for version in versions:
        print(unpacked(version) / "vllm")


def unpacked(version: str) -> Path:
    """Return the folder of a release's sources; it is there whole or not at all."""
    folder = FOLDER / version
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as place:
            wheel = download(version, Path(place))
            part = Path(place) / "part"
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".py")]
                archive.extractall(part, [name for name in names if name.startswith("vllm/")])
            shutil.move(part, folder)
    return folder


def download(version: str, place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    print(f"+ pip download vllm=={version}", file=sys.stderr, flush=True)
    subprocess.run(
        [*command, "--no-cache-dir", "--only-binary", ":all:", "--dest", str(place), f"vllm=={version}"],
        check=True,
    )
    (wheel,) = place.glob("*.whl")
    return wheel


if __name__ == "__main__":
    main(sys.argv[1:])
