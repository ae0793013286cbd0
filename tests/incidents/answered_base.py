"""The bases that cases with right answers are planted in."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from support.fabricate import request

from incidents.answers import FORWARD
from incidents.base import Base
from incidents.bench import Bench, whole_bench
from incidents.made_base import MODELS, made_base
from kvtrace.trace.format import SamplingRecord

if TYPE_CHECKING:
    from incidents.answers import Case

_FORWARD_FILE = Path(__file__).with_name("forward.npz")


def answered_bench(case: Case, seed: int, folder: Path) -> Bench:
    """Return one of the case's bases, by the seed: a draw of a made model, or most of the forward pass."""
    name = case.bases[seed % len(case.bases)]
    if name == FORWARD:
        bench = whole_bench(seed, folder, forward_base(), None)
        numbers = [one.request for one in bench.requests]
        kept = bench.rng.choice(numbers, size=len(numbers) * 9 // 10, replace=False)
        bench.keep(np.isin(bench.request_of_row, kept))
        return bench
    (model,) = [one for one in MODELS if one.name == name]
    return whole_bench(seed, folder, made_base(model, seed), partial(made_base, model))


@cache
def forward_base() -> Base:
    """Return K and V of the forward pass that `make_forward_base.py` made."""
    with np.load(_FORWARD_FILE) as content:
        stored = {name: content[name] for name in content.files}
    names = stored["workloads"].tolist()
    requests = [
        request(
            number,
            prompt_tokens=prompt,
            output_tokens=output,
            offset=offset,
            workload=names[number % len(names)],
        )
        for number, (prompt, output, offset) in enumerate(stored["lengths"].tolist())
    ]
    values = (stored["kv"].astype(np.uint32) << 16).view(np.float32)
    number, position = stored["request"].astype(np.int64), stored["position"].astype(np.int64)
    return Base(
        num_layers=values.shape[1],
        tensors={
            (layer, tensor): np.ascontiguousarray(values[:, layer, which])
            for layer in range(values.shape[1])
            for which, tensor in enumerate("kv")
        },
        requests=tuple(requests),
        sampling=(SamplingRecord(sampling_id=0, started_at=1.7e9, position_stride=int(stored["stride"])),),
        request_of_row=number,
        position=position,
        workload=np.array([requests[one].workload for one in number.tolist()], dtype=object),
        step=position - np.array([requests[one].prompt_tokens for one in number.tolist()]),
    )
