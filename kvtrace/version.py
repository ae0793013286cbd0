"""The version, in a file of its own, so that no part imports the package's front."""

from typing import Final

__version__: Final = "0.1.0"
