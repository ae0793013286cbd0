"""Tells the attention layers of a draft model from those of the model that it drafts for.

Speculative decoding runs the model itself over drafted tokens, and its layers are captured as ever. A drafter
with layers of its own (EAGLE, MTP, a draft model) has them in the same registry: they are left out, and the
rank's record names them. It needs no vllm.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

WITHOUT_LAYERS: Final = ("ngram", "[ngram]", "ngram_gpu", "suffix", "medusa", "mlp_speculator")
"""Methods whose drafts come from no attention of their own."""


def draft_layers(vllm_config: Any, layers: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of those layers that belong to a draft model.

    layers: vLLM's attention layers, states included, by name, in the order of their registration: the model
    is loaded before its drafter.

    vLLM says it of each layer (`is_draft_layer`) under the V2 runner and, from 0.33 on, under V1. Elsewhere
    the names tell: a drafter's layers are numbered after all of the model's (EAGLE, MTP) or lie in another
    module (`mtp.layers.0`, `draft_model.model.layers.0`).
    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        return ()
    marked = tuple(name for name, layer in layers.items() if getattr(layer, "is_draft_layer", False))
    if marked or speculative.method in WITHOUT_LAYERS:
        return marked
    return _by_name(layers, vllm_config.model_config.hf_text_config.num_hidden_layers)


def _by_name(layers: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    """Return what does not go on as the first decoder layer begins: in its module, upwards, below num_layers.

    >>> _by_name(dict.fromkeys(["model.layers.0.attn", "model.layers.1.attn", "model.layers.2.attn"]), 2)
    ('model.layers.2.attn',)
    >>> _by_name(dict.fromkeys(["model.layers.0.attn", "mtp.layers.0.attn"]), 2)
    ('mtp.layers.0.attn',)
    """
    found, of_model, last = [], None, -1
    for name, layer in layers.items():
        place = re.match(r"(.*?)(?:^|(?<=\.))(\d+)(?=\.|$)", name)
        if place is None or getattr(layer, "attn_type", "decoder") != "decoder":
            continue  # refused elsewhere: an encoder's, or one whose index cannot be told
        module, index = place[1], int(place[2])
        of_model = module if of_model is None else of_model
        if module == of_model and last <= index < num_layers:
            last = index
        else:
            found.append(name)
    return tuple(found)
