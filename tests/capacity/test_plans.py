"""Every plan is vLLM's own: blocks, tokens, groups and pages, with backends that no CPU runs too.

Oracle: `plans.json` and `pages.json`, which tests/vllm/write_capacity.py lets vLLM 0.32 write.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from support.capacity_cases import CASES, Case

from kvtrace.capacity.model import model_layers
from kvtrace.capacity.plan import CachePlan, plan_cache
from kvtrace.capacity.serving import Serving
from kvtrace.errors import InputError
from kvtrace.formats import find_format

HERE: Final = Path(__file__).parent
PLANS: Final[dict[str, dict[str, Any]]] = json.loads((HERE / "plans.json").read_text())
PAGES: Final[dict[str, dict[str, int]]] = json.loads((HERE / "pages.json").read_text())
STARTS = [case for case in CASES if "refused" not in PLANS[case.name]]
REFUSED = [case for case in CASES if "refused" in PLANS[case.name]]


def planned(case: Case) -> CachePlan:
    model = model_layers(case.full_config, case.name, name=case.name, own_draft=case.own_draft)
    return plan_cache(model, Serving(**case.settings))


def test_every_case_was_asked_of_vllm() -> None:
    assert set(PLANS) == {case.name for case in CASES}


@pytest.mark.parametrize("case", STARTS, ids=lambda case: case.name)
def test_blocks_and_tokens_are_those_of_vllm(case: Case) -> None:
    plan, expected = planned(case), PLANS[case.name]
    blocks = plan.num_blocks(case.budget)
    assert {
        "block_size": plan.pages.block_size,
        "bytes_per_block": plan.bytes_per_block,
        "num_blocks": blocks,
        "num_tokens": plan.num_tokens(blocks),
        "concurrency": plan.concurrency(blocks),
    } == {
        name: expected[name]
        for name in ("block_size", "bytes_per_block", "num_blocks", "num_tokens", "concurrency")
    }


@pytest.mark.parametrize("case", STARTS, ids=lambda case: case.name)
def test_pages_and_groups_are_those_of_vllm(case: Case) -> None:
    plan, expected = planned(case), PLANS[case.name]
    pages = [[layer.index, page.size, page.block, page.content] for layer, page in plan.pages.layers]
    assert sorted(pages) == sorted(expected["layers"])
    groups = [[len(group.pages), group.block] for group in plan.pool.groups]
    assert sorted(groups) == sorted(expected["groups"])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_vllm_does_not_start_is_refused(case: Case) -> None:
    with pytest.raises(InputError):
        planned(case)


@pytest.mark.parametrize("cache_dtype", PAGES)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_a_page_has_the_bytes_that_vllm_gives_it(cache_dtype: str, head_dim: int) -> None:
    assert find_format(cache_dtype).page_bytes(16, head_dim, 2) == PAGES[cache_dtype][str(head_dim)]
