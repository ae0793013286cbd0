"""Count the lines that people must read: the product's Python and SQL, without docstrings and comments.

    python tests/product_lines.py [ROOT]

Printed is each package of `kvtrace/` and `capture/` (SQL in it counts as Python), `queries/`, and the sums;
and how many lines are the examples of rules, which are tests that stand beside what they test.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sql_lines import sql_lines

_NOT_READ = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    totals: Counter[str] = Counter()
    for folder in ("kvtrace", "capture"):
        for file in sorted((root / folder).rglob("*.py")):
            totals[package_of(file.relative_to(root))] += product_lines(file.read_text(encoding="utf-8"))
    python = totals.total()
    for file in (root / "queries").rglob("*.sql"):
        totals["queries"] += sql_lines(file.read_text(encoding="utf-8"))
    for package, number in sorted(totals.items()):
        print(f"{number:6,}  {package}")
    examples = sum(
        example_lines(file.read_text(encoding="utf-8")) for file in (root / "kvtrace").rglob("*.py")
    )
    print(f"{python:,} lines of Python, of them {examples:,} examples of rules; {totals['queries']:,} of SQL")
    print(f"{totals.total():,} product code lines, without docstrings and comments")


def package_of(file: Path) -> str:
    """Return the package that a file counts to: the folder below kvtrace/ or capture/, or that itself.

    >>> package_of(Path("kvtrace/report/html/page.py")), package_of(Path("kvtrace/cli.py"))
    ('kvtrace/report', 'kvtrace')
    """
    return "/".join(file.parts[:2] if len(file.parts) > 2 else file.parts[:1])


def product_lines(source: str) -> int:
    '''Return the lines on which there is code.

    >>> product_lines('"""A module."""\\n\\nX = 1  # why\\n"""What X is."""\\n\\n# a comment\\n')
    1
    >>> product_lines('def f():\\n    """Return a text of two lines."""\\n    return """a\\n    b"""\\n')
    3
    '''
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in filter(_is_docstring, node.body):
                docstrings.update(_lines(statement.lineno, statement.end_lineno or statement.lineno))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_READ:
            code.update(_lines(token.start[0], token.end[0]))
    return len(code - docstrings)


def example_lines(source: str) -> int:
    """Return the lines of the examples that a rule is given.

    >>> example_lines('Rule(\\n    id="a",\\n    valid=(\\n        One(),\\n    ),\\n)\\n')
    3
    """
    given = (
        keyword
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    )
    examples = [keyword.value for keyword in given if keyword.arg in ("valid", "invalid")]
    return sum(1 + (value.end_lineno or value.lineno) - value.lineno for value in examples)


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _lines(first: int, last: int) -> range:
    return range(first, last + 1)


if __name__ == "__main__":
    main()
