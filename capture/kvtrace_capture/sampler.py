"""Which requests and positions are captured, and the labels that clients give.

Sampling is per request: a share of the requests, and of each chosen one every `position_stride`-th
position. The offset is drawn per request: the cache's block size is a multiple of common strides, so a
fixed offset would only ever see one place within a block.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kvtrace.trace.capture_names import CLIENT_ID_KEY, MAX_CLIENT_ID_CHARS, MAX_LABEL_CHARS, WORKLOAD_KEY
from kvtrace.trace.format import UNLABELLED
from kvtrace_capture.labels import clean_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace_capture.settings import CaptureSettings

MAX_WORKLOADS: Final = 256
MAX_PROBED_WORKLOADS: Final = 16
"""Of those that clients name: whoever sends ever new labels does not get ever more of the cache kept."""
_MOST_POSITIONS: Final = 2**31
TOO_MANY_WORKLOADS: Final = "(too many workloads)"
"""The workload of requests whose label is new after `MAX_WORKLOADS` others: a trace has a bounded list."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What a client says about its request."""

    workload: str = UNLABELLED
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a request is captured, and at which positions: those with position % stride == offset."""

    sampled: bool
    stride: int
    offset: int
    sampling_id: int
    is_probe: bool = False
    """True: K and V of all its positions are kept, and Q at some."""


class Sampler:
    """Draws a `Choice` for each request under the rules in force."""

    def __init__(self, settings: CaptureSettings, sampling_id: int = 0) -> None:
        self.settings = settings
        """The rules in force."""
        self.sampling_id = sampling_id
        """Their number."""
        self._random = random.Random(settings.seed)  # noqa: S311 -- sampling, no secret
        self._workloads: set[str] = set()
        self._probes: Counter[str] = Counter()
        """Probes drawn so far, by workload."""

    def change(self, settings: CaptureSettings, sampling_id: int) -> None:
        """Draw by other rules from now on; the random sequence and the list of workloads go on."""
        self.settings, self.sampling_id = settings, sampling_id

    def read_labels(self, extra_args: Mapping[str, Any] | None) -> Labels:
        """Return the labels in `sampling_params.extra_args`, which is where HTTP's `vllm_xargs` arrives."""
        if not extra_args:
            return Labels()
        workload = clean_label(extra_args.get(WORKLOAD_KEY), MAX_LABEL_CHARS) or UNLABELLED
        # What the operator asked for always counts: clients cannot fill the list before it comes.
        if workload not in self._workloads and workload not in (self.settings.workloads or ()):
            if len(self._workloads) >= MAX_WORKLOADS:
                workload = TOO_MANY_WORKLOADS
            else:
                self._workloads.add(workload)
        return Labels(workload, clean_label(extra_args.get(CLIENT_ID_KEY), MAX_CLIENT_ID_CHARS))

    def choose(self, labels: Labels) -> Choice:
        """Draw whether a request with these labels is captured, and its offset."""
        settings = self.settings
        is_wanted = settings.workloads is None or labels.workload in settings.workloads
        is_drawn = self._random.random() < settings.request_fraction
        offset = self._random.randrange(settings.position_stride)
        sampled = is_wanted and is_drawn
        is_probe = sampled and settings.queries == "probe" and self._has_probes_left(labels.workload)
        if is_probe:
            self._probes[labels.workload] += 1
        return Choice(sampled, settings.position_stride, offset, self.sampling_id, is_probe)

    def draw_probe_positions(self, prompt_tokens: int) -> tuple[int, ...]:
        """Draw the positions of a probe at which Q is captured, in order.

        Half of them lie in the prompt, one drawn from each of as many equal parts. The others lie in what is
        generated, one drawn from each of its steps 0, 1–3, 4–15, 16–63, …: how long that gets is not known.
        """
        count = self.settings.probe_positions
        num_in_prompt = min(-(-count // 2), prompt_tokens)
        bounds = [part * prompt_tokens // max(num_in_prompt, 1) for part in range(num_in_prompt + 1)]
        drawn = [self._random.randrange(*part) for part in pairwise(bounds)]
        steps = [0] + [self._random.randrange(4**n, 4 ** (n + 1)) for n in range(min(count // 2, 12) - 1)]
        decoded = [prompt_tokens + step for step in steps[: count // 2]]
        return (*drawn, *(position for position in decoded if position < _MOST_POSITIONS))

    def _has_probes_left(self, workload: str) -> bool:
        is_asked_for = workload in (self.settings.workloads or ())
        if workload not in self._probes and not is_asked_for and len(self._probes) >= MAX_PROBED_WORKLOADS:
            return False
        return self._probes[workload] < self.settings.probe_requests
