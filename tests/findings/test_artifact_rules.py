"""Each fault, planted in an otherwise healthy artifact of the real sample, is named; healthy artifacts are
let be."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import checkpoint, compressed, scheme
from support.fabricate import fabricate_trace, request

from kvtrace.calibration.calibrate import Calibration, calibrate, scales_of
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.calibration.save import SCALES_FILE, save_checkpoint, save_scales
from kvtrace.calibration.write import write_calibration
from kvtrace.findings.artifact.observed import Observed, observe
from kvtrace.report.scales.build import scales_report
from kvtrace.report.scales.text import scales_text
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import Trace, open_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.calibration.calibrate import ScaleSet
    from kvtrace.report.scales.model import AuditedFinding, ScalesReport

SAMPLE = Path(__file__).parents[2] / "samples" / "smollm2-135m.kvtrace"
SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
LAYERS, HEADS = range(30), range(3)


@pytest.fixture(scope="module")
def sample() -> Trace:
    return open_trace(SAMPLE)


@pytest.fixture(scope="module")
def healthy(sample: Trace) -> Calibration:
    return calibrate([sample], Recipe(), DatasetRules())


@pytest.fixture(scope="module")
def counted(sample: Trace) -> dict[str, Observed]:
    """The sample, counted once for each granularity."""
    return {granularity: observe(sample, granularity) for granularity in ("tensor", "attn_head")}


@pytest.fixture(scope="module")
def against_sample(sample: Trace, counted: dict[str, Observed]) -> Any:
    def audit(path: Path, **options: Any) -> ScalesReport:
        artifact = load_artifact(path)
        return scales_report(artifact, sample, observed=counted[artifact.granularity], **options)

    return audit


@pytest.fixture(scope="module")
def audit_of(
    against_sample: Any, sample: Trace, healthy: Calibration, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Save changed scales without a manifest and audit them against the sample."""

    def audit(
        change: Callable[[ScaleSet], ScaleSet], *, recipe: Recipe | None = None, **options: Any
    ) -> ScalesReport:
        scales = scales_of(healthy.calibrated, recipe or Recipe(), sample.record.model)
        path = tmp_path_factory.mktemp("artifact") / "scales"
        save_scales(path, change(scales), model=SMOLLM2)
        return against_sample(path, **options)

    return audit


def found(report: ScalesReport, name: str) -> AuditedFinding:
    matching = [f for f in report.findings if f.id == name]
    assert len(matching) == 1, [f"{f.id}: {f.message}" for f in report.findings]
    return matching[0]


def above_note(report: ScalesReport) -> dict[str, str]:
    return {f.id: f.severity for f in report.findings if f.severity != "note"}


def same(scales: ScaleSet) -> ScaleSet:
    return scales


def times(factor: float, tensors: str = "kv") -> Callable[[ScaleSet], ScaleSet]:
    return lambda scales: {
        (n, t): tuple(v * factor if t in tensors else v for v in values) for (n, t), values in scales.items()
    }


# --- healthy artifacts


@pytest.mark.parametrize("granularity", ["tensor", "attn_head"])
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(Recipe(), id="absmax"),
        pytest.param(Recipe("mse"), id="mse"),
        pytest.param(Recipe("percentile", 99.99), id="percentile 99.99"),
        pytest.param(Recipe("percentile", 99.9), id="percentile 99.9"),
        pytest.param(Recipe(headroom=1.25), id="headroom 1.25"),
        pytest.param(Recipe(headroom=16), id="headroom 16"),
        pytest.param(Recipe("mse", headroom=4), id="mse headroom 4"),
        pytest.param(Recipe(power_of_two=True), id="power of two"),
        pytest.param(Recipe("mse", power_of_two=True), id="mse power of two"),
        pytest.param(Recipe(merge_kv=True), id="merged"),
    ],
)
def test_a_healthy_artifact_gives_no_finding_above_note_on_its_own_calibration_rows(
    audit_of: Any,
    against_sample: Any,
    sample: Trace,
    healthy: Calibration,
    recipe: Recipe,
    granularity: Any,
    tmp_path: Path,
) -> None:
    recipe = replace(recipe, granularity=granularity)
    assert above_note(audit_of(same, recipe=recipe)) == {}
    scales = scales_of(healthy.calibrated, recipe, sample.record.model)
    write_calibration(tmp_path / "a", replace(healthy, recipe=recipe, scales=scales), checkpoint=None)
    assert above_note(against_sample(tmp_path / "a")) == {}


