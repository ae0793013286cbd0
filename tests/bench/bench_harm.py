"""Does harm foretell loss? R of some forty caches beside what each measurably does: `make bench-harm`.

    python tests/bench/bench_harm.py MODEL PROBES [--require]

PROBES: a trace of the model with queries, of which all positions are kept (samples/capture_queries.py MODEL
PROBES probe). R is what `kvtrace replay PROBES --checkpoint MODEL` and the query `harm` say. Measured is a
forward of transformers in float32 whose K and V go through the same cache in every layer, so that errors
compound: the mean KL of the next token's distribution against the cache in bf16, and the loss of
log-likelihood, over the captured requests and a greedy answer to each.

Printed: each cache, then Kendall's τ of R and of the plain metrics with what was measured, and its ceiling: τ
of resampled KL with its mean. `--require`: exit 1 unless τ of R is at least 0.9 and above that of SQNR.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from scipy.stats import kendalltau

import kvtrace
from kvtrace.attention.quantizers import keep, quantizer_of
from kvtrace.attention.replay import Exact
from kvtrace.candidates.bind import bind_candidates
from kvtrace.evaluation import replay, standard_request
from kvtrace.formats.named import FORMATS
from kvtrace.trace.queries import CapturedQueries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvtrace.attention.quantizers import Quantizer
    from kvtrace.trace.reader import Trace

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))

from capture_queries import first_requests

HEADROOMS: Final = (1, 2, 16, 256, 2048, 0.5, 0.35, 0.25, 0.125, 0.0625)
"""Of scales that just cover the traffic, one a KV head."""
ONE_SIDED: Final = ("fp8_e4m3", "int4_per_token_head", "nvfp4", "turboquant_3bit_nc")
ANSWER_TOKENS: Final = 48
BLOCK_TOKENS: Final = 16
REPLICATES: Final = 200
REQUIRED_TAU: Final = 0.9
_ATTENTION: Final = "through_a_cache"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a cache does, at each token read: [tokens]."""

    kl: NDArray[np.float64]
    """KL(next token's distribution with a bf16 cache ‖ with this one), nats."""
    loss: NDArray[np.float64]
    """Log-likelihood of the text's own next token that is lost, nats."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("probes", type=Path)
    parser.add_argument("--require", action="store_true")
    asked = parser.parse_args()
    started = time.monotonic()
    trace = kvtrace.open_trace(asked.probes)
    with tempfile.TemporaryDirectory() as folder:
        foretold, quantizers = _foretold(trace, asked.model, Path(folder))
    print(f"{len(foretold)} caches replayed on {trace.name}: {time.monotonic() - started:.0f} s", flush=True)
    measured = measure(asked.model, quantizers)
    num_tokens = len(next(iter(measured.values())).kl)
    print(f"and served, {num_tokens:,} tokens each: {time.monotonic() - started:.0f} s\n")
    taus = _report(foretold, measured)
    if asked.require and not (taus["R"] >= REQUIRED_TAU and taus["R"] > taus["SQNR"]):
        raise SystemExit(f"τ of R is {taus['R']:.3f}, required {REQUIRED_TAU} and more than SQNR's")


def _foretold(
    trace: Trace, model: Path, folder: Path
) -> tuple[dict[str, dict[str, float]], dict[str, list[Quantizer]]]:
    """Return what kvtrace says of each cache, and what each does to K and V in each layer."""
    scales = []
    for granularity, headrooms in (("attn_head", HEADROOMS), ("tensor", (1, 0.25))):
        for headroom in headrooms:
            scales.append(folder / f"{granularity} x {headroom:g}")
            options = ("--granularity", granularity, "--headroom", f"{headroom}", "-o", scales[-1])
            command = [sys.executable, "-m", "kvtrace", "calibrate", trace.path, *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    formats = [name for name in FORMATS if name not in ("auto", "fp8_e4m3")]
    formats += [f"k={name},v=auto" for name in ONE_SIDED[1:]]
    formats += [f"k=auto,v={name}" for name in ONE_SIDED[1:]]
    thirds = np.array_split(sorted(trace.layers), 3)
    formats += [f"auto/{third[0]}-{third[-1]}:{ONE_SIDED[-1]}" for third in thirds]
    request = standard_request([trace], scales, cache_dtypes=formats, checkpoint=model)
    replay(request, folder / "run")
    run = kvtrace.open_run(folder / "run")
    said = {row["candidate"]: row for row in run.query("harm").iter_rows(named=True)}
    plain = {row["candidate"]: row for row in run.sql(_PLAIN).iter_rows(named=True)}
    bound = bind_candidates(request.candidates, {trace.name: trace})
    layers = CapturedQueries(trace).layers
    quantizers = {
        applied.candidate.name: [
            quantizer_of(applied, layer, trace.layers[index].dtype) for index, layer in sorted(layers.items())
        ]
        for applied in bound.in_source(trace.name)
        if applied.candidate.name in said and said[applied.candidate.name]["kind"] != "bf16"
    }
    print(f"R is {next(iter(said.values()))['knowledge']}")
    return {
        name: {
            "R": said[name]["harm"],
            "SQNR": -plain[name]["sqnr_db"],
            "relative error": plain[name]["relative_error"],
            "attention KL": said[name]["attention_kl"],
            "flips": said[name]["flipped_frac"],
            "clipped": plain[name]["clipped_frac"],
        }
        for name in quantizers
    }, quantizers


_PLAIN: Final = """
SELECT candidate, avg(least(sqnr_db, 200)) AS sqnr_db,
  avg(pow(10, -least(sqnr_db, 200) / 10)) AS relative_error,
  avg(clipped_frac) AS clipped_frac
