"""What each format does to values that were worked out by hand or printed by the engine's own code."""

import math

import pytest
import torch

from kvtrace.formats import find_format
from kvtrace.formats.tensors import int4_per_token_head as int4
from kvtrace.formats.tensors.rotation import hadamard

X = torch.tensor(
    [1.0, -0.30078125, 0.0698242, 6.5, -2.0, 0.0, 0.0109863, 3.296875, *[0.5] * 8], dtype=torch.bfloat16
)


def k_of(name, x, scale=1.0):
    return find_format(name).k.round_trip(x, scale)


def v_of(name, x, scale=1.0):
    return find_format(name).v.round_trip(x, scale)


@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [
        ("fp8_e4m3", 0.01, [0.96, -0.3, 0.07, 4.48, -1.92, 0.0, 0.01125, 3.2, 0.48]),
        ("fp8_e5m2", 1.0, [1.0, -0.3125, 0.0625, 6.0, -2.0, 0.0, 0.011719, 3.5, 0.5]),
        ("fp8_per_token_head", 1.0,
         [1.044643, -0.290179, 0.072545, 6.5, -2.089286, 0.0, 0.010882, 3.25, 0.522321]),
        ("int8_per_token_head", 1.0,
         [1.023622, -0.307087, 0.051181, 6.5, -1.996063, 0.0, 0.0, 3.275591, 0.511811]),
        ("nvfp4", 1.0, [1.125, -0.5625, 0.0, 6.75, -2.25, 0.0, 0.0, 3.375, 0.5625]),
        ("nvfp4_4over6", 1.0, [1.125, -0.5625, 0.0, 6.75, -2.25, 0.0, 0.0, 3.375, 0.5625]),
        ("nvfp4", 0.001, [0.896, -0.224, 0.0, 2.688, -1.792, 0.0, 0.0, 2.688, 0.448]),
        ("turboquant_k8v4", 1.0,
         [0.834473, -0.299316, 0.267578, 6.503418, -2.0, 0.267578, 0.267578, 3.102051, 0.267578]),
        ("turboquant_3bit_nc", 1.0,
         [0.427734, -0.786133, 0.427734, 6.49707, -2.0, 0.427734, 0.427734, 2.855469, 0.427734]),
    ],
)  # fmt: skip
def test_v_comes_back_as_the_engine_reads_it(name, scale, expected):
    got = v_of(name, X, scale)
    torch.testing.assert_close(got[:9], torch.tensor(expected), atol=2e-6, rtol=0)
    assert (got[8:] == got[8]).all()


def test_four_over_six_takes_the_smaller_squared_error():
    x = torch.tensor([4.0, 3.0, 2.0, 1.0, *[0.0] * 12])
    assert k_of("nvfp4", x)[:4].tolist() == [4.125, 2.75, 2.0625, 1.03125]
    assert k_of("nvfp4_4over6", x)[:4].tolist() == [4.0, 3.0, 2.0, 1.0]


def test_nvfp4_loses_blocks_that_are_small_beside_its_global_scale():
    assert k_of("nvfp4", torch.full((16,), 0.005)).tolist() == [0.0] * 16
    assert k_of("nvfp4", torch.full((16,), 0.006)).tolist() == [3 * 2.0**-9] * 16


def test_nvfp4_takes_the_natural_global_scale_to_the_whole_range():
    x = torch.tensor([2.0, *[0.5] * 15])
    assert k_of("nvfp4", x, 2 / 2688)[0] == pytest.approx(2.0, rel=1e-6)
    assert k_of("nvfp4", x, 1e-4)[0] == pytest.approx(6 * 448 * 1e-4, rel=1e-6)  # its block scale saturates


def test_int4_has_the_signs_of_its_seed():
    expected = [1, -1, 1, 1, -1, -1, -1, -1, 1, -1, -1, 1, 1, -1, 1, -1]
    assert int4.signs_of(64)[:16].tolist() == expected


def test_int4_hides_the_zero_point_in_the_scale():
    codes, stored = int4.codes_of(torch.tensor([-3.0, -1.0, 0.0, 2.0] * 4))
    assert codes[:4].tolist() == [0, 6, 9, 15]
    assert stored.view(torch.int32).item() == 0x3EAAAAA9
    expected = [-2.999997, -0.999999, 0.0, 1.999998]
    assert int4.values_of(codes, stored)[:4].tolist() == pytest.approx(expected, abs=1e-6)


