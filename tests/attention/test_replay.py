"""Attention replayed: against float64 by the textbook, torch's own attention, and values by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_oracle import attention

from kvtrace.attention import logits as logits_module
from kvtrace.attention import replay as replay_module
from kvtrace.attention.quantizers import keep
from kvtrace.attention.replay import TOP_KEYS, AttentionErrors, Exact, Restored, replay_layer
from kvtrace.errors import UnsupportedAttentionError
from kvtrace.trace.queries import AttentionLayer, AttentionValues

PER_HEAD = ("sum_do2", "sum_o_do", "sum_do2_k", "sum_do2_v", "sum_do2_q", "sum_kl", "sum_fisher")


def layer_of(kv_head_of: tuple[int, ...], **fields: Any) -> AttentionLayer:
    return AttentionLayer(
        **{
            "index": 3,
            "name": "model.layers.3.self_attn.attn",
            "kv_heads": tuple(range(max(kv_head_of) + 1)),
            "query_heads": tuple(range(len(kv_head_of))),
            "kv_head_of": kv_head_of,
            "softmax_scale": 0.25,
            "sliding_window": None,
            "soft_cap": None,
            "sinks": None,
            "query_is_fp8": False,
            "not_replayable": (),
        }
        | fields
    )


def values_of(
    layer: AttentionLayer,
    num_keys: int = 60,
    query_position: tuple[int, ...] = (3, 17, 18, 40, 59),
    key_position: Any = None,
    seed: int = 1,
) -> AttentionValues:
    random = np.random.default_rng(seed)
    heads, kv_heads = len(layer.kv_head_of), len(layer.kv_heads)
    return AttentionValues(
        request=0,
        layer=layer,
        q=random.normal(size=(len(query_position), heads, 16)).astype(np.float32),
        query_position=np.array(query_position, np.int32),
        k=random.normal(size=(num_keys, kv_heads, 16)).astype(np.float32),
        v=random.normal(size=(num_keys, kv_heads, 8)).astype(np.float32),
        key_position=np.arange(num_keys, dtype=np.int32) if key_position is None else key_position,
        o=None,
    )


def noisy(size: float, *, queries: bool = False) -> Any:
    """Return a candidate that adds noise, the same at each call."""

    def quantize(exact: Exact) -> Restored:
        generator = torch.Generator().manual_seed(5)
        k, v, q = (x + size * torch.randn(x.shape, generator=generator) for x in (exact.k, exact.v, exact.q))
        return Restored(k, v, q if queries else None)

    return quantize


def by_the_textbook(values: AttentionValues, restored: Restored) -> dict[str, Any]:
    """Return every metric in float64 from its definition."""
    layer = values.layer
    exact = [x.astype(np.float64) for x in (values.q, values.k, values.v)]
    k, v = (x.double().numpy().transpose(1, 0, 2) for x in (restored.k, restored.v))
    q = exact[0]
    if restored.q is not None:
        order = np.argsort(layer.kv_head_of, kind="stable")
        q = np.empty_like(exact[0])
        q[:, order] = restored.q.double().numpy().reshape(len(order), len(q), -1).transpose(1, 0, 2)

    def run(q: Any, k: Any, v: Any) -> Any:
        return attention(
            q, k, v, query_position=values.query_position, key_position=values.key_position,
            kv_head_of=layer.kv_head_of, scale=layer.softmax_scale, window=layer.sliding_window,
            soft_cap=layer.soft_cap, sinks=layer.sinks,
        )  # fmt: skip

    o, p, s = run(*exact)
    o_hat, p_hat, s_hat = run(q, k, v)
    seen = np.isfinite(s)
    delta = np.where(seen, s_hat, 0) - np.where(seen, s, 0)
    p_sink, p_hat_sink = 1 - p.sum(-1), 1 - p_hat.sum(-1)
    has_sink = layer.sinks is not None

    def squares(x: Any) -> Any:
        return np.square(x).sum(-1)

    with np.errstate(divide="ignore", invalid="ignore"):
        kl = np.where(p > 0, p * (np.log(p) - np.log(p_hat)), 0).sum(-1)
        kl += p_sink * (np.log(p_sink) - np.log(p_hat_sink)) if has_sink else 0
    top, top_hat = (np.argsort(-x, axis=-1, kind="stable")[..., :TOP_KEYS] for x in (s, s_hat))
    overlap = np.zeros(s.shape[:2])
    for place in np.ndindex(*overlap.shape):
        largest = {key for key in top[place].tolist() if seen[place][key]}
        overlap[place] = len(largest & set(top_hat[place].tolist())) / len(largest)
    return {
        "sum_o2": squares(o),
        "sum_do2": squares(o_hat - o),
        "sum_o_do": (o * (o_hat - o)).sum(-1),
        "sum_do2_k": squares(run(exact[0], k, exact[2])[0] - o),
        "sum_do2_v": squares(run(exact[0], exact[1], v)[0] - o),
        "sum_do2_q": squares(run(q, exact[1], exact[2])[0] - o),
        "sum_kl": kl,
        "sum_fisher": (p * delta**2).sum(-1) - (p * delta).sum(-1) ** 2,
        "num_flips": (s.argmax(-1) != s_hat.argmax(-1)).astype(float),
        "top_overlap": overlap,
        "output": o,
        "error": o_hat - o,
    }


CASES = {
    "plain": {},
    "window": {"sliding_window": 16},
    "soft cap": {"soft_cap": 0.7},
    "sinks": {"sinks": (0.5, -1.0, 2.0, 0.0, 1.0, -3.0)},
    "all of them": {"sliding_window": 9, "soft_cap": 1.5, "sinks": (0.5, -1.0, 2.0, 0.0, 1.0, -3.0)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("queries", [False, True])
def test_every_metric_is_that_of_the_textbook_in_float64(case: str, queries: bool) -> None:
    layer = layer_of((0, 0, 1, 1, 2, 2), **CASES[case])
    values = values_of(layer)
    projection = torch.randn(24, 6 * 8, generator=torch.Generator().manual_seed(2))
    quantize = noisy(0.2, queries=queries)
    found = replay_layer(values, [quantize], projection=projection)
    seen: list[Restored] = []
    replay_layer(values, [lambda exact: seen.append(quantize(exact)) or seen[-1]])
    expected = by_the_textbook(values, seen[0])
    assert found.sum_o2 == pytest.approx(expected["sum_o2"], rel=1e-5)
    for name in PER_HEAD:
        assert getattr(found, name)[0] == pytest.approx(expected[name], rel=2e-4, abs=2e-6), name
    for name in ("num_flips", "top_overlap"):
        assert getattr(found, name)[0] == pytest.approx(expected[name]), name
    w_o = projection.double().numpy()
    for name, rows in (("projected", expected["error"]), ("projected_output", expected["output"])):
        projected = np.square(rows.reshape(len(rows), -1) @ w_o.T).sum(-1)
        assert np.squeeze(getattr(found, name)) == pytest.approx(projected, rel=1e-4)


@pytest.mark.parametrize("window", [None, 16])
def test_the_exact_output_is_that_of_torchs_own_attention(window: int | None) -> None:
    layer = layer_of((0, 0, 1, 1, 2, 2), sliding_window=window)
    values = values_of(layer)
    distance = torch.tensor(values.query_position)[:, None] - torch.arange(60)
    mask = (distance >= 0) & (distance < (window or 10**9))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.tensor(x).transpose(0, 1)[None] for x in (values.q, values.k, values.v)),
        attn_mask=mask,
        scale=0.25,
        enable_gqa=True,
    )[0].transpose(0, 1)
    zero = replay_layer(values, [lambda exact: Restored(exact.k, torch.zeros_like(exact.v))])
    assert zero.sum_do2[0] == pytest.approx(expected.square().sum(-1).numpy(), rel=1e-5)  # Δo = −o
    assert zero.sum_o2 == pytest.approx(expected.square().sum(-1).numpy(), rel=1e-5)


def test_what_is_not_quantized_has_no_error_at_all() -> None:
    for case in CASES.values():
        found = replay_layer(values_of(layer_of((0, 0, 1, 1, 2, 2), **case)), [keep, noisy(0.1)])
        for name in (*PER_HEAD, "num_flips"):
            assert (getattr(found, name)[0] == 0).all(), name
        assert (found.top_overlap[0] == 1).all()
        assert (found.sum_do2[1] > 0).all()


def worked_example() -> AttentionValues:
    """Two keys, D = 2, scale 1: q = (1, 0); k = (0, 0), (ln 3, 0); v = (1, 0), (0, 1)."""
    layer = layer_of((0,), softmax_scale=1.0)
    return AttentionValues(
        request=0,
        layer=layer,
        q=np.array([[[1.0, 0.0]]], np.float32),
        query_position=np.array([1], np.int32),
        k=np.array([[[0.0, 0.0]], [[math.log(3), 0.0]]], np.float32),
        v=np.array([[[1.0, 0.0]], [[0.0, 1.0]]], np.float32),
        key_position=np.array([0, 1], np.int32),
        o=None,
    )


def test_by_hand_a_key_that_changes_its_sign() -> None:
    def negated(exact: Exact) -> Restored:
        return Restored(-exact.k, exact.v)

    found = replay_layer(worked_example(), [negated], projection=torch.eye(2))
    # p = (1/4, 3/4), o = (1/4, 3/4); p̂ = (3/4, 1/4)
    assert found.sum_o2.item() == pytest.approx(0.625)
    assert found.sum_do2.item() == pytest.approx(0.5)
    assert found.sum_do2_k.item() == pytest.approx(0.5)
    assert found.sum_do2_v.item() == found.sum_do2_q.item() == 0
    assert found.sum_o_do.item() == pytest.approx(0.25 * 0.5 - 0.75 * 0.5)
    assert found.sum_kl.item() == pytest.approx(0.549306, abs=1e-6)
    assert found.sum_fisher.item() == pytest.approx(0.905212, abs=1e-6)
    assert found.num_flips.item() == 1
    assert found.projected is not None
    assert found.projected.item() == pytest.approx(0.5)


def test_by_hand_a_value_that_grows() -> None:
    def grown(exact: Exact) -> Restored:
        return Restored(exact.k, torch.tensor([[[1.0, 0.0], [0.0, 1.5]]]))

    found = replay_layer(worked_example(), [grown])
    assert found.sum_do2.item() == pytest.approx(0.140625)
    assert found.sum_do2_v.item() == pytest.approx(0.140625)
    assert found.sum_do2_k.item() == found.sum_kl.item() == found.sum_fisher.item() == 0
    assert found.num_flips.item() == 0


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_the_order_of_heads_changes_nothing(data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(6)))
    layer = layer_of((0, 0, 1, 1, 2, 2))
    values = values_of(layer)
    expected = replay_layer(values, [noisy(0.3)])
    permuted = replace(
        values,
        q=values.q[:, order],
        layer=replace(layer, kv_head_of=tuple(layer.kv_head_of[head] for head in order)),
    )
    found = replay_layer(permuted, [noisy(0.3)])
    for name in (*PER_HEAD, "num_flips"):
        assert getattr(found, name)[0] == pytest.approx(getattr(expected, name)[0][:, order], abs=1e-6)


def test_the_size_of_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of((0, 0, 1, 1), sliding_window=33)
    values = values_of(layer, num_keys=300, query_position=tuple(range(0, 300, 7)))
    whole = replay_layer(values, [noisy(0.1)])
    monkeypatch.setattr(logits_module, "_BLOCK_BYTES", {"cpu": 1})
    monkeypatch.setattr(replay_module, "_HELD_BYTES", 1)
    apart = replay_layer(values, [noisy(0.1)])
    for name in ("sum_o2", *PER_HEAD, "num_flips", "top_overlap"):
        assert getattr(apart, name) == pytest.approx(getattr(whole, name), abs=1e-6, nan_ok=True)


def test_only_some_keys_attention_is_over_those_and_a_query_without_one_is_left_out() -> None:
    layer = layer_of((0, 1))
    values = values_of(
        layer, num_keys=4, query_position=(1, 5, 30), key_position=np.array([2, 5, 9, 40], np.int32)
    )
    found = replay_layer(values, [noisy(0.5)])
    assert found.position.tolist() == [5, 30]
    assert found.num_keys.tolist() == [2, 3]
    rest = replace(values, q=values.q[1:], query_position=values.query_position[1:])
    assert found.sum_o2 == pytest.approx(replay_layer(rest, [noisy(0.5)]).sum_o2)


def test_the_output_alone_is_the_same_and_the_rest_is_absent() -> None:
    values = values_of(layer_of((0, 0, 1, 1)))
    everything = replay_layer(values, [noisy(0.1)])
    output = replay_layer(values, [noisy(0.1)], metrics="output")
    assert (output.sum_do2 == everything.sum_do2).all()
    assert (output.sum_o_do == everything.sum_o_do).all()
    assert np.isnan(output.sum_kl).all()
    assert output.projected is None


def test_a_smaller_value_shows_as_shrinkage() -> None:
    values = values_of(layer_of((0, 0, 1, 1)))
    found: AttentionErrors = replay_layer(values, [lambda exact: Restored(exact.k, exact.v * 0.9)])
    assert found.sum_o_do[0] / found.sum_o2 == pytest.approx(-0.1, abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"not_replayable": ("alibi_slopes",)}, "its attention uses alibi_slopes"),
        ({"kv_heads": (0, 1, 2)}, "its KV heads are not read by equally many query heads each"),
    ],
)
def test_a_layer_that_cannot_be_replayed_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    layer = layer_of((0, 1, 1, 1), **fields)
    with pytest.raises(
        UnsupportedAttentionError, match=r"layer 3 \(model\.layers\.3\.self_attn\.attn\)"
    ) as raised:
        replay_layer(values_of(layer), [keep])
    assert said in str(raised.value)
