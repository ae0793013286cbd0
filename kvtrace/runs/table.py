"""What a table of a run is made of: columns with a type and a meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import pyarrow as pa

RUN_SCHEMA_VERSION: Final = "1.4"
"""Minor versions add tables and columns. 1.1: groups, magnitudes, calibrated_amax. 1.2: layers,
rounding_floor_db, reason_id; the layers of a finding are a list. 1.3: ordinary_channels.
1.4: attention, attention_layers, residual_weight."""

ArrowType = Literal["string", "int32", "int64", "float32", "float64", "bool_", "list_int32"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, Arrow type and meaning, with the unit."""

    name: str
    type_name: ArrowType
    meaning: str
    since: int = 0
    """Minor schema version that brought it; NULL in a run of an earlier one."""
    retyped: int = 0
    """Minor schema version that gave it its type."""
    earlier: str = ""
    """SQL that makes a value of that type from one of an earlier version."""

    @property
    def is_number(self) -> bool:
        """Return whether it holds numbers or truth values."""
        return self.type_name not in ("string", "list_int32")

    @property
    def may_lack_values(self) -> bool:
        """Return whether all its values may be NULL, as its meaning says."""
        return "NULL" in self.meaning

    @property
    def type(self) -> Any:
        """Return the Arrow type. Imports pyarrow, which reading a run does without."""
        import pyarrow as pa

        return pa.list_(pa.int32()) if self.type_name == "list_int32" else getattr(pa, self.type_name)()


@dataclass(frozen=True, slots=True)
class Table:
    """One Parquet file of a run."""

    name: str
    grain: str
    columns: tuple[Column, ...]
    since: int = 0
    """Minor schema version that brought it; without rows in a run of an earlier one."""

    @property
    def file_name(self) -> str:
        """Return the file's name inside the run directory."""
        return f"{self.name}.parquet"

    @property
    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema; each field carries its meaning as metadata."""
        import pyarrow as pa

        return pa.schema(
            [pa.field(c.name, c.type, metadata={"meaning": c.meaning}) for c in self.columns],
            metadata={"grain": self.grain, "kvtrace_schema_version": RUN_SCHEMA_VERSION},
        )
