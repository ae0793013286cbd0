"""A drafter's layers are told from the model's: by vLLM's own mark, or by their names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kvtrace_capture.drafts import draft_layers


def engine(method: str | None, *, num_layers: int = 3) -> Any:
    speculative = SimpleNamespace(method=method) if method else None
    text = SimpleNamespace(num_hidden_layers=num_layers)
    return SimpleNamespace(speculative_config=speculative, model_config=SimpleNamespace(hf_text_config=text))


def layers(*names: str, marked: tuple[str, ...] = ()) -> dict[str, Any]:
    return {name: SimpleNamespace(attn_type="decoder", is_draft_layer=name in marked) for name in names}


MODEL = tuple(f"model.layers.{index}.self_attn.attn" for index in range(3))


@pytest.mark.parametrize(
    ("method", "drafts"),
    [
        ("eagle", ("model.layers.3.self_attn.attn",)),
        ("mtp", ("model.layers.3.mtp_block.self_attn.attn", "model.layers.4.mtp_block.self_attn.attn")),
        ("mtp", ("mtp.layers.0.self_attn.attn",)),
        ("mtp", ("model.mtp.layers.0.self_attn.attn", "model.mtp.layers.1.self_attn.attn")),
        ("draft_model", tuple(f"draft_model.{name}" for name in MODEL)),
        ("custom_class", ("mine.0.attn",)),
        ("extract_hidden_states", ("cache_only_layers.0",)),
        ("medusa", ()),
    ],
)
def test_a_drafters_layers_are_told_by_their_names(method: str, drafts: tuple[str, ...]) -> None:
    assert draft_layers(engine(method), layers(*MODEL, *drafts)) == drafts


def test_where_vllm_marks_the_layers_of_a_drafter_no_name_is_asked() -> None:
    # As in a last pipeline stage, where EAGLE counts on from the layers of that stage alone.
    names = ("model.layers.16.attn", "model.layers.17.attn", "model.layers.2.attn")
    found = draft_layers(engine("eagle", num_layers=18), layers(*names, marked=("model.layers.2.attn",)))
    assert found == ("model.layers.2.attn",)
    assert draft_layers(engine("eagle", num_layers=18), layers(*names)) == ("model.layers.2.attn",)


def test_the_layers_of_a_hybrid_or_of_a_model_within_another_are_the_models() -> None:
    hybrid = ("model.layers.0.mixer", "model.layers.1.self_attn.attn", "model.layers.2.mixer")
    assert draft_layers(engine("mtp"), layers(*hybrid, "mtp.layers.0.attn")) == ("mtp.layers.0.attn",)
    inner = tuple(f"language_model.{name}" for name in MODEL)
    assert draft_layers(engine("eagle3"), layers(*inner, "model.layers.3.attn")) == ("model.layers.3.attn",)


def test_without_a_drafter_that_has_layers_every_layer_is_the_models() -> None:
    beyond = (*MODEL, "model.layers.7.attn")
    for method in (None, "ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"):
        assert draft_layers(engine(method), layers(*beyond)) == ()
