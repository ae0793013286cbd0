"""Bytes and native layers of every format, as vLLM's own specs give them."""

import pytest

from kvtrace.errors import InputError
from kvtrace.formats import FORMATS, find_format, with_rotary_dim

# Of vLLM 0.32: `customize_spec` and `FullAttentionSpec.page_size_bytes` over block size and heads.
BYTES = {
    "auto": {64: 256, 96: 384, 128: 512, 256: 1024},
    "fp8_e4m3": {64: 128, 96: 192, 128: 256, 256: 512},
    "fp8_e5m2": {64: 128, 96: 192, 128: 256, 256: 512},
    "fp8_per_token_head": {64: 136, 96: 200, 128: 264, 256: 520},
    "int8_per_token_head": {64: 136, 96: 200, 128: 264, 256: 520},
    "int4_per_token_head": {64: 72, 96: 104, 128: 136, 256: 264},
    "nvfp4": {64: 72, 96: 108, 128: 144, 256: 288},
    "nvfp4_4over6": {64: 72, 96: 108, 128: 144, 256: 288},
    "turboquant_k8v4": {64: 100, 96: 148, 128: 196, 256: 388},
    "turboquant_4bit_nc": {64: 70, 128: 134, 256: 262},
    "turboquant_k3v4_nc": {64: 62, 128: 118, 256: 230},
    "turboquant_3bit_nc": {64: 54, 128: 102, 256: 198},
    "ultraquant_4bit": {64: 68, 128: 136, 256: 272},
}


@pytest.mark.parametrize(
    ("name", "head_dim", "size"), [(name, d, size) for name, of in BYTES.items() for d, size in of.items()]
)
def test_a_slot_has_the_bytes_of_vllms_own_page(name, head_dim, size):
    form = find_format(name)
    assert form.why_not(head_dim) is None
    assert form.slot_bytes(head_dim) == size
    assert form.bytes_per_token(head_dim, kv_heads=8) == 8 * size
    assert form.page_bytes(16, head_dim, kv_heads=8) == 16 * 8 * size


@pytest.mark.parametrize(
    ("name", "size"), [("octave_k3v4", 248), ("octave_k3v3", 216), ("octave_k3v3_compact", 196)]
)
def test_octave_stores_rotary_values_in_more_bits(name, size):
    assert with_rotary_dim(find_format(name), 64).slot_bytes(256) == size


def test_octave_takes_all_values_as_rotary_where_nothing_is_known():
    assert find_format("octave_k3v3").slot_bytes(64) == 64 * 4 // 8 + 64 * 3 // 8 + 2 + 2 + 4  # padded to 8


def test_lmdeploy_keeps_a_scale_and_a_zero_point_in_the_models_dtype():
    assert find_format("lmdeploy_int8").slot_bytes(128) == 2 * (128 + 4)
    assert find_format("lmdeploy_int4").slot_bytes(128) == 2 * (64 + 4)


def test_v_may_have_another_head_size():
    assert find_format("auto").slot_bytes(192, 128) == 2 * 192 + 2 * 128
    assert find_format("nvfp4").slot_bytes(192, 128) == 96 + 12 + 64 + 8


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.keeps_boundary_layers])
def test_turboquant_and_ultraquant_keep_two_layers_at_either_end(name):
    assert name.startswith(("turboquant_", "ultraquant_"))
    form = find_format(name)
    assert form.native_layers(30) == (0, 1, 28, 29)
    assert form.native_layers(3) == (0, 2)  # no more than half of them at either end
    assert form.native_layers(1) == ()
    assert form.native_layers(30, skip=[5]) == (0, 1, 5, 28, 29)
    assert form.native_layers(30, is_hybrid=True) == ()


@pytest.mark.parametrize(("layers", "times"), [(30, 2.78), (32, 2.82), (80, 3.35)])
def test_native_layers_cost_turboquant_much_of_what_it_saves(layers, times):
    packed, native = find_format("turboquant_4bit_nc"), find_format("auto")
    kept = len(packed.native_layers(layers))
    total = (layers - kept) * packed.slot_bytes(128) + kept * native.slot_bytes(128)
    assert round(layers * native.slot_bytes(128) / total, 2) == times


def test_other_formats_keep_no_layer_of_their_own():
    assert find_format("nvfp4").native_layers(30) == ()
    assert find_format("fp8").native_layers(30, skip=(7, 3)) == (3, 7)


@pytest.mark.parametrize(
    ("name", "head_dim"),
    [("turboquant_4bit_nc", 96), ("ultraquant_4bit", 96), ("nvfp4", 72), ("int4_per_token_head", 65),
     ("octave_k3v4", 96), ("octave_k3v3_compact", 192), ("lmdeploy_int4", 65)],
)  # fmt: skip
def test_a_head_size_that_a_format_does_not_take_is_said(name, head_dim):
    assert str(head_dim) in find_format(name).why_not(head_dim)


@pytest.mark.parametrize("name", ["fp8_ds_mla", "nvfp4_ds_mla"])
def test_formats_of_mla_are_refused_by_name(name):
    with pytest.raises(InputError, match=f"{name}.*MLA latents"):
        find_format(name)


def test_a_dtype_that_a_plug_in_registered_is_named_and_refused():
    with pytest.raises(InputError, match=r"my_plugin_q6.*plug-in.*expected one of auto, fp8_e4m3"):
        find_format("my_plugin_q6")


def test_vllms_other_names_and_earlier_ones_mean_the_same():
    assert find_format("fp8") is find_format("fp8_e4m3")
    assert find_format("int8-per-token-head") is find_format("int8_per_token_head")
    assert find_format("bfloat16") is find_format("auto")


def test_formats_that_read_the_checkpoints_scales_say_so():
    assert {name for name, form in FORMATS.items() if form.uses_scales} == {
        "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_4over6"
    }  # fmt: skip


def test_formats_with_a_range_say_so_for_k_and_v():
    ranges = {name: (form.k.limits, form.v.limits) for name, form in FORMATS.items()}
    assert ranges["fp8_e4m3"] == ((448, 464), (448, 464))
    assert ranges["fp8_e5m2"] == ((57344, 61440), (57344, 61440))
    assert ranges["nvfp4"] == ranges["nvfp4_4over6"] == ((2688, 3136), (2688, 3136))  # 6 · 448, 7 · 448
    assert ranges["turboquant_k8v4"] == ((448, 464), None)
    without = {name for name, of in ranges.items() if of == (None, None)}
    assert without == FORMATS.keys() - {"fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_4over6", "turboquant_k8v4"}
