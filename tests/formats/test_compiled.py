"""The compiled forms against the torch ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.formats import FORMATS, find_format, with_rotary_dim

DYNAMIC = [name for name in FORMATS if name != "auto" and not name.startswith(("fp8_e", "octave"))]
OCTAVE = [name for name in FORMATS if name.startswith("octave")]


def both(coding, x, scale=1.0):
    """Return x̂ of the compiled form and of torch. x: [vectors, head_dim]."""
    kernel = coding.kernel(x.shape[-1], str(x.dtype).removeprefix("torch."))
    restored = np.empty(x.shape, np.float32)
    kernel.fill(x.float().numpy(), np.full(len(x), scale, np.float32), restored)
    return restored, coding.round_trip(x, scale).numpy()


def values(num, head_dim, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, head_dim, generator=generator) * 3
    # A channel far from the others, as keys have, rows of one value, of nothing, tiny and huge ones.
    x[:, 3] *= 40
    x[0], x[1], x[2], x[3] = 0, 0.5, x[2] * 1e-6, x[3] * 100
    return x.to(getattr(torch, dtype))


def check_equal(coding, x, scale=1.0):
    got, expected = both(coding, x, scale)
    assert np.isfinite(got).all()
    # Sums in another order move a coordinate over a rounding boundary now and then: one code, of one value.
    differs = ~np.isclose(got, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max(-1, keepdims=True))
    assert differs.any(-1).mean() <= 0.02


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", DYNAMIC + OCTAVE)
def test_the_compiled_form_gives_what_torch_gives(name, head_dim, dtype):
    form, x = find_format(name), values(300, head_dim, 5, dtype)
    for coding in (form.k, form.v):
        check_equal(coding, x)


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_4over6"])
@pytest.mark.parametrize("scale", [1e-4, 0.003, 0.7, 30.0])
def test_nvfp4_is_the_same_under_any_global_scale(name, scale):
    check_equal(find_format(name).k, values(300, 128, 6, "bfloat16"), scale)


@pytest.mark.parametrize("name", ["int4_per_token_head", "nvfp4", "lmdeploy_int4", "turboquant_k8v4"])
def test_head_sizes_that_are_no_powers_of_two_are_the_same_too(name):
    form = find_format(name)
    for coding in (form.k, form.v):
        check_equal(coding, values(100, 96, 7, "bfloat16"))


def test_octave_is_the_same_where_some_values_are_not_rotary():
    check_equal(with_rotary_dim(find_format("octave_k3v4"), 64).k, values(200, 256, 8, "bfloat16"))
    check_equal(find_format("octave_k3v3").v, values(200, 192, 8, "bfloat16"))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=16), min_size=64, max_size=64),
    st.sampled_from(["fp8_per_token_head", "int8_per_token_head", "nvfp4", "nvfp4_4over6"]),
)
def test_formats_without_a_rotation_are_equal_bit_for_bit(row, name):
    x = torch.tensor([row], dtype=torch.bfloat16)
    got, expected = both(find_format(name).k, x)
    assert got.tolist() == expected.tolist()


def test_ultraquant_takes_the_same_power_of_two_for_every_mantissa():
    amax = torch.arange(0x3F80, 0x4000, dtype=torch.int16).view(torch.bfloat16)
    x = torch.zeros(len(amax), 32, dtype=torch.bfloat16)
    x[:, 0], x[:, 1] = amax, amax / 3
    got, expected = both(find_format("ultraquant_4bit").v, x)
    assert got.tolist() == expected.tolist()
    largest = got[:, 0] / x[:, 0].float().numpy()
    assert (largest < 0.9).any()
    assert (largest > 0.95).any()
