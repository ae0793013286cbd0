"""Write a calibration: scales and manifest alone, or a deployable copy of the model's checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvtrace.calibration.kv_scheme import loads_no_scales
from kvtrace.calibration.manifest_build import manifest_of
from kvtrace.calibration.save import checkpoint_configs, link_checkpoint, save_checkpoint, save_scales
from kvtrace.calibration.sglang_file import SGLANG_FILE, sglang_document
from kvtrace.errors import InputError, OutputExistsError
from kvtrace.scales.formats.compressed_tensors import METHOD
from kvtrace.scales.source import open_source
from kvtrace.trace.cache_layers import text_config
from kvtrace.trace.fingerprint import weights_digest

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.calibration.calibrate import Calibration
    from kvtrace.calibration.save import SavedCheckpoint
    from kvtrace.scales.artifact import Granularity
    from kvtrace.trace.format import ModelRecord


def check_target(
    output: Path,
    checkpoint: Path | None,
    model: ModelRecord,
    granularity: Granularity,
    *,
    for_sglang: bool = False,
) -> None:
    """Find out before the work is done whether its result can be written.

    for_sglang: SGLang's file is written too, so that the checkpoint itself needs no place for scales.
    Raises OutputExistsError. InputError: the checkpoint holds other weights than the traced model's, or has
    no place for the scales.
    """
    if output.exists():
        raise OutputExistsError(f"{output}: exists; give a new directory, nothing is overwritten")
    if checkpoint is None:
        return
    source = open_source(checkpoint)
    if not (for_sglang and loads_no_scales(source.quant_method)):
        checkpoint_configs(source, granularity)
    found = weights_digest(checkpoint)
    if model.weights_digest and found and found != model.weights_digest:
        raise InputError(
            f"{checkpoint}: its weights have digest {found}, the traced model's {model.weights_digest}; "
            "scales serve the weights that they were calibrated on: capture a trace of this checkpoint"
        )


def write_calibration(
    output: Path, calibration: Calibration, *, checkpoint: Path | None, for_sglang: bool = False
) -> SavedCheckpoint | None:
    """Write scales, `kv_cache_scheme` and manifest to the new directory `output`.

    for_sglang: beside weights for which vLLM loads no scales the checkpoint is linked as it is.
    Returns how the copy of `checkpoint` came about, where one was given. Raises OutputExistsError and
    InputError as `save_scales` and `save_checkpoint` do.
    """
    if checkpoint is not None and for_sglang and loads_no_scales(open_source(checkpoint).quant_method):
        return link_checkpoint(output, checkpoint)
    manifest = manifest_of(calibration).model_dump(mode="json")
    if checkpoint is not None:
        return save_checkpoint(output, checkpoint, calibration.scales, manifest=manifest)
    save_scales(output, calibration.scales, model=_config(calibration.model), manifest=manifest)
    return None


def write_sglang_file(output: Path, calibration: Calibration, *, num_ranks: int) -> Path:
    """Write SGLang's file into the directory `output` and return its path. Raises as `sglang_document`."""
    document = sglang_document(
        calibration.scales,
        num_layers=calibration.model.num_layers,
        model_type=text_config(calibration.model.hf_config).get("model_type"),
        num_ranks=num_ranks,
    )
    path = output / SGLANG_FILE
    path.write_text(json.dumps(document, indent=1))
    return path


def _config(model: ModelRecord) -> dict[str, Any]:
    """Return the model's config.json content, without another method's quantization: only scales are
    written.
    """
    shape = {
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
    }
    config = dict(model.hf_config) or shape
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and quantization.get("quant_method") != METHOD:
        config.pop("quantization_config")
    return config