def test_a_healthy_artifact_calibrated_on_half_of_the_requests_is_not_called_broken(
    against_sample: Any, sample: Trace, tmp_path: Path
) -> None:
    made = calibrate([sample], Recipe(headroom=2), DatasetRules(holdout=0.5, seed=3))
    write_calibration(tmp_path / "a", made, checkpoint=None)
    report = against_sample(tmp_path / "a")
    assert not report.has_errors
    assert set(above_note(report)) <= {"short-calibration", "outside-envelope"}


def test_without_a_trace_it_says_what_can_be_known_without_one(tmp_path: Path) -> None:
    report = scales_report(load_artifact(Path(__file__).parents[1] / "artifacts" / "ct_per_head"))
    assert [f.id for f in report.findings] == ["bf16-rounding"]
    row = next(r for r in report.scales if (r.layer, r.kv_head, r.tensor) == (1, 1, "k"))
    assert row.shipped_scale == row.engine_scale == 0.06884765625
    assert row.covered_amax == 448 * 0.06884765625
    assert (row.observed_amax, row.optimal_scale, row.effective_scale) == (None, None, None)
    assert report.trace is None


def test_the_table_shows_covered_and_observed_of_the_head_with_the_least_headroom(
    against_sample: Any,
) -> None:
    report = against_sample(SAMPLE.parent / "scales" / "chat-per-head")
    row = report.scales[0]
    heads = [
        row.model_copy(update={"kv_head": head, "covered_amax": covered, "observed_amax": observed})
        for head, (covered, observed) in enumerate([(21.5, 21.25), (15.5, 17.0), (0.0, 0.0)])
    ]
    lines = scales_text(report.model_copy(update={"scales": heads})).splitlines()
    line = next(line for line in lines if line.startswith("    0 K"))
    assert line.split()[-3:-1] == ["15.5…", "17…"]


def test_the_observed_column_is_the_largest_magnitude_in_the_trace(audit_of: Any, sample: Trace) -> None:
    report = audit_of(same)
    largest: dict[tuple[int, int, str], float] = {}
    for block in sample.blocks():
        values = np.abs((block.values.astype(np.uint32) << 16).view(np.float32)).max(axis=(0, 2))
        for head, value in zip(block.kv_heads, values.tolist(), strict=True):
            key = (block.layer.index, head, block.tensor)
            largest[key] = max(value, largest.get(key, 0.0))
    assert {(r.layer, r.kv_head, r.tensor): r.observed_amax for r in report.scales} == largest


# --- faults that the values of a trace settle


@pytest.mark.parametrize(
    "recipe", [Recipe(), Recipe(granularity="tensor"), Recipe("mse")], ids=["absmax", "per tensor", "mse"]
)
def test_inverse_scales_are_named(audit_of: Any, recipe: Recipe) -> None:
    report = audit_of(lambda s: {k: tuple(1 / v for v in values) for k, values in s.items()}, recipe=recipe)
    finding = found(report, "inverse-scales")
    assert finding.severity == "error"
    evidence = finding.evidence
    assert evidence["median_observed_over_covered"] == pytest.approx(
        evidence["median_squared_amax_over_448"], rel=0.5
    )


@pytest.mark.parametrize(
    "recipe",
    [Recipe(), Recipe(granularity="tensor"), Recipe(headroom=4)],
    ids=["absmax", "per tensor", "wide"],
)
def test_swapped_k_and_v_are_named(audit_of: Any, recipe: Recipe) -> None:
    report = audit_of(lambda s: {(n, "v" if t == "k" else "k"): v for (n, t), v in s.items()}, recipe=recipe)
    assert found(report, "kv-swapped").severity == "error"


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0), (1, 0, 2)])
def test_permuted_heads_are_named_with_their_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    trace = small_trace(tmp_path / "t")
    amax = observed_amax(trace)
    scales = {(n, t): tuple(amax[n, order[h], t] / 448 for h in range(3)) for n in range(4) for t in "kv"}
    save_scales(tmp_path / "a", scales, model=small_model())
    report = scales_report(load_artifact(tmp_path / "a"), trace)
    findings = [f for f in report.findings if f.id == "heads-permuted"]
    assert [f.evidence["tensor"] for f in findings] == ["k", "v"]
    # Stored position j holds head order[j]'s scale, so head i needs what is stored at order's inverse.
    assert all(f.evidence["order"] == np.argsort(order).tolist() for f in findings)
    assert all(f.severity == "error" for f in findings)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
