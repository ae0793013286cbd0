"""One offline engine whose control file changes while it runs: `python run_switched.py JOB.json`.

JOB.json as for run_offline.py, except that `rounds` are events in order: {"control": object} writes the
control file and waits for its record in sampling.jsonl; {"token_ids", "max_tokens"} serves one request, and
with {"after": n, "control": object} the change comes when the request has n output tokens. Writes to `out`
what each request got. The engine must run in this process: no step is taken while the file is written.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 20.0


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    from vllm import LLM

    llm = LLM(job["model"], **{"gpu_memory_utilization": 0.4} | job["engine"])
    traces = Path(job["engine"]["kv_transfer_config"]["kv_connector_extra_config"]["directory"])
    outputs = []
    for event in job["rounds"]:
        if "token_ids" in event:
            outputs.append(serve(llm, event, traces))
        else:
            change(traces, event["control"])
    Path(job["out"]).write_text(json.dumps({"outputs": outputs}))


def serve(llm: Any, event: dict[str, Any], traces: Path) -> dict[str, list[int]]:
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=event["max_tokens"], ignore_eos=True, detokenize=False
    )
    engine = llm.llm_engine
    engine.add_request("r", {"prompt_token_ids": event["token_ids"]}, sampling)
    output: list[int] = []
    is_changed = "after" not in event
    while engine.has_unfinished_requests():
        for result in engine.step():
            output = list(result.outputs[0].token_ids)
        if not is_changed and len(output) >= event["after"]:
            is_changed = True
            change(traces, event["control"])
    return {"prompt": event["token_ids"], "output": output}


def change(traces: Path, control: dict[str, Any]) -> None:
    """Write the control file as its documentation says, and wait until the change is recorded."""
    before = num_samplings(traces)
    fresh = traces / "new.json"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump(control, file)
    fresh.replace(traces / "kvtrace-control.json")
    deadline = time.monotonic() + PATIENCE_S
    while num_samplings(traces) == before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{control} was not seen")
        time.sleep(0.02)
    time.sleep(0.1)  # the record is written just before the rules are put in force


def num_samplings(traces: Path) -> int:
    (file,) = traces.glob("*.kvtrace/sampling.jsonl")
    return len(file.read_text().splitlines())


if __name__ == "__main__":
    main(sys.argv[1])
