"""Files of judged answers, made by hand after the source of the tool that each is named for."""

from __future__ import annotations

import json
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

from numcodecs.zstd import Zstd

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def own_line(id_: str, outcome: str = "pass", **fields: Any) -> dict[str, Any]:
    return {"id": id_, "variant": "bf16-a", "outcome": outcome} | fields


def lm_eval_line(doc_id: int, passed: float, **fields: Any) -> dict[str, Any]:
    return {
        "doc_id": doc_id,
        "doc": {"question": "2+2?"},
        "target": "4",
        "arguments": {"gen_args_0": {"arg_0": f"Q{doc_id}: 2+2?\nA:", "arg_1": {"until": ["\n"]}}},
        "resps": [["4"]],
        "filtered_resps": ["4"],
        "filter": "strict-match",
        "metrics": ["exact_match"],
        "doc_hash": f"hash{doc_id}",
        "prompt_hash": "ab",
        "target_hash": "4b",
        "exact_match": passed,
    } | fields


LM_EVAL_NAME = "samples_needle_2026-11-30T15-00-00.123456.jsonl"


def inspect_sample(id_: int | str, value: Any, epoch: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "epoch": epoch,
        "input": f"question {id_}",
        "target": "4",
        "output": {"choices": [{"message": {"content": "4"}, "stop_reason": "stop"}]},
        "scores": {"match": {"value": value, "answer": "4"}},
        "error": None,
        "limit": None,
    } | fields


def inspect_log(samples: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"version": 2, "status": "success", "eval": {"task": "needle"}, "samples": list(samples)}


def write_eval(path: Path, samples: Iterable[dict[str, Any]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps(inspect_log([]) | {"samples": None}))
        for sample in samples:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    return path


def aiperf_files(folder: Path, graded: dict[str, tuple[bool, bool]], requests: dict[str, Any]) -> Path:
    """graded: X-Request-Id → (passed, unparsed); requests: X-Request-Id → error, or metadata to change."""
    lines = [
        {
            "session_num": 0, "conversation_id": f"c{name}", "x_request_id": name, "task": "aime",
            "grader_name": "math", "passed": passed, "unparsed": unparsed, "confidence": 1.0,
            "expected": "4", "actual": "4",
        }
        for name, (passed, unparsed) in graded.items()
    ]  # fmt: skip
    profile = [
        {
            "metadata": {
                "session_num": 0, "x_request_id": name, "conversation_id": f"c{name}", "turn_index": 0,
                "benchmark_phase": "profiling", "was_cancelled": False,
            } | what.get("metadata", {}),
            "metrics": {},
            "error": what.get("error"),
        }
        for name, what in requests.items()
    ]  # fmt: skip
    write_lines(folder / "profile_export.jsonl", profile)
    return write_lines(folder / "accuracy_export.jsonl", lines)


def promptfoo_result(test: int, success: bool, **fields: Any) -> dict[str, Any]:
    return {
        "testIdx": test,
        "promptIdx": 0,
        "success": success,
        "score": float(success),
        "failureReason": 0 if success else 1,
        "provider": {"id": "openai:chat:m"},
        "prompt": {"raw": f"question {test}", "label": "p"},
        "vars": {"number": test},
        "response": {"output": "4", "cached": False},
    } | fields


def promptfoo_file(results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"evalId": "e", "results": {"version": 3, "prompts": [], "results": list(results), "stats": {}}}


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_json(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def write_zstandard_eval(path: Path, samples: Iterable[dict[str, Any]], damage: str | None = None) -> Path:
    """Write a log as Inspect 0.3.285 packs it: method 93, which this zipfile can store but not make."""
    members = {"header.json": inspect_log([]) | {"samples": None}}
    members |= {f"samples/{sample['id']}_epoch_{sample['epoch']}.json": sample for sample in samples}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            plain = json.dumps(content).encode()
            packed = bytes(Zstd().encode(plain))
            archive.writestr(name, packed[:-4] if damage == "cut" else packed)
            info = archive.getinfo(name)
            info.compress_type, info.file_size = 93, len(plain)
            info.CRC = zlib.crc32(plain) ^ (damage == "checksum")
    return path
