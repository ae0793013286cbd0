"""What kvtrace knows of single models of vLLM, held against their own maps of weights' names."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from kvtrace.scales.loaders.model_rules import STACK_PROJECTIONS

pytestmark = pytest.mark.vllm

OUTPUT_SCALE = "model.layers.0.self_attn.k_proj.output_scale"


def models() -> dict[str, Any]:
    """Return architecture → vLLM's class, of those that can be imported here."""
    from vllm.model_executor.models.registry import _MULTIMODAL_MODELS, _TEXT_GENERATION_MODELS
    from write_scale_matrix import stand_in_for_torchvision

    stand_in_for_torchvision()
    found = {}
    for name, (module, kind) in (_TEXT_GENERATION_MODELS | _MULTIMODAL_MODELS).items():
        where = module if "." in module else f"vllm.model_executor.models.{module}"
        try:
            found[name] = getattr(importlib.import_module(where), kind)
        except ImportError:  # its model needs a package that is not installed
            continue
    return found


def test_the_models_that_rename_projections_before_a_scale_is_looked_for_are_those_listed() -> None:
    found = models()
    renaming = set()
    for name, kind in found.items():
        mapper, load = getattr(kind, "hf_to_vllm_mapper", None), getattr(kind, "load_weights", None)
        if not hasattr(mapper, "map_name") or load is None:
            continue
        passes_it = "mapper=self.hf_to_vllm_mapper" in inspect.getsource(load)
        mapped = mapper.map_name(OUTPUT_SCALE)
        if passes_it and mapped is not None and not mapped.endswith(".k_proj.output_scale"):
            renaming.add(name)
    assert len(found) > 200
    assert renaming == STACK_PROJECTIONS & found.keys()