def test_scales_shared_by_k_and_v_are_asked_for_the_order_of_the_wider_one(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """V is a thousandth of K, its heads ranked the other way round: no fault of scales made for K."""
    ranges = np.array([1.0, 2.0, 4.0])
    k = np.ones((4, 3, 8)) * ranges[:, None]
    path = fabricate_trace(
        tmp_path / "t.kvtrace",
        {(layer, t): k if t == "k" else k[:, ::-1] / 1024 for layer in range(2) for t in "kv"},
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
    )
    shared = tuple(float(ranges[head]) / 448 for head in order)
    model = {"num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}
    save_scales(tmp_path / "a", {(n, t): shared for n in range(2) for t in "kv"}, model=model)
    report = scales_report(load_artifact(tmp_path / "a"), open_trace(path))
    orders = [f.evidence["order"] for f in report.findings if f.id == "heads-permuted"]
    assert orders == ([] if order == (0, 1, 2) else [np.argsort(order).tolist()] * 2)


def test_scales_of_half_the_width_are_an_error_of_clipping(audit_of: Any) -> None:
    report = audit_of(times(0.5))
    k, v = (f for f in report.findings if f.id == "clipping")
    assert (k.evidence["tensor"], k.severity) == ("k", "error")
    assert k.evidence["mean_relative_clip_error"] > 0.02
    assert v.severity in ("warning", "error")


def test_one_head_that_is_clipped_is_a_warning_that_names_its_layer(audit_of: Any) -> None:
    report = audit_of(lambda s: s | {(7, "k"): (s[7, "k"][0] / 2, *s[7, "k"][1:])})
    finding = next(f for f in report.findings if f.id == "clipping")
    assert finding.severity != "note"
    assert finding.layers == (7,)
    assert finding.evidence["worst_kv_head"] == 0


def test_scales_so_wide_that_precision_is_lost_are_named(audit_of: Any) -> None:
    finding = found(audit_of(times(20_000)), "too-wide")
    assert finding.severity == "warning"
    assert finding.evidence["num_units"] == 180


@pytest.mark.parametrize("form", ["quark", None])
def test_keys_calibrated_before_rope_are_named(
    against_sample: Any, audit_of: Any, sample: Trace, healthy: Calibration, tmp_path: Path, form: str | None
) -> None:
    change = times(1 / 1.35, "k")
    if form is None:
        report = audit_of(change)
    else:
        recipe = Recipe(granularity="tensor")
        scales = change(scales_of(healthy.calibrated, recipe, sample.record.model))
        names = {f"model.layers.{n}.self_attn.{t}_proj.output_scale": v[0] for (n, t), v in scales.items()}
        path = checkpoint(tmp_path / "q", names, quantization={"quant_method": "quark"}, model=SMOLLM2)
        report = against_sample(path)
    finding = found(report, "pre-rope-keys")
    assert finding.severity == "warning"
    assert 1.3 < finding.evidence["max_k_observed_over_covered"] < math.sqrt(2) * 464 / 448
    assert finding.evidence["format_calibrates_before_rope"] is (form == "quark")


def test_an_averaging_observer_is_a_warning_where_the_trace_exceeds_it_and_a_note_elsewhere(
    against_sample: Any, audit_of: Any, sample: Trace, healthy: Calibration, tmp_path: Path
) -> None:
    for factor, severity in ((1.0, "note"), (0.6, "warning")):
        path = tmp_path / str(factor)
        save_scales(path, times(factor)(healthy.scales), model=SMOLLM2)
        config = json.loads((path / "config.json").read_text())
        config["quantization_config"]["kv_cache_scheme"]["observer"] = "minmax"
        (path / "config.json").write_text(json.dumps(config))
        assert found(against_sample(path), "ema-observer").severity == severity


def test_one_scale_for_k_and_v_is_a_note_while_it_costs_nothing_and_a_warning_where_v_is_lost(
    audit_of: Any, tmp_path: Path
) -> None:
    finding = found(audit_of(same, recipe=Recipe(merge_kv=True)), "merged-kv")
    assert finding.severity == "note"
    assert finding.evidence["max_ratio_of_ranges"] > 2
    trace = small_trace(tmp_path / "t", v_factor=1e-5)
    amax = observed_amax(trace)
    merged = {(n, t): tuple(amax[n, h, "k"] / 448 for h in range(3)) for n in range(4) for t in "kv"}
    save_scales(tmp_path / "a", merged, model=small_model())
    finding = found(scales_report(load_artifact(tmp_path / "a"), trace), "merged-kv")
    assert finding.severity == "warning"


def test_a_calibration_at_short_length_only_is_named(audit_of: Any, sample: Trace) -> None:
    finding = found(audit_of(same, calibrated_at_length=512), "short-calibration")
    beyond = int((sample.tokens.position >= 512).sum())
    assert finding.severity == "note"  # nothing clips there
    assert finding.evidence["num_tokens_beyond"] == beyond > 0
    assert finding.evidence["max_position"] == int(sample.tokens.position.max())
    assert above_note(audit_of(same, calibrated_at_length=8192)) == {}


def test_bfloat16_scales_are_a_note_with_the_ranges_just_beyond(audit_of: Any) -> None:
    finding = found(audit_of(same), "bf16-rounding")
    assert finding.severity == "note"
    assert finding.evidence["num_bf16"] == 60
    assert 0 < finding.evidence["num_just_beyond"] < 180
    assert 1 < finding.evidence["max_observed_over_covered"] < 1 + 2**-8


# --- faults that the artifact shows by itself


def test_missing_layers_are_named(audit_of: Any) -> None:
    report = audit_of(lambda s: {k: v for k, v in s.items() if k[0] not in (3, 4, 9)})
    finding = found(report, "missing-layers")
    assert (finding.severity, finding.layers) == ("error", (3, 4, 9))
    assert "layers 3-4, 9 of 30; the engine uses 1.0 there" in finding.message


def test_names_that_no_mapper_knows_are_named(
    against_sample: Any, healthy: Calibration, sample: Trace, tmp_path: Path
) -> None:
    save_scales(tmp_path / "a", healthy.scales, model=SMOLLM2)
    file = tmp_path / "a" / SCALES_FILE
    tensors = {name.replace("k_scale", "key_scale"): value for name, value in load_file(file).items()}
    save_file(tensors, file)
    report = against_sample(tmp_path / "a")
    finding = found(report, "unmatched-names")
    assert finding.evidence["num_names"] == 30
    assert len(report.artifact.unmatched_names) == 30
    assert not [one for one in report.findings if one.id == "missing-layers"]  # shipped, by another name
    assert report.has_errors


def test_names_of_the_first_generation_are_named_though_they_can_be_read(tmp_path: Path) -> None:
    names = {f"model.layers.{n}.self_attn.{t}_proj.output_scale": 0.5 + n for n in (0, 1) for t in "kv"}
    path = checkpoint(
        tmp_path, names, quantization={"quant_method": "compressed-tensors", "kv_cache_scheme": scheme()}
    )
    finding = found(scales_report(load_artifact(path)), "unmatched-names")
    assert (finding.severity, finding.layers, finding.evidence["num_names"]) == ("error", (0, 1), 4)


@pytest.mark.parametrize(
    ("scales", "text"),
    [
        ({"0.k": 1.0, "0.v": 1.0, "1.k": 1.0, "1.v": 1.0}, "all 4 scales are exactly 1.0"),
        ({"0.k": 0.5, "0.v": 0.5, "1.k": 0.5, "1.v": 0.5}, "all 4 scales are equal (0.5)"),
        (
            {"0.k": 1.0, "0.v": 1.0, "1.k": 1.7, "1.v": 1.0},
            "3 of 4 scales are exactly 1.0 and none is smaller",
        ),
    ],
)
def test_constant_scales_are_named(tmp_path: Path, scales: dict, text: str) -> None:
    finding = found(scales_report(load_artifact(compressed(tmp_path, scales))), "constant-scales")
    assert finding.severity == "warning"
    assert text in finding.message


def test_an_artifact_without_scales_is_named() -> None:
    report = scales_report(load_artifact(Path(__file__).parents[1] / "artifacts" / "defaults_only"))
    assert "the engine uses 1.0 everywhere" in found(report, "constant-scales").message


@pytest.mark.parametrize("value", [0.0, -0.1, math.nan, math.inf])
def test_unusable_values_are_named(tmp_path: Path, value: float) -> None:
    path = compressed(tmp_path, {"0.k": 0.5, "0.v": 0.25, "1.k": 0.5, "1.v": value})
    finding = found(scales_report(load_artifact(path)), "unusable-values")
    assert (finding.severity, finding.layers) == ("error", (1,))
    assert finding.evidence["first_key"] == "model.layers.1.self_attn.v_scale"


def test_a_wrong_shape_is_named_as_what_the_engine_dies_on(tmp_path: Path) -> None:
    path = compressed(tmp_path, {"0.k": [0.5, 0.4], "0.v": 0.25, "1.k": 0.5, "1.v": 0.2})
    assert "shape assertion" in found(scales_report(load_artifact(path)), "engine-crash").message


def test_an_artifact_of_another_model_is_named(sample: Trace) -> None:
    report = scales_report(load_artifact(Path(__file__).parents[1] / "artifacts" / "ct_per_head"), sample)
    finding = found(report, "wrong-model")
    assert finding.severity == "error"
    assert "3 layers, the model has 30" in finding.message
    assert "2 KV heads, the model has 3" in finding.message


def test_scales_that_the_engine_rejects_silently_are_named() -> None:
    path = Path(__file__).parents[1] / "artifacts" / "vllm_json_tp2"
    finding = found(scales_report(load_artifact(path), engine="sglang", tp=1), "silent-default")
    assert finding.severity == "error"
    assert "uses 1.0 everywhere" in finding.message


def test_a_v_scale_that_the_engine_replaces_is_named(tmp_path: Path) -> None:
    names = {"model.layers.0.self_attn.k_scale": 0.5, "model.layers.0.self_attn.v_scale": 0.0}
    names |= {"model.layers.1.self_attn.k_scale": 0.4, "model.layers.1.self_attn.v_scale": 0.1}
    path = checkpoint(tmp_path, names, quantization={"quant_method": "fp8"})
    report = scales_report(load_artifact(path))
    finding = found(report, "silent-default")
    assert (finding.severity, finding.layers) == ("warning", (0,))


def test_changed_weights_are_named_and_changed_scales_are_not(tmp_path: Path) -> None:
    weights = {f"model.layers.{n}.self_attn.k_proj.weight": torch.ones(4, 4) for n in range(2)}
    original = checkpoint(tmp_path / "original", weights)
    scales = {(n, t): (0.5 + n,) for n in range(2) for t in "kv"}
    save_checkpoint(tmp_path / "copy", original, scales)
    report = scales_report(load_artifact(tmp_path / "copy"), against=original)
    assert found(report, "weights-equal").severity == "note"
    other = checkpoint(
        tmp_path / "other", weights | {"model.layers.1.self_attn.k_proj.weight": torch.zeros(4, 4)}
    )
    finding = found(scales_report(load_artifact(tmp_path / "copy"), against=other), "weights-changed")
    assert finding.severity == "error"
    assert finding.evidence["names"] == ["model.layers.1.self_attn.k_proj.weight"]
    fewer = checkpoint(tmp_path / "fewer", {"model.layers.0.self_attn.k_proj.weight": torch.ones(4, 4)})
    finding = found(scales_report(load_artifact(tmp_path / "copy"), against=fewer), "weights-changed")
    assert finding.evidence["num_only_here"] == 1


# --- faults that the live engine's scales settle


def small_model() -> dict[str, int]:
    return {"num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16}


def small_trace(path: Path, *, v_factor: float = 0.1, live: ScaleSet | None = None) -> Trace:
    """Four layers of three heads whose ranges differ by factors of two; FP8 in effect if scales are given."""
    rng = np.random.default_rng(5)
    of_head, of_tensor = np.array([1.0, 2.0, 4.0])[:, None], {"k": 1.0, "v": v_factor}
    tensors = {
        (n, t): rng.normal(size=(200, 3, 16)) * (1.5 + n) * of_head * of_tensor[t]
        for n in range(4)
        for t in "kv"
    }
    fabricate_trace(
        path / "small.kvtrace",
        tensors,
        request_of_row=[row // 50 for row in range(200)],
        position_of_row=[row % 50 for row in range(200)],
        requests=[request(n, prompt_tokens=50) for n in range(4)],
        kv_cache_dtype="auto" if live is None else "fp8_e4m3",
        scales=live,
    )
    return open_trace(path / "small.kvtrace")


def observed_amax(trace: Trace) -> dict[tuple[int, int, str], float]:
    return {k: m.amax for k, m in calibrate([trace], Recipe(), DatasetRules()).calibrated.items()}


def shipped(tmp_path: Path, **recipe: Any) -> tuple[Path, ScaleSet]:
    """An artifact that fits the small trace, and its scales as stored."""
    made = calibrate([small_trace(tmp_path / "first")], Recipe(**recipe), DatasetRules())
    save_scales(tmp_path / "a", made.scales, model=small_model())
    return tmp_path / "a", made.scales


def test_scales_that_the_engine_loaded_give_no_finding(tmp_path: Path) -> None:
    for granularity in ("tensor", "attn_head"):
        path, scales = shipped(tmp_path / granularity, granularity=granularity)
        report = scales_report(
            load_artifact(path),
            small_trace(tmp_path / granularity / "live", live=scales),
            backend="FLASH_ATTN",
        )
        assert above_note(report) == {}
        assert "scales-not-loaded" not in {f.id for f in report.findings}
        assert all(row.effective_scale == row.engine_scale for row in report.scales)


def test_scales_that_were_dropped_by_the_loader_are_named(tmp_path: Path) -> None:
    path, scales = shipped(tmp_path, granularity="tensor")
    live = dict.fromkeys(scales, (1.0,))
    finding = found(
        scales_report(load_artifact(path), small_trace(tmp_path / "live", live=live)), "scales-not-loaded"
    )
    assert finding.severity == "error"
    assert finding.message.startswith("engine used 1.0 in layers 0-3, where the artifact ships 0.")
    assert finding.evidence["num_heads_different"] == 24


def test_one_layer_without_its_scale_is_named_as_the_layer_in_which_the_engine_used_one(
    tmp_path: Path,
) -> None:
    _, scales = shipped(tmp_path)
    save_scales(tmp_path / "b", {k: v for k, v in scales.items() if k[0] != 2}, model=small_model())
    live = scales | {(2, "k"): (1.0,), (2, "v"): (1.0,)}
    report = scales_report(
        load_artifact(tmp_path / "b"), small_trace(tmp_path / "live", live=live), backend="FLASH_ATTN"
    )
    finding = found(report, "scales-not-loaded")
    assert finding.message == "engine used 1.0 in layer 2, where the artifact ships none"
    assert found(report, "missing-layers").layers == (2,)


def test_an_engine_that_ran_other_scales_is_named(tmp_path: Path) -> None:
    path, scales = shipped(tmp_path)
    live = {key: tuple(2 * v for v in values) for key, values in scales.items()}
    finding = found(
        scales_report(load_artifact(path), small_trace(tmp_path / "live", live=live)), "scales-not-loaded"
    )
    assert "other scales than these in layers 0-3" in finding.message


def test_per_head_scales_that_the_engine_collapsed_are_named(tmp_path: Path) -> None:
    path, scales = shipped(tmp_path)
    live = {key: (max(values),) for key, values in scales.items()}
    report = scales_report(load_artifact(path), small_trace(tmp_path / "live", live=live))
    finding = found(report, "per-head-collapsed")
    assert finding.severity == "warning"
    assert finding.evidence["num_heads_collapsed"] == 16
    assert not report.has_errors


def test_a_backend_that_would_collapse_scales_is_named_without_a_live_engine(tmp_path: Path) -> None:
    path, _ = shipped(tmp_path)
    finding = found(scales_report(load_artifact(path), backend="CPU_ATTN"), "per-head-collapsed")
    assert finding.severity == "warning"
    assert "backend CPU_ATTN takes one scale" in finding.message


def test_a_backend_that_does_not_start_with_scales_per_head_is_an_error(tmp_path: Path) -> None:
    path, _ = shipped(tmp_path)
    finding = found(scales_report(load_artifact(path), backend="FLASHINFER"), "per-head-collapsed")
    assert finding.severity == "error"
    assert "backend FLASHINFER takes no scale per head: from 0.28 on vLLM does not start" in finding.message


def test_a_trace_without_fp8_says_that_it_cannot_settle_what_was_loaded(audit_of: Any) -> None:
    finding = found(audit_of(same), "scales-not-loaded")
    assert finding.severity == "note"
    assert "no FP8 was in effect" in finding.message


# --- the envelope of an artifact with a manifest


def test_workloads_lengths_and_mix_outside_the_envelope_are_named(
    against_sample: Any, sample: Trace, tmp_path: Path
) -> None:
    made = calibrate([sample], Recipe(), DatasetRules(workloads=("chat",)))
    write_calibration(tmp_path / "a", made, checkpoint=None)
    report = against_sample(tmp_path / "a")
    findings = {f.evidence["what"]: f for f in report.findings if f.id == "outside-envelope"}
    assert findings["workload"].evidence["workloads"] == ["code", "language", "retrieval"]
    assert findings["prompt_tokens"].evidence["calibrated_max"] == made.dataset.calibration.max_prompt_tokens
    assert findings["traffic_mix"].severity == "warning"
    assert (
        found(report, "short-calibration").evidence["calibrated_length"]
        == made.dataset.calibration.max_computed_tokens
    )
    assert report.artifact.envelope is not None
    assert report.artifact.envelope["num_requests"] == made.dataset.calibration.num_requests


@pytest.mark.parametrize(
    ("field", "severity"),
    [("weights_digest", "error"), ("tokenizer_digest", "warning"), ("chat_template_digest", "warning")],
)
def test_a_changed_model_fires_its_trigger(
    against_sample: Any, sample: Trace, healthy: Calibration, tmp_path: Path, field: str, severity: str
) -> None:
    write_calibration(tmp_path / "a", healthy, checkpoint=None)
    manifest = json.loads((tmp_path / "a" / "kvtrace.json").read_text())
    assert manifest["model"][field] == getattr(sample.record.model, field)
    manifest["model"][field] = "sha256:of-another"
    (tmp_path / "a" / "kvtrace.json").write_text(json.dumps(manifest))
    finding = found(against_sample(tmp_path / "a"), "stale-artifact")
    assert (finding.severity, finding.evidence["what"]) == (severity, field)


def test_a_longer_supported_length_fires_its_trigger(
    against_sample: Any, healthy: Calibration, tmp_path: Path
) -> None:
    write_calibration(tmp_path / "a", healthy, checkpoint=None)
    manifest = json.loads((tmp_path / "a" / "kvtrace.json").read_text())
    assert manifest["model"]["max_model_len"] == 8192
    manifest["model"]["max_model_len"] = 4096
    (tmp_path / "a" / "kvtrace.json").write_text(json.dumps(manifest))
    finding = found(against_sample(tmp_path / "a"), "stale-artifact")
    assert (finding.severity, finding.evidence["what"]) == ("warning", "supported_length")


def test_scales_changed_after_their_calibration_are_named(healthy: Calibration, tmp_path: Path) -> None:
    write_calibration(tmp_path / "a", healthy, checkpoint=None)
    save_scales(tmp_path / "b", times(2)(healthy.scales), model=SMOLLM2)
    (tmp_path / "b" / "kvtrace.json").write_bytes((tmp_path / "a" / "kvtrace.json").read_bytes())
    finding = found(scales_report(load_artifact(tmp_path / "b")), "stale-artifact")
    assert finding.severity == "error"
    assert "not those that kvtrace.json describes" in finding.message
