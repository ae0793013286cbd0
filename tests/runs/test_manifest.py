"""The serving manifest of a run: measured, by default, supplied; and the policy that a run was given."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.fabricate_run import run_record, source_record
from support.gate_runs import Traffic, gate_run
from support.run_cli import kvtrace

from kvtrace import __version__
from kvtrace.errors import ComparisonError, InputError
from kvtrace.evaluation.serving import corpus_sha256
from kvtrace.gate.constant import held_constant
from kvtrace.runs.manifest import ServingManifest, load_manifest
from kvtrace.runs.open import open_run
from kvtrace.trace.reader import open_trace

SCALES = Path(__file__).parents[2] / "samples/scales"
POLICY = (
    'name = "p"\ndate = 2020-01-01\n[limits]\nvectors_clipped_frac = 0.01\n'
    '[coverage]\nrequests = 1\ntokens = 1\n[[segments]]\nname = "all"\n'
)


def small_trace(path: Path, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    return fabricate_trace(
        path,
        {(layer, t): random.normal(0, 3, (20, 2, 8)) for layer in range(2) for t in "kv"},
        request_of_row=[0] * 20,
        position_of_row=range(20),
        requests=[request(0, prompt_tokens=20)],
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_trace(tmp_path_factory.mktemp("traces") / "small.kvtrace")


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def manifest_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())["manifest"]
    return found


def test_what_is_measured_is_filled_in_and_what_nobody_supplied_is_absent(
    trace: Path, tmp_path: Path
) -> None:
    assert kvtrace("replay", trace, "--skip-layers", "1", "-o", tmp_path / "run").returncode == 0
    opened = open_trace(trace)
    found = manifest_of(tmp_path / "run")
    model, engine = opened.record.model, opened.record.engine
    measured = {
        "baseline_id": "bf16",
        "candidate_id": "unit",
        "model_revision": model.revision,
        "tokenizer_revision": model.tokenizer_revision or model.tokenizer_digest,
        "weights_digest": model.weights_digest,
        "chat_template_digest": model.chat_template_digest,
        "attention_backend": opened.layers[0].backend,
        "kv_dtype": "bfloat16" if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype,
        "effective_args": engine.settings or None,
        "scale_granularity": "tensor",
        "skipped_layers": [1],
        "trace_sha256": opened.digest,
        "evaluation_corpus_sha256": opened.digest,
        "evaluator_revision": __version__,
    }
    assert found == {name: value for name, value in measured.items() if value is not None}
    assert open_run(tmp_path / "run").record.manifest.image_digest is None


def test_a_file_adds_the_rest(trace: Path, tmp_path: Path) -> None:
    supplied = {
        "baseline_id": "release-41",
        "image_digest": "sha256:ab",
        "gpu_inventory": ["H200", "H200"],
        "kernel_revision": None,
        "effective_args": {"served_model_name": "chat"},
        "trace_sha256": open_trace(trace).digest,
    }
    file = written(tmp_path / "m.json", supplied)
    assert kvtrace("replay", trace, "--manifest", file, "-o", tmp_path / "run").returncode == 0
    found = manifest_of(tmp_path / "run")
    assert found["effective_args"].pop("served_model_name") == "chat"
    assert found["effective_args"] == open_trace(trace).record.engine.settings
    assert {name: found[name] for name in supplied if name not in {"kernel_revision", "effective_args"}} == {
        name: value for name, value in supplied.items() if name not in {"kernel_revision", "effective_args"}
    }
    assert "kernel_revision" not in found
    report = kvtrace("report", trace, "--manifest", file)
    assert (report.returncode, report.stderr) == (0, "")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"image": "x"}, "'image': no such field; a manifest has baseline_id, candidate_id, image_digest"),
        ({"image_digest": 3}, "image_digest: Input should be a valid string"),
        ({"skipped_layers": ["1"]}, "skipped_layers: Input should be a valid integer"),
        (["image_digest"], "expected a JSON object"),
    ],
)
def test_a_file_with_other_content_is_refused_by_name(tmp_path: Path, content: object, problem: str) -> None:
    with pytest.raises(InputError, match=f"m.json: {problem}"):
        load_manifest(written(tmp_path / "m.json", content))


@pytest.mark.parametrize("text", ["{", '{"a": NaN}', '{"a": 1, "a": 2}', '{"\\ud800": 1}', "[" * 100_000])
def test_a_file_that_is_no_sound_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(InputError, match=r"m\.json: not JSON"):
        load_manifest(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trace_sha256", "f" * 64),
        ("evaluator_revision", "9.0.0"),
        ("skipped_layers", [0]),
        ("kv_dtype", "int4"),
    ],
)
def test_a_supplied_value_that_contradicts_the_measured_one_is_refused(
    trace: Path, tmp_path: Path, field: str, value: object
) -> None:
    file = written(tmp_path / "m.json", {field: value})
    result = kvtrace("replay", trace, "--manifest", file, "-o", tmp_path / "run")
    assert (result.returncode, result.stdout) == (2, "")
    assert f"m.json: {field} is" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_field_in_which_traces_disagree_is_absent_and_cannot_be_supplied(
    trace: Path, tmp_path: Path
) -> None:
    other = small_trace(tmp_path / "other.kvtrace", seed=1)
    assert kvtrace("replay", trace, other, "-o", tmp_path / "run").returncode == 0
    found = manifest_of(tmp_path / "run")
    assert "trace_sha256" not in found
    digests = sorted([open_trace(trace).digest, open_trace(other).digest])
    assert found["evaluation_corpus_sha256"] == hashlib.sha256("\n".join(digests).encode()).hexdigest()
    file = written(tmp_path / "m.json", {"trace_sha256": digests[0]})
    refused = kvtrace("replay", trace, other, "--manifest", file, "-o", tmp_path / "no")
    assert refused.returncode == 2
    assert "trace_sha256" in refused.stderr
    assert "the traces differ in it" in refused.stderr


def test_of_several_candidates_a_supplied_id_says_which_one_is_described(trace: Path, tmp_path: Path) -> None:
    online = ("--online", "int8-per-token-head", "--online", "fp8-per-token-head")
    assert kvtrace("replay", trace, *online, "-o", tmp_path / "several").returncode == 0
    several = manifest_of(tmp_path / "several")
    assert not {"candidate_id", "scale_granularity", "skipped_layers"} & several.keys()
    file = written(tmp_path / "m.json", {"candidate_id": "int8-per-token-head"})
    assert kvtrace("replay", trace, *online, "--manifest", file, "-o", tmp_path / "one").returncode == 0
    one = manifest_of(tmp_path / "one")
    assert (one["candidate_id"], one["scale_granularity"]) == ("int8-per-token-head", "token_head")
    assert one["skipped_layers"] == []


def test_one_calibrated_artifact_brings_its_hash_and_its_corpus(trace: Path, tmp_path: Path) -> None:
    scales = tmp_path / "calibrated"
    assert kvtrace("calibrate", trace, "-o", scales).returncode == 0
    assert kvtrace("replay", trace, "--scales", scales, "-o", tmp_path / "run").returncode == 0
    found = manifest_of(tmp_path / "run")
    made = json.loads((scales / "kvtrace.json").read_text())
    assert found["candidate_id"] == "calibrated"
    assert found["scale_artifact_sha256"] == made["scales_sha256"]
    assert found["calibration_corpus_sha256"] == found["evaluation_corpus_sha256"] == open_trace(trace).digest
    assert corpus_sha256(["b", "a", "b"]) == corpus_sha256(["a", "b"]) != corpus_sha256(["a"])


def test_a_run_keeps_the_policy_it_was_given_and_check_sees_it(trace: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    assert kvtrace("replay", trace, "--policy", policy, "-o", tmp_path / "run").returncode == 0
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["policy_sha256"] == hashlib.sha256(POLICY.encode()).hexdigest()
    assert record["policy_date"] == "2020-01-01"

    def recorded() -> object:
        checked = kvtrace("check", tmp_path / "run", "--policy", policy, "--json")
        return json.loads(checked.stdout)["policy"]["recorded_in_run"]

    assert recorded() is True
    policy.write_text(POLICY.replace("0.01", "0.5"))
    assert recorded() is False


def test_a_policy_that_cannot_be_used_stops_the_replay_before_it_reads(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("name = 3")
    for command in (("replay", trace, "-o", tmp_path / "run"), ("report", trace)):
        refused = kvtrace(*command, "--policy", tmp_path / "policy.toml")
        assert refused.returncode == 2
        assert "policy.toml" in refused.stderr
    assert not (tmp_path / "run").exists()


def test_a_finished_run_takes_no_manifest_and_no_policy(trace: Path, tmp_path: Path) -> None:
    assert kvtrace("replay", trace, "-o", tmp_path / "run").returncode == 0
    for option in ("--manifest", "--policy"):
        refused = kvtrace("report", tmp_path / "run", option, tmp_path / "file")
        assert refused.returncode == 2
        assert f"give its trace to try {option}" in refused.stderr


def run_with(path: Path, **manifest: Any) -> Path:
    record = run_record(source_record(), manifest=ServingManifest(**manifest))
    return gate_run(path, Traffic("chat", 2), record=record)


@pytest.mark.parametrize(
    ("field", "here", "there"),
    [
        ("image_digest", "sha256:a", "sha256:b"),
        ("kernel_revision", "1", "2"),
        ("gpu_inventory", ("H200",), ("H200", "H200")),
        ("kv_dtype", "bfloat16", "fp8_e4m3"),
        ("effective_args", {"seed": 0}, {"seed": 1}),
        ("model_revision", "main", "v2"),
    ],
)
def test_runs_whose_manifests_differ_are_refused_by_the_fields_name(
    tmp_path: Path, field: str, here: object, there: object
) -> None:
    runs = [
        open_run(run_with(tmp_path / "a", **{field: here})),
        open_run(run_with(tmp_path / "b", **{field: there})),
    ]
    with pytest.raises(ComparisonError, match=rf"b: {field} is .*--allow-different {field}$"):
        held_constant(runs, ())
    assert field in held_constant(runs, (field,))[1]


def test_a_manifest_field_that_one_run_lacks_is_neither_constant_nor_different(tmp_path: Path) -> None:
    runs = [open_run(run_with(tmp_path / "a", image_digest="sha256:a")), open_run(run_with(tmp_path / "b"))]
    shared, different = held_constant(runs, ())
    assert shared["image_digest"] is None
    assert different == {}
    assert held_constant(runs[:1], ())[0]["image_digest"] == "sha256:a"
