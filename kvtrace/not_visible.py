"""What no offline replay can show, and every answer says so."""

from typing import Final

_ATTENTION: Final = "attention that ranks tokens otherwise"
NOT_VISIBLE: Final = (
    "errors compounding through the layers",
    _ATTENTION,
    "the accumulation inside attention kernels",
    "cache transfer between engines",
    "task accuracy",
)


BEYOND_ATTENTION: Final = tuple(one for one in NOT_VISIBLE if one != _ATTENTION)
"""The same where queries were captured, and attention was replayed with them."""


def not_visible() -> str:
    """Return the list in words.

    >>> not_visible().rpartition(", ")[2]
    'cache transfer between engines and task accuracy'
    """
    return ", ".join(NOT_VISIBLE[:-1]) + f" and {NOT_VISIBLE[-1]}"
