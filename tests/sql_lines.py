"""Count the lines of SQL that people must read: bodies alone, without comments and blank lines.

    python tests/sql_lines.py [ROOT]

Printed are the files of `queries/` and the SQL inside `kvtrace/`, each apart, and the sum.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

_IS_SQL = re.compile(r"^\s*(SELECT|WITH|FROM|CREATE|INSERT|SET VARIABLE)\b", re.MULTILINE)
_KEYWORDS = re.compile(r"\b(SELECT|FROM|VARIABLE)\b")


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    in_files = {file: sql_lines(file.read_text()) for file in sorted((root / "queries").rglob("*.sql"))}
    in_python = {
        file: python_sql_lines(file.read_text()) for file in sorted((root / "kvtrace").rglob("*.py"))
    }
    for counts in (in_files, in_python):
        for file, number in counts.items():
            if number:
                print(f"{number:6,}  {file.relative_to(root)}")
    queries, python = sum(in_files.values()), sum(in_python.values())
    print(f"{queries + python:,} SQL body lines: {queries:,} in queries/, {python:,} in Python")


def sql_lines(sql: str) -> int:
    """Return the lines that are neither blank nor a comment.

    >>> sql_lines("-- heads\\nSELECT 1\\n\\n  -- why\\nFROM t;\\n")
    2
    """
    return sum(bool(line.strip()) and not line.strip().startswith("--") for line in sql.splitlines())


def python_sql_lines(source: str) -> int:
    """Return the lines of string literals that are SQL; docstrings are not.

    >>> python_sql_lines('_A = "SELECT 1 " "FROM t"')
    1
    >>> python_sql_lines('def f():\\n    "SELECT is a word."')
    0
    """
    tree = ast.parse(source)
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            text = node.value
        else:
            continue
        if _IS_SQL.search(text) and _KEYWORDS.search(text):
            lines.update(_written(source, node))
    return len(lines)


def _written(source: str, node: ast.expr) -> set[int]:
    first, last = node.lineno, node.end_lineno or node.lineno
    rows = source.splitlines()
    return {
        number
        for number in range(first, last + 1)
        if rows[number - 1].strip(' "') and not rows[number - 1].rstrip().endswith('= """')
    }


if __name__ == "__main__":
    main()