def test_int4_saturates_where_a_row_does_not_reach_zero():
    codes, stored = int4.codes_of(torch.tensor([5.0, 5.1, 5.2, 5.3]))
    assert codes.tolist() == [15, 15, 15, 15]
    assert int4.values_of(codes, stored).tolist() == pytest.approx([0.3] * 4, rel=1e-4)


def test_turboquant_keeps_a_vector_along_one_axis():
    for width in (64, 128, 256):
        x = torch.tensor([8.0, *[0.0] * (width - 1)])
        torch.testing.assert_close(k_of("turboquant_4bit_nc", x), x, atol=1e-5, rtol=0)


def test_turboquant_k8v4_stores_k_without_a_scale():
    x = torch.tensor([500.0, 0.3, 2.0**-11, -1000.0])
    assert k_of("turboquant_k8v4", x, 100.0).tolist() == [448.0, 0.3125, 0.0, -448.0]


def test_ultraquant_clips_the_largest_value_of_a_group_on_purpose():
    x = torch.tensor([1.0, *[0.1] * 31, 3.0, *[-0.7] * 31])
    got = v_of("ultraquant_4bit", x)
    assert got[:3].tolist() == [0.75, 0.125, 0.125]
    assert got[32:35].tolist() == [3.0, -0.75, -0.75]


def test_octave_keeps_the_projection_of_what_it_stores_on_the_vector():
    x = torch.randn(200, 128, generator=torch.Generator().manual_seed(1))
    for name in ("octave_k3v4", "octave_k3v3_compact"):
        got = k_of(name, x)
        # x · x̂ = |x|² but for the float16 scale.
        assert ((x * got).sum(-1) / x.square().sum(-1)).sub(1).abs().max() < 6e-4


def test_lmdeploy_spreads_the_codes_over_each_vectors_range():
    x = torch.tensor([-1.0, 0.5, 2.0, 1.0], dtype=torch.float32)
    # int4: scale 3 / 15, zero-point 5: codes 0, 8 (7.5 + 0.5), 15, 10.
    assert k_of("lmdeploy_int4", x).tolist() == pytest.approx([-1.0, 0.6, 2.0, 1.0], abs=1e-6)


SQNR_DB = {
    "fp8_e4m3": (31.5, 31.5), "fp8_e5m2": (25.5, 25.5), "fp8_per_token_head": (32.0, 32.0),
    "int8_per_token_head": (44.5, 44.5), "int4_per_token_head": (20.7, 20.7), "nvfp4": (20.4, 20.4),
    "nvfp4_4over6": (21.2, 21.2), "turboquant_k8v4": (31.5, 21.0), "turboquant_4bit_nc": (20.6, 21.0),
    "turboquant_k3v4_nc": (14.9, 21.0), "turboquant_3bit_nc": (14.9, 14.4), "ultraquant_4bit": (17.5, 17.5),
}  # fmt: skip


@pytest.mark.parametrize("name", SQNR_DB)
def test_normal_values_lose_what_the_prototype_measured(name):
    generator = torch.Generator().manual_seed(21)
    x = torch.randn(400, 3, 64, generator=generator).bfloat16()
    for got, expected in zip(find_format(name).round_trip(x, x), SQNR_DB[name], strict=True):
        error = (x.double() - got.double()).square().sum()
        assert 10 * math.log10(x.double().square().sum() / error) == pytest.approx(expected, abs=0.35)


def test_a_query_is_rounded_where_the_backend_rounds_it():
    q = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert find_format("fp8").query(q).tolist() == q.float().tolist()
    eight = find_format("fp8+q8")
    assert eight.name == "fp8_e4m3+q8"
    assert eight.query(torch.tensor([0.3, 500.0])).tolist() == [0.3125, 448.0]
    rotated = find_format("ultraquant_4bit").query(q)
    back = hadamard(rotated)  # in the basis where it is rounded every value is an e4m3
    torch.testing.assert_close(back.to(torch.float8_e4m3fn).float(), back, atol=1e-5, rtol=0)


def test_a_hadamard_rotation_keeps_lengths_and_undoes_itself():
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(hadamard(x).square().sum(-1), x.square().sum(-1))
    torch.testing.assert_close(hadamard(hadamard(x)), x)
