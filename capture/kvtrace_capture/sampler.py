"""Which requests and positions are captured, and the labels that clients give.

Sampling is per request: a share of the requests, and of each chosen one every `position_stride`-th
position. The offset is drawn per request: the cache's block size is a multiple of common strides, so a
fixed offset would only ever see one place within a block.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.trace.capture_names import CLIENT_ID_KEY, MAX_CLIENT_ID_CHARS, MAX_LABEL_CHARS, WORKLOAD_KEY
from kvtrace.trace.format import UNLABELLED
from kvtrace_capture.labels import clean_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace_capture.settings import CaptureSettings

MAX_WORKLOADS: Final = 256
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


class Sampler:
    """Draws a `Choice` for each request under the rules in force."""

    def __init__(self, settings: CaptureSettings, sampling_id: int = 0) -> None:
        self.settings = settings
        """The rules in force."""
        self.sampling_id = sampling_id
        """Their number."""
        self._random = random.Random(settings.seed)  # noqa: S311 -- sampling, no secret
        self._workloads: set[str] = set()

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
        return Choice(is_wanted and is_drawn, settings.position_stride, offset, self.sampling_id)
