"""`kvtrace calibrate`: which rows count, what is written, what is refused, and what the advice says."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.checkpoints import checkpoint
from support.fabricate import bits, fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.calibration.bfloat16 import nearest_bfloat16
from kvtrace.calibration.calibrate import Calibration, calibrate
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.holdout_error import TensorCost, better_width
from kvtrace.calibration.manifest import parse_manifest
from kvtrace.calibration.recipe import Recipe
from kvtrace.calibration.text import calibration_text
from kvtrace.errors import InputError
from kvtrace.scales import load_artifact, resolve
from kvtrace.trace.fingerprint import weights_digest
from kvtrace.trace.format import TRACE_FILE, TraceRecord, seal, unseal
from kvtrace.trace.reader import Trace, open_trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE = Path(__file__).parents[2] / "samples" / "smollm2-135m.kvtrace"
WORKLOADS = ("chat", "chat", "code", "code")
PROMPT_TOKENS, ROWS = 20, 30


def values(layers: int = 2, seed: int = 1) -> dict[tuple[int, str], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        (n, t): rng.normal(size=(4 * ROWS, 2, 8)) * (n + 1) * np.array([1.0, 3.0])[:, None]
        for n in range(layers)
        for t in "kv"
    }


def make(path: Path, tensors: dict[tuple[int, str], NDArray[Any]] | None = None, **options: Any) -> Trace:
    """Four requests of 20 prompt and 10 output tokens: two of chat, two of code."""
    hashes = options.pop("hashes", (None,) * 4)
    fabricate_trace(
        path,
        tensors or values(),
        request_of_row=[row // ROWS for row in range(4 * ROWS)],
        position_of_row=[row % ROWS for row in range(4 * ROWS)],
        requests=[
            request(
                n, prompt_tokens=PROMPT_TOKENS, output_tokens=10, workload=WORKLOADS[n], prompt_hash=hashes[n]
            )
            for n in range(4)
        ],
        **options,
    )
    return open_trace(path)


def amax_scale(tensor: NDArray[Any], rows: NDArray[np.bool_]) -> list[float]:
    """absmax / 448 per head of the chosen rows, through bfloat16 twice: values and scale."""
    stored = (bits(tensor).astype(np.uint32) << 16).view(np.float32)[rows]
    return nearest_bfloat16(np.abs(stored).max(axis=(0, 2)).astype(np.float64) / 448).tolist()


ROW = np.arange(4 * ROWS)
IS_CODE, POSITION = ROW // ROWS >= 2, ROW % ROWS
CHAT_DECODE_BELOW_25 = ~IS_CODE & (POSITION >= PROMPT_TOKENS) & (POSITION < 25)


@pytest.mark.parametrize(
    ("rules", "rows"),
    [
        (DatasetRules(), ROW >= 0),
        (DatasetRules(workloads=("code",)), IS_CODE),
        (DatasetRules(max_position=7), POSITION < 7),
        (DatasetRules(phase="prefill"), POSITION < PROMPT_TOKENS),
        (DatasetRules(phase="decode"), POSITION >= PROMPT_TOKENS),
        (DatasetRules(workloads=("chat",), phase="decode", max_position=25), CHAT_DECODE_BELOW_25),
        (DatasetRules(holdout_workloads=("chat",)), IS_CODE),
    ],
)  # fmt: skip
def test_scales_come_from_the_rows_that_the_rules_leave(
    tmp_path: Path, rules: DatasetRules, rows: Any
) -> None:
    made = calibrate([make(tmp_path / "t.kvtrace")], Recipe(), rules)
    for (layer, tensor), array in values().items():
        assert list(made.scales[layer, tensor]) == amax_scale(array, rows)
    assert made.dataset.calibration.num_tokens == rows.sum()


def test_one_scale_per_tensor_is_the_widest_heads_and_merging_takes_the_wider_of_k_and_v(
    tmp_path: Path,
) -> None:
    trace = make(tmp_path / "t.kvtrace")
    every = ROW >= 0
    per_tensor = calibrate([trace], Recipe(granularity="tensor"), DatasetRules())
    merged = calibrate([trace], Recipe(merge_kv=True), DatasetRules())
    for layer in range(2):
        k, v = (amax_scale(values()[layer, t], every) for t in "kv")
        assert per_tensor.scales[layer, "k"] == (max(k),)
        assert list(merged.scales[layer, "k"]) == [max(pair) for pair in zip(k, v, strict=True)]
        assert merged.scales[layer, "k"] == merged.scales[layer, "v"]


def test_ranks_and_several_traces_count_as_one(tmp_path: Path) -> None:
    whole = calibrate([make(tmp_path / "a.kvtrace")], Recipe("mse"), DatasetRules())
    ranks = calibrate([make(tmp_path / "b.kvtrace", ranks=[[0], [1]])], Recipe("mse"), DatasetRules())
    assert ranks.scales == whole.scales
    wider = {key: 2 * array for key, array in values().items()}
    both = calibrate(
        [make(tmp_path / "c.kvtrace", wider), open_trace(tmp_path / "a.kvtrace")], Recipe(), DatasetRules()
    )
    alone = calibrate([open_trace(tmp_path / "c.kvtrace")], Recipe(), DatasetRules())
    assert both.scales == alone.scales
    assert both.dataset.calibration.num_tokens == 2 * alone.dataset.calibration.num_tokens


def held_out(made: Calibration) -> set[tuple[int, int]]:
    return {
        (number, request)
        for number, source in enumerate(made.dataset.sources)
        for request in source.trace.tokens.request[source.selection_of_token == 1].tolist()
    }


def test_held_out_requests_are_whole_seeded_and_not_calibrated_on() -> None:
    sample = open_trace(SAMPLE)
    made = {seed: calibrate([sample], Recipe(), DatasetRules(holdout=0.3, seed=seed)) for seed in (0, 1)}
    again = calibrate([sample], Recipe(), DatasetRules(holdout=0.3, seed=0))
    assert held_out(made[0]) == held_out(again) != held_out(made[1])
    for one in made.values():
        (source,) = one.dataset.sources
        sides = {
            request: set(source.selection_of_token[sample.tokens.request == request].tolist())
            for request in set(sample.tokens.request.tolist())
        }
        assert all(len(side) == 1 for side in sides.values())
        assert 0.15 < len(held_out(one)) / len(sides) < 0.45
        assert one.held_out is not None
        total = one.calibrated[0, 0, "k"].num_values + one.held_out[0, 0, "k"].num_values
        assert total == len(sample.tokens) * 64


def test_requests_with_the_same_prompt_fall_on_the_same_side(tmp_path: Path) -> None:
    trace = make(tmp_path / "t.kvtrace", hashes=("same", "other", "same", "same"))
    seen = set()
    for seed in range(30):
        with suppress(InputError):  # both prompts fell on one side, so the other is empty
            made = calibrate([trace], Recipe(), DatasetRules(holdout=0.5, seed=seed))
            seen.add(frozenset(held_out(made)))
    assert seen == {frozenset({(0, 1)}), frozenset({(0, 0), (0, 2), (0, 3)})}


def test_a_held_out_workload_that_shares_a_prompt_is_refused(tmp_path: Path) -> None:
    shared = make(tmp_path / "a.kvtrace", hashes=("p", "q", "p", "r"))
    with pytest.raises(InputError, match="1 prompts are in the calibration and held out as well"):
        calibrate([shared], Recipe(), DatasetRules(holdout_workloads=("code",)))
    apart = make(tmp_path / "b.kvtrace", hashes=("p", "q", "s", "r"))
    assert held_out(calibrate([apart], Recipe(), DatasetRules(holdout_workloads=("code",)))) == {
        (0, 2),
        (0, 3),
    }


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"workloads": ("poetry",)}, "no request has workload 'poetry'; there are chat, code"),
        ({"max_position": 3, "phase": "decode"}, "no row is left to calibrate on"),
        ({"workloads": ("chat",), "holdout_workloads": ("chat",)}, "both calibrated on and held out"),
        ({"holdout": 1.5}, "holdout is 1.5"),
        ({"phase": "training"}, "expected prefill or decode"),
    ],
)
def test_rules_that_leave_nothing_are_refused(tmp_path: Path, rules: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        calibrate([make(tmp_path / "t.kvtrace")], Recipe(), DatasetRules(**rules))
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        ({"method": "percentile"}, "--percentile belongs to --method percentile"),
        ({"percentile": 99.0}, "--percentile belongs to --method percentile"),
        ({"method": "percentile", "percentile": 0.0}, "percentile is 0"),
        ({"headroom": 0.0}, "headroom is 0"),
        ({"headroom": float("nan")}, "headroom is nan"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(recipe: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        Recipe(**recipe)
    assert text in str(error.value)


def test_traces_of_different_models_are_refused(tmp_path: Path) -> None:
    one, other = make(tmp_path / "a.kvtrace"), make(tmp_path / "b.kvtrace", values(layers=3))
    with pytest.raises(
        InputError, match=r"b\.kvtrace: its model has num_layers 3, that of .*a\.kvtrace has 2"
    ):
        calibrate([one, other], Recipe(), DatasetRules())


def test_a_layer_that_was_not_captured_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "t.kvtrace")
    file = tmp_path / "t.kvtrace" / TRACE_FILE
    record = unseal(file.read_text(), TraceRecord)
    file.write_text(
        seal(record.model_copy(update={"model": record.model.model_copy(update={"num_layers": 3})}))
    )
    with pytest.raises(InputError, match=r"no row of 4 of 12 heads is left \(first: layer 2, KV head 0, k"):
        calibrate([open_trace(tmp_path / "t.kvtrace")], Recipe(), DatasetRules())


def test_a_head_of_zeros_gets_one_and_is_mentioned(tmp_path: Path) -> None:
    tensors = values()
    tensors[1, "v"][:, 0] = 0
    made = calibrate([make(tmp_path / "t.kvtrace", tensors)], Recipe(), DatasetRules())
    assert made.scales[1, "v"][0] == 1.0
    assert "1 heads have no value other than 0" in calibration_text(made)


# --- what is written


def test_the_manifest_says_how_on_what_and_how_well(tmp_path: Path) -> None:
    out = tmp_path / "scales"
    result = kvtrace("calibrate", SAMPLE, "-o", out, "--headroom", "2", "--holdout", "0.3", "--seed", "5")
    assert result.returncode == 0, result.stderr
    manifest = parse_manifest(json.loads((out / "kvtrace.json").read_text()))
    assert manifest is not None
    artifact, sample = load_artifact(out), open_trace(SAMPLE)
    assert manifest.scales_sha256 == artifact.sha256
    assert [t.digest for t in manifest.dataset.traces] == [sample.digest]
    assert manifest.model.weights_digest == sample.record.model.weights_digest
    assert manifest.model.chat_template_digest == sample.record.model.chat_template_digest
    assert (manifest.recipe.method, manifest.recipe.headroom, manifest.dataset.seed) == ("absmax", 2.0, 5)
    calibrated, held = manifest.dataset.calibration, manifest.dataset.held_out
    assert held is not None
    assert calibrated.num_tokens + held.num_tokens == len(sample.tokens)
    assert sum(cell.num_tokens for cell in calibrated.cells) == calibrated.num_tokens
    assert len(manifest.groups) == 180
    for group in manifest.groups:
        (stored,) = artifact.stored(group.layer, group.tensor)
        assert stored.values[group.kv_head] == group.scale
        assert group.scale == float(nearest_bfloat16([2 * group.calibrated_amax / 448])[0])
    assert {(e.rows, e.tensor) for e in manifest.evaluation} == {
        (rows, tensor) for rows in ("calibration", "held_out") for tensor in "kv"
    }
    assert all(e.num_clipped == 0 for e in manifest.evaluation if e.rows == "calibration")
    assert set(manifest.libraries) == {"python", "numpy", "numba"}


def test_written_scales_resolve_without_a_note_and_keep_the_models_configuration(tmp_path: Path) -> None:
    assert kvtrace("calibrate", SAMPLE, "-o", tmp_path / "s", "--granularity", "tensor").returncode == 0
    resolved = resolve(load_artifact(tmp_path / "s"), num_layers=30, kv_heads_per_layer=3)
    assert (resolved.notes, resolved.invalid_reason) == ((), None)
    config = json.loads((tmp_path / "s" / "config.json").read_text())
    assert config["num_hidden_layers"] == 30
    assert config["quantization_config"]["kv_cache_scheme"]["strategy"] == "tensor"


def traced(tmp_path: Path, digest: str | None) -> Path:
    """A trace whose model has the given weights digest."""
    make(tmp_path / "t.kvtrace")
    file = tmp_path / "t.kvtrace" / TRACE_FILE
    record = unseal(file.read_text(), TraceRecord)
    model = record.model.model_copy(update={"weights_digest": digest})
    file.write_text(seal(record.model_copy(update={"model": model})))
    return tmp_path / "t.kvtrace"


def model_checkpoint(directory: Path) -> Path:
    weights = {f"model.layers.{n}.self_attn.k_proj.weight": torch.full((4, 4), float(n)) for n in range(2)}
    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    return checkpoint(directory, weights, model=config)


def test_a_deployable_copy_has_the_weights_digest_of_the_original(tmp_path: Path) -> None:
    original = model_checkpoint(tmp_path / "model")
    trace = traced(tmp_path, weights_digest(original))
    result = kvtrace("calibrate", trace, "-o", tmp_path / "deploy", "--checkpoint", original)
    assert result.returncode == 0, result.stderr
    assert weights_digest(tmp_path / "deploy") == weights_digest(original)
    assert (tmp_path / "deploy" / "model.safetensors").is_symlink()
    artifact = load_artifact(tmp_path / "deploy")
    assert artifact.layers == (0, 1)
    assert artifact.manifest is not None
    assert artifact.manifest["scales_sha256"] == artifact.sha256


def one_line(result: Any, *texts: str) -> None:
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result
    for text in texts:
        assert text in result.stderr


def test_a_checkpoint_with_other_weights_is_refused(tmp_path: Path) -> None:
    trace = traced(tmp_path, "tensors-4k-sha256:of-another")
    result = kvtrace(
        "calibrate", trace, "-o", tmp_path / "d", "--checkpoint", model_checkpoint(tmp_path / "m")
    )
    one_line(result, "scales serve the weights that they were calibrated on")
    assert not (tmp_path / "d").exists()


def test_bad_input_is_one_line_and_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    one_line(kvtrace("calibrate", SAMPLE, "-o", tmp_path / "there"), "nothing is overwritten")
    assert list((tmp_path / "there").iterdir()) == []
    out = tmp_path / "new"
    one_line(kvtrace("calibrate", tmp_path / "absent", "-o", out), "no such file or directory")
    one_line(
        kvtrace("calibrate", SAMPLE, "-o", out, "--workload", "poetry"), "no request has workload 'poetry'"
    )
    one_line(kvtrace("calibrate", SAMPLE, "-o", out, "--engine", "cuda"), "engine 'cuda' is unknown")
    one_line(kvtrace("calibrate", SAMPLE, "-o", out, "--method", "percentile"), "--percentile 99.99")
    one_line(kvtrace("calibrate", SAMPLE, "-o", out, "--checkpoint", tmp_path / "absent"), "no such file")
    assert not out.exists()


# --- the advice


def test_absmax_is_told_that_a_wider_scale_is_the_better_bet_and_a_wide_one_that_it_has_room(
    tmp_path: Path,
) -> None:
    tight = kvtrace("calibrate", SAMPLE, "-o", tmp_path / "a").stdout
    assert "A wider scale is the better bet" in tight
    assert "Consider --headroom 4." in tight
    wide = kvtrace("calibrate", SAMPLE, "-o", tmp_path / "b", "--headroom", "8").stdout
    assert "has room to spare" in wide
    assert "Consider" not in wide


def test_the_printed_errors_are_those_of_the_manifests_sums(tmp_path: Path) -> None:
    made = calibrate([make(tmp_path / "t.kvtrace")], Recipe(), DatasetRules())
    chosen = next(line for line in calibration_text(made).splitlines() if "<- chosen" in line)
    assert chosen.split()[:2] == ["×", "1"]
    assert float(chosen.split()[2]) < 0.002  # the rounding floor of E4M3
    halved = next(line for line in calibration_text(made).splitlines() if line.startswith("  ÷ 2 "))
    assert float(halved.split()[2]) > 3 * float(chosen.split()[2])


def cost(factor: float, k: float, v: float) -> list[TensorCost]:
    rest = (100, 0, 0, 0, 1.0, 0.0, 0.0, 0.0)
    return [
        TensorCost("k", factor, *rest, k, (0, 0, "k"), k),
        TensorCost("v", factor, *rest, v, (0, 0, "v"), v),
    ]


def test_the_better_width_is_the_widest_that_costs_neither_k_nor_v_five_percent() -> None:
    free = [*cost(1.0, 0.0010, 0.0010), *cost(2.0, 0.00104, 0.0010), *cost(4.0, 0.0010, 0.00105)]
    assert better_width(free) == 4.0
    assert better_width([*free, *cost(16.0, 0.0011, 0.0010)]) == 4.0
    assert (
        better_width([*cost(1.0, 0.001, 0.001), *cost(2.0, 0.002, 0.001), *cost(4.0, 0.001, 0.001)]) is None
    )
