"""`make checkpoint-cases`: every case, the right answer in words, and whether the tool gives it.

Exit code 1 if any answer is wrong.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from pprint import pformat
from textwrap import indent

from checkpoint_cases.all_cases import CASES


def main() -> int:
    wrong = 0
    for case in CASES:
        with tempfile.TemporaryDirectory() as directory:
            answer = case.ask(Path(directory) / "in")
        missed = {key: answer.get(key) for key, value in case.right.items() if answer.get(key) != value}
        wrong += bool(missed)
        print(f"{'WRONG' if missed else 'right':6}{case.name} ({case.source})\n      {case.says}")
        if missed:
            print(
                indent(f"said {pformat(missed)}\nnot  {pformat({k: case.right[k] for k in missed})}", " " * 6)
            )
    print(f"\n{len(CASES) - wrong} of {len(CASES)} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
