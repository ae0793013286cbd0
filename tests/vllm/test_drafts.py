"""Drafters with layers of their own: the model's are captured as ever, theirs are left out and named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.vllm_checkpoints import write_tiny_eagle, write_tiny_model
from support.vllm_engines import ONE_PROCESS, StoredTrace, connector, only_trace, run_offline
from support.vllm_tiny import ENGINE, check_complete_and_right, drafts_of, prompts
from support.vllm_v2 import v2_environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm_full

ROUNDS = [prompts(3, 96, 60, period=12)]
NUM_DRAFTS = 3


@dataclass(frozen=True)
class Served:
    """What one engine left."""

    trace: StoredTrace
    outputs: list[dict[str, Any]]
    """Of all requests in order."""
    rank: dict[str, Any]
    counted: dict[str, int]
    """vLLM's own counts of drafts, over all requests."""
    folder: Path

    def check(self) -> tuple[int, int]:
        """Check the trace, and its counts of drafts against vLLM's; return those."""
        check_complete_and_right(self.folder / "model", self.trace, self.outputs)
        proposed, accepted = drafts_of(self.trace)
        assert proposed == self.counted["draft_tokens"]
        # vLLM counts before it cuts what comes after a stop, and these requests stop by their length.
        cut = self.counted["accepted_tokens"] - accepted
        assert 0 <= cut <= NUM_DRAFTS * len(self.outputs)
        return proposed, accepted


def serve(
    folder: Path, drafter: dict[str, Any], *, engine: dict[str, Any] | None = None, **env: str
) -> Served:
    """Serve the rounds with drafts for a tiny Llama. drafter: its "model" is a folder that is made here."""
    model = folder / "model"
    write_tiny_model(model, "llama")
    if drafter.get("model") == "eagle":
        write_tiny_eagle(folder / "eagle", model)
    if "model" in drafter:
        drafter = {**drafter, "model": str(folder / drafter["model"])}
    asked = {
        **ENGINE,
        "disable_log_stats": False,
        "speculative_config": {"num_speculative_tokens": NUM_DRAFTS, **drafter},
        "kv_transfer_config": connector(folder / "traces", position_stride=1),
        **(engine or {}),
    }
    finished = run_offline(folder, model, asked, ROUNDS, **ONE_PROCESS, **env)
    assert finished.returncode == 0, finished.stderr[-3000:]
    out = json.loads((folder / "out.json").read_text())
    trace = only_trace(folder / "traces")
    return Served(
        trace,
        [one for round_ in out["rounds"] for one in round_],
        json.loads((trace.store / "rank.json").read_text()),
        out["drafts"],
        folder,
    )


EAGLE = {"method": "eagle", "model": "eagle"}
ITSELF = {"method": "draft_model", "model": "model"}


def test_eagles_layers_are_left_out_and_no_rejected_draft_stands(tmp_path: Path) -> None:
    served = serve(tmp_path, EAGLE)
    assert served.rank["draft_layers"] == ["model.layers.3.self_attn.attn"]
    assert served.trace.layer_indices == [0, 1, 2]
    assert len(served.trace.tokens) > len(set(served.trace.tokens)), (
        "nothing was rejected: this shows nothing"
    )
    proposed, accepted = served.check()
    assert accepted < proposed


def test_a_draft_model_that_is_the_model_itself_is_left_out_and_nearly_always_right(tmp_path: Path) -> None:
    served = serve(tmp_path, ITSELF)
    assert served.rank["draft_layers"] == [f"draft_model.model.layers.{n}.self_attn.attn" for n in range(3)]
    assert served.trace.layer_indices == [0, 1, 2]
    proposed, accepted = served.check()
    assert accepted > 0.9 * proposed


@pytest.mark.parametrize("drafter", [EAGLE, ITSELF], ids=lambda drafter: drafter["method"])
@pytest.mark.parametrize("is_async", [False, True])
def test_of_the_v2_runner_a_drafters_layers_are_left_out_too(
    tmp_path: Path, is_async: bool, drafter: dict[str, Any]
) -> None:
    environment = v2_environment(asynchronous=is_async)
    served = serve(tmp_path, drafter, engine={"async_scheduling": is_async}, **environment)
    assert len(served.rank["draft_layers"]) == (1 if drafter is EAGLE else 3)
    assert served.trace.layer_indices == [0, 1, 2]
    proposed, accepted = served.check()
    assert accepted < proposed if drafter is EAGLE else accepted > 0.9 * proposed


def test_of_the_v2_runner_n_grams_found_on_the_device_are_rejected_and_accepted(tmp_path: Path) -> None:
    drafter = {"method": "ngram_gpu", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    served = serve(tmp_path, drafter, **v2_environment())
    assert served.rank["draft_layers"] == []
    proposed, accepted = served.check()
    assert 0 < accepted < proposed
    assert any(one["rejected"] for one in served.trace.requests.values())