FROM value_sums(chosen_cells) GROUP BY candidate
"""


def measure(model_folder: Path, quantizers: Mapping[str, Sequence[Quantizer]]) -> dict[str, Measured]:
    """Return what each cache does to the next token of every request and its answer."""
    from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(_ATTENTION, _through_a_cache)
    AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
    model = AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=torch.float32, attn_implementation=_ATTENTION
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    parts: dict[str, list[tuple[Any, Any]]] = {name: [] for name in quantizers}
    with torch.inference_mode():
        for chat in first_requests():
            _Cache.of_layer = _as_bf16
            prompt = tokenizer.apply_chat_template(
                list(chat.messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
            )["input_ids"]
            text = model.generate(prompt, max_new_tokens=ANSWER_TOKENS, do_sample=False)
            before = torch.log_softmax(model(text).logits[0, :-1], -1)
            own = text[0, 1:, None]
            for name, layers in quantizers.items():
                _Cache.of_layer = lambda layer, exact, layers=layers: layers[layer](exact)
                after = torch.log_softmax(model(text).logits[0, :-1], -1)
                kl = (before.exp() * (before - after)).sum(-1)
                loss = (before.gather(1, own) - after.gather(1, own))[:, 0]
                parts[name].append((kl.double().numpy(), loss.double().numpy()))
    return {
        name: Measured(*(np.concatenate(one) for one in zip(*of, strict=True))) for name, of in parts.items()
    }


class _Cache:
    """What all layers' attention goes through now."""

    of_layer: Callable[[int, Exact], Any]


def _as_bf16(_: int, exact: Exact) -> Any:
    return keep(exact)


def _through_a_cache(
    module: torch.nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
) -> Any:
    """Return transformers' own attention over K and V as the cache gives them back.

    query: [1, query_head, query, head_dim] after RoPE; key, value: [1, kv_head, key, head_dim].
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    kv_heads = key.shape[1]
    exact = Exact(_bf16(query)[0].reshape(kv_heads, -1, *query.shape[2:]), _bf16(key)[0], _bf16(value)[0])
    restored = _Cache.of_layer(int(module.layer_idx), exact)  # type: ignore[arg-type]
    if restored.q is not None:
        query = restored.q.reshape(query.shape)
    return sdpa_attention_forward(
        module, query, restored.k[None], restored.v[None], attention_mask, **options
    )


def _bf16(x: Any) -> Any:
    return x.to(torch.bfloat16).float()


def _report(foretold: Mapping[str, dict[str, float]], measured: Mapping[str, Measured]) -> dict[str, float]:
    names = sorted(measured, key=lambda name: foretold[name]["R"])
    print(f"{'cache':<38}{'R':>10}{'KL':>10}{'± 1 σ':>9}{'Δ NLL':>9}{'SQNR':>8}{'KL/R':>7}")
    for name in names:
        kl, loss, r = measured[name].kl, measured[name].loss.mean(), foretold[name]["R"]
        print(
            f"{name[:37]:<38}{r:>10.5f}{kl.mean():>10.5f}{_block_error(kl):>9.5f}{loss:>9.4f}"
            f"{-foretold[name]['SQNR']:>8.1f}{kl.mean() / r if r else np.nan:>7.2f}"
        )
    kl = np.array([measured[name].kl.mean() for name in names])
    loss = np.array([measured[name].loss.mean() for name in names])
    taus = {}
    print(f"\n{'τ of, over ' + str(len(names)) + ' caches':<38}{'with KL':>10}{'with Δ NLL':>12}")
    for metric in foretold[names[0]]:
        values = np.array([foretold[name][metric] for name in names], dtype=float)
        is_there = np.isfinite(values)
        taus[metric] = kendalltau(values[is_there], kl[is_there]).statistic
        with_loss = kendalltau(values[is_there], loss[is_there]).statistic
        print(f"{metric:<38}{taus[metric]:>10.3f}{with_loss:>12.3f}")
    low, mean, high = _ceiling([measured[name].kl for name in names])
    print(f"{'KL of resampled tokens (ceiling)':<38}{mean:>10.3f}   {low:.3f} to {high:.3f}")
    return taus


def _block_error(values: NDArray[np.float64]) -> float:
    blocks = [part.mean() for part in np.array_split(values, max(2, len(values) // BLOCK_TOKENS))]
    return float(np.std(blocks, ddof=1) / np.sqrt(len(blocks)))


def _ceiling(of_caches: Sequence[NDArray[np.float64]]) -> tuple[float, float, float]:
    """Return τ of resampled blocks of tokens, the same for all caches, with the mean: low, mean, high."""
    random = np.random.default_rng(0)
    stacked = np.stack(of_caches)
    blocks = np.array_split(np.arange(stacked.shape[1]), stacked.shape[1] // BLOCK_TOKENS)
    means = stacked.mean(1)
    found = []
    for _ in range(REPLICATES):
        drawn = np.concatenate([blocks[n] for n in random.integers(len(blocks), size=len(blocks))])
        found.append(kendalltau(stacked[:, drawn].mean(1), means).statistic)
    return float(np.quantile(found, 0.05)), float(np.mean(found)), float(np.quantile(found, 0.95))


if __name__ == "__main__":
    main()
