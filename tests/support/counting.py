"""What stands in for a model's tokenizer: `python counting.py MODEL`; see `kvtrace_capture.tokens`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.word_counter import count_words


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        num_tokens, before = count_words(request, request["marks"])
        print(json.dumps({"num_tokens": num_tokens, "before": before}), flush=True)


if __name__ == "__main__":
    main()
