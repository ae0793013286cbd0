from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace_capture.row_selection import select_rows
from kvtrace_capture.step_plan import StepPlan, plan_request, planned_rows


def test_a_step_without_a_sampled_position_has_no_plan() -> None:
    common = {
        "request": 0,
        "sampling_id": 0,
        "stride": 16,
        "offset": 3,
        "blocks": [[5, 6]],
        "block_sizes": [16],
    }
    assert plan_request(start=4, end=19, **common) is None  # type: ignore[arg-type]
    assert plan_request(start=4, end=20, **common) is not None  # type: ignore[arg-type]


def test_a_plan_holds_only_the_blocks_that_it_needs_of_each_group() -> None:
    plan = plan_request(
        request=7,
        sampling_id=1,
        stride=4,
        offset=1,
        start=30,
        end=70,
        blocks=[[10, 11, 12, 13, 14], [20, 21, 22]],
        block_sizes=[16, 32],
    )
    assert plan is not None
    assert (plan.first, plan.end) == (33, 70)
    assert plan.blocks == ((2, (12, 13, 14)), (1, (21, 22)))


def test_slots_are_block_times_size_plus_place_by_hand() -> None:
    plan = plan_request(
        request=7, sampling_id=1, stride=16, offset=1, start=0, end=40, blocks=[[9, 4, 6]], block_sizes=[16]
    )
    assert plan is not None
    rows = planned_rows(StepPlan(0, (plan,)), [16])
    assert rows.position.tolist() == [1, 17, 33]
    assert rows.slots[0].tolist() == [9 * 16 + 1, 4 * 16 + 1, 6 * 16 + 1]
    assert rows.request.tolist() == [7, 7, 7]
    assert rows.sampling_id.tolist() == [1, 1, 1]


def test_a_position_without_a_block_has_no_slot() -> None:
    plan = plan_request(
        request=0, sampling_id=0, stride=1, offset=0, start=14, end=18, blocks=[[3]], block_sizes=[16]
    )
    assert plan is not None
    assert planned_rows(StepPlan(0, (plan,)), [16]).slots[0].tolist() == [3 * 16 + 14, 3 * 16 + 15, -1, -1]


def test_an_empty_plan_spells_out_to_no_rows() -> None:
    rows = planned_rows(StepPlan(0), [16, 32])
    assert [len(x) for x in (rows.request, rows.position, rows.sampling_id, *rows.slots)] == [0] * 5


@settings(deadline=None)
@given(data=st.data())
def test_each_sampled_token_is_found_whatever_the_order_of_the_batch(data: st.DataObject) -> None:
    """A batch of several requests is shuffled and padded; the plan must find its tokens and no others."""
    block_sizes = data.draw(st.lists(st.sampled_from([4, 16, 32]), min_size=1, max_size=2))
    free = list(range(1, 400))
    plans, batch = [], []
    for request in range(data.draw(st.integers(1, 4))):
        start, length = data.draw(st.integers(0, 90)), data.draw(st.integers(1, 60))
        stride = data.draw(st.integers(1, 20))
        offset = data.draw(st.integers(0, stride - 1))
        blocks = [[free.pop() for _ in range(-(-(start + length) // size))] for size in block_sizes]
        sampled = bool(data.draw(st.booleans()))
        for position in range(start, start + length):
            slots = [
                b[position // size] * size + position % size
                for b, size in zip(blocks, block_sizes, strict=True)
            ]
            batch.append((slots, request, position, sampled and position % stride == offset))
        plan = plan_request(
            request=request,
            sampling_id=0,
            stride=stride,
            offset=offset,
            start=start,
            end=start + length,
            blocks=blocks,
            block_sizes=block_sizes,
        )
        if sampled and plan is not None:
            plans.append(plan)
    batch = data.draw(st.permutations(batch))
    rows = planned_rows(StepPlan(0, tuple(plans)), block_sizes)
    for group in range(len(block_sizes)):
        padded = [slots[group] for slots, *_ in batch] + [-1] * data.draw(st.integers(0, 3))
        selection = select_rows(rows.slots[group], torch.tensor(padded))
        assert selection.found.all()
        found = [batch[row][1:3] for row in selection.rows.tolist()]
        assert found == list(zip(rows.request.tolist(), rows.position.tolist(), strict=True))
        assert sorted(found) == sorted(token[1:3] for token in batch if token[3])


def test_a_token_that_is_not_in_the_batch_is_not_found() -> None:
    selection = select_rows(np.array([5, 9, -1, 400]), torch.tensor([9, -1, 7]))
    assert selection.found.tolist() == [False, True, False, False]
    assert selection.rows[1].item() == 0


def test_positions_kept_for_attention_are_planned_beside_the_sampled_ones() -> None:
    common = {"request": 0, "sampling_id": 0, "stride": 16, "blocks": [[5, 6]], "block_sizes": [16]}
    first = plan_request(start=0, end=19, offset=9, keep_below=4, queries=range(9, 90, 64), **common)  # type: ignore[arg-type]
    assert first is not None
    rows = planned_rows(StepPlan(0, (first,)), [16])
    assert rows.position.tolist() == [0, 1, 2, 3, 9]
    assert rows.is_sampled.tolist() == [False] * 4 + [True]
    assert rows.has_query.tolist() == [False] * 4 + [True]
    assert rows.slots[0].tolist() == [80, 81, 82, 83, 89]
    later = plan_request(start=19, end=30, offset=9, keep_below=4, queries=range(9, 90, 64), **common)  # type: ignore[arg-type]
    assert later is not None
    assert planned_rows(StepPlan(0, (later,)), [16]).position.tolist() == [25]
    assert planned_rows(StepPlan(0, (later,)), [16]).has_query.tolist() == [False]


def test_of_a_probe_every_position_is_planned_and_queries_where_they_were_drawn() -> None:
    plan = plan_request(
        request=0, sampling_id=0, stride=16, offset=9, start=8, end=12, blocks=[[5, 6]], block_sizes=[16],
        keep_below=2**31, queries=(3, 10, 40),
    )  # fmt: skip
    assert plan is not None
    rows = planned_rows(StepPlan(0, (plan,)), [16])
    assert rows.position.tolist() == [8, 9, 10, 11]
    assert rows.is_sampled.tolist() == [False, True, False, False]
    assert rows.has_query.tolist() == [False, False, True, False]
    assert rows.slots[0].tolist() == [88, 89, 90, 91]
