from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support import attention_trace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def trace_with_queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two dense requests in two layers on two ranks: 4 KV heads, 8 query heads, head_dim 8."""
    return attention_trace.trace_with_queries(tmp_path_factory.mktemp("attention") / "t.kvtrace")
