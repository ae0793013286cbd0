"""Formats by layer: how they are written, which layers stay native, and what serves them."""

import pytest

from kvtrace.errors import InputError
from kvtrace.formats import LayeredFormat, find_format, parse_format, vllm_flags
from kvtrace.formats.layered import served_as

BY_LAYER = "fp8/0,1,29:auto/4-7:k=fp8,v=nvfp4"


def test_layers_have_the_formats_that_they_are_listed_with():
    form = parse_format(BY_LAYER)
    assert [form.in_layer(layer).name for layer in (0, 1, 2, 4, 7, 8, 29)] == [
        "auto", "auto", "fp8_e4m3", "k=fp8_e4m3,v=nvfp4", "k=fp8_e4m3,v=nvfp4", "fp8_e4m3", "auto"
    ]  # fmt: skip
    assert form.native_layers(30) == (0, 1, 29)
    assert form.native_layers(30, skip=[5]) == (0, 1, 5, 29)


def test_a_name_reads_back_equal():
    form = parse_format(BY_LAYER)
    assert form.name == "fp8_e4m3/0-1,29:auto/4-7:k=fp8_e4m3,v=nvfp4"
    assert parse_format(form.name) == form
    assert parse_format("fp8/29:bf16/4-7:k=fp8,v=nvfp4/0-1:auto") == form


def test_layers_that_do_not_differ_are_the_one_format():
    assert parse_format("fp8/3:fp8_e4m3") is find_format("fp8")
    assert isinstance(parse_format("fp8/3:nvfp4"), LayeredFormat)


def test_what_is_listed_wins_over_the_layers_that_a_format_keeps_by_itself():
    assert parse_format("turboquant_4bit_nc/1:fp8/5:auto").native_layers(30) == (0, 5, 28, 29)
    assert parse_format("turboquant_4bit_nc/0:turboquant_4bit_nc").native_layers(30) == (1, 28, 29)
    assert parse_format("auto/0-3:turboquant_4bit_nc").native_layers(6) == (4, 5)


def test_scales_are_read_where_any_layer_reads_them():
    assert parse_format("int8_per_token_head/3:nvfp4").uses_scales
    assert not parse_format("int8_per_token_head/3:auto").uses_scales


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("fp8", "--kv-cache-dtype fp8_e4m3"),
        ("fp8/0,1,3:auto", "--kv-cache-dtype fp8_e4m3 --kv-cache-dtype-skip-layers 0 1 3"),
        ("auto/1-2:nvfp4", "--kv-cache-dtype nvfp4 --kv-cache-dtype-skip-layers 0 3 4 5"),
        ("turboquant_3bit_nc/2:auto", "--kv-cache-dtype turboquant_3bit_nc --kv-cache-dtype-skip-layers 2"),
        ("turboquant_3bit_nc/0:turboquant_3bit_nc", None),  # vLLM keeps layer 0 native
        ("fp8/2:nvfp4", None),
        ("k=fp8,v=nvfp4", None),
        ("lmdeploy_int8/2:auto", None),
        ("auto", "--kv-cache-dtype auto"),
    ],
)
def test_vllms_flags_are_given_where_it_serves_the_cache(text, flags):
    assert vllm_flags(parse_format(text), range(6), 6, is_hybrid=False) == flags


def test_layers_without_a_cache_of_their_own_are_not_skipped():
    assert served_as(parse_format("auto/1,3:fp8"), (1, 3, 5), 6, is_hybrid=True) == ("fp8_e4m3", (5,))


def test_what_must_be_known_is_told_once():
    ids = [fact.id for fact in parse_format("nvfp4/3:nvfp4_4over6/4:auto").facts]
    assert ids == ["output-rounded-to-fp8", "nvfp4-global-scale", "formats-by-layer"]
    assert not parse_format("fp8/4:auto").facts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fp8/0,1", "'0,1' names no format; expected FORMAT/LAYERS:FORMAT"),
        ("fp8/:auto", "'' is not a layer"),
        ("fp8/7-4:auto", "'7-4' is not a layer"),
        ("fp8/-1:auto", "'-1' is not a layer"),
        ("fp8/12345:auto", "'12345' is not a layer"),
        ("fp8/3:auto/1-4:nvfp4", "layer 3 is listed twice"),
        ("fp8/3:fp9", "'fp9': unknown"),
        ("fp8/3:k=fp8", "k=NAME,v=NAME"),
        ("/3:fp8", "'': unknown"),
    ],
)
def test_what_cannot_be_read_is_said(text, message):
    with pytest.raises(InputError, match=message):
        parse_format(text)
