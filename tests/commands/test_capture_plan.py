"""`kvtrace capture plan`: bytes and requests by hand, sizes from a model's config.json."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.run_cli import kvtrace

README = Path(__file__).parents[2] / "capture" / "README.md"
SIZES = ("--layers", 32, "--kv-heads", 8, "--head-dim", 128)


def plan(*arguments: object) -> dict[str, Any]:
    result = kvtrace("capture", "plan", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    made: dict[str, Any] = json.loads(result.stdout)
    return made


def test_bytes_a_day_are_the_sampled_tokens_times_their_row() -> None:
    made = plan(*SIZES, "--rate", 1600, "--position-stride", 16, "--request-fraction", 0.5)
    assert made["bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    (sampling,) = made["samplings"]
    # 1,600 tokens/s · half the requests · 1 in 16 positions = 50 rows/s; a row has 20 bytes of columns too.
    assert sampling["bytes_per_day"] == 86_400 * 50 * (131_072 + 20)


def test_requests_follow_from_the_design_effect_and_hours_from_the_sampled_requests() -> None:
    made = plan(
        *SIZES, *("--position-stride", 10, "--tokens-per-request", 210, "--correlation", 0.1, "--rate", 2100),
        *("--fraction", 0.5, "--margin", 0.03, "--request-fraction", 0.5),
    )  # fmt: skip
    (sampling,) = made["samplings"]
    assert sampling["vectors_per_request"] == 21
    assert sampling["design_effect"] == pytest.approx(1 + 20 * 0.1)
    # 1,067.07 independent vectors (1.96² · 0.25 / 0.03²), three times as many, 21 a request.
    assert sampling["requests_for_margin"] == 153
    assert sampling["bytes_for_margin"] == 153 * 21 * (131_072 + 20)
    # 10 requests a second, half of them sampled.
    assert sampling["hours_for_margin"] == pytest.approx(153 / 5 / 3600)


def test_without_a_stride_four_are_compared_within_80_columns() -> None:
    result = kvtrace("capture", "plan", *SIZES)
    assert result.returncode == 0
    assert [line.split()[2] for line in result.stdout.splitlines() if line.startswith("1 in")] == [
        "1", "4", "16", "64"
    ]  # fmt: skip
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_readme_shows_what_it_prints() -> None:
    (command, shown), *others = re.findall(
        r"\$ kvtrace (capture plan .*)\n((?:.*\n)*?)…\n", README.read_text()
    )
    assert not others
    assert kvtrace(*shlex.split(command)).stdout.startswith(shown)


def test_sizes_come_from_config_json_and_an_option_goes_before(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config}))
    assert plan("--model", tmp_path)["shape"] == {
        "num_layers": 30, "num_kv_heads": 3, "head_dim": 64, "dtype": "bfloat16"
    }  # fmt: skip
    assert plan("--model", tmp_path, "--layers", 2)["bytes_per_token"] == 2 * 2 * 3 * 64 * 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("{", "is not JSON"),
        ("[]", "expected a JSON object"),
        ('{"num_attention_heads": 4}', "num_hidden_layers is None"),
        ('{"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 8, "dtype": "int4"}', "'int4'"),
        ('{"kv_lora_rank": 512}', "MLA"),
    ],
)
def test_a_config_that_does_not_say_is_one_line_and_exit_2(
    tmp_path: Path, config: str, expected: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    result = kvtrace("capture", "plan", "--model", tmp_path)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert expected in result.stderr
    assert "config.json" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--layers", 2),
        (*SIZES, "--fraction", 0),
        (*SIZES, "--fraction", 0.9, "--margin", 0.1),
        (*SIZES, "--correlation", 1.5),
        (*SIZES, "--rate", 0),
        (*SIZES, "--rate", "nan"),
        (*SIZES, "--tokens-per-request", "inf"),
        (*SIZES, "--margin", 1e-300),
        (*SIZES, "--fraction", "nan"),
    ],
)
def test_a_question_without_an_answer_is_one_line_and_exit_2(arguments: tuple[object, ...]) -> None:
    result = kvtrace("capture", "plan", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "expected" in result.stderr


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ({"full_attention_interval": 4}, 2),
        ({"num_kv_shared_layers": 3}, 5),
        ({"hybrid_override_pattern": "M-M*-M-*"}, 2),
    ],
)
def test_layers_that_write_no_cache_take_no_bytes(tmp_path: Path, text: dict[str, Any], layers: int) -> None:
    shape = {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": shape | text}))
    assert plan("--model", tmp_path)["bytes_per_token"] == 2 * layers * 2 * 64 * 2
