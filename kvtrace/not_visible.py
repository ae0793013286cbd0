"""What no offline replay of K and V can show, and every answer says so."""

from typing import Final

NOT_VISIBLE: Final = (
    "errors compounding through the layers",
    "attention that ranks tokens otherwise",
    "the accumulation inside attention kernels",
    "cache transfer between engines",
    "task accuracy",
)


def not_visible() -> str:
    """Return the list in words.

    >>> not_visible().rpartition(", ")[2]
    'cache transfer between engines and task accuracy'
    """
    return ", ".join(NOT_VISIBLE[:-1]) + f" and {NOT_VISIBLE[-1]}"
