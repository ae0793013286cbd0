"""Where clipping sits: units made by hand, in which one stratum, two or none holds it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvtrace.findings.run.strata import ClippedUnits
from kvtrace.findings.run.strata_split import Located, locate

HEAD = (0, 0, "k")


@dataclass
class Units:
    """Requests of one head, in units of (request, workload, position octave, step octave, events, trials)."""

    rows: list[tuple[int, str, int, int, float, float]] = field(default_factory=list)

    def add(
        self, request: int, workload: str, octave: int, clipped: float, *, of: float = 20, step: int = -1
    ) -> None:
        self.rows.append((request, workload, octave, step, clipped, of))

    def located(self) -> Located:
        request, workload, octave, step, events, trials = zip(*self.rows, strict=True)
        return locate(
            ClippedUnits(
                heads=(HEAD,),
                trials=np.array([trials], dtype=float),
                events=np.array([events], dtype=float),
                request=np.array(request),
                workload=np.array(workload, dtype=object),
                position_octave=np.array(octave),
                step_octave=np.array(step),
            )
        )


def told(located: Located) -> list[tuple[str, str | int]]:
    return sorted(
        (one.split.kind, one.split.names[0] if one.split.names else one.split.first) for one in located.drifts
    )


def test_a_workload_that_clips_alone_is_named() -> None:
    units = Units()
    for request in range(20):
        for octave in (4, 5, 6):
            units.add(request, "code" if request < 8 else "chat", octave, 9 if request < 8 else 0)
    located = units.located()
    assert told(located) == [("workload", "code")]
    assert located.explained == {HEAD}
    assert located.drifts[0].inside_frac == 9 / 20
    assert located.drifts[0].outside_frac == 0
    assert located.drifts[0].num_requests == 8


def test_positions_that_clip_in_every_workload_are_named_from_where_they_begin() -> None:
    units = Units()
    for request in range(20):
        for octave in range(4, 11):
            units.add(request, ("code", "chat")[request % 2], octave, 8 if octave >= 8 else 0)
    assert told(units.located()) == [("position", 8)]


def test_clipping_from_a_generation_step_on_is_drift_with_output_length() -> None:
    units = Units()
    for request in range(20):
        units.add(request, "chat", 6, 0)
        for step in range(7):
            units.add(request, "chat", 7, 8 if step >= 4 else 0, step=step)
    assert told(units.located()) == [("output-length", 4)]


def test_clipping_alike_everywhere_is_no_drift() -> None:
    rng = np.random.default_rng(0)
    for rate in (0.02, 0.3, 0.98):
        units = Units()
        for request in range(40):
            for octave in range(4, 11):
                units.add(request, ("code", "chat", "qa")[request % 3], octave, rng.binomial(20, rate))
        located = units.located()
        assert told(located) == []
        assert located.explained == frozenset()


def test_a_workload_and_a_position_at_once_are_both_named() -> None:
    units = Units()
    for request in range(30):
        workload = "code" if request < 10 else "chat"
        for octave in range(4, 10):
            units.add(request, workload, octave, 16 if workload == "code" or octave >= 8 else 0)
    assert told(units.located()) == [("position", 8), ("workload", "code")]


def test_two_requests_are_too_few_to_name_their_workload() -> None:
    units = Units()
    for request in range(20):
        for octave in (4, 5, 6):
            units.add(request, "code" if request < 2 else "chat", octave, 15 if request < 2 else 0)
    assert told(units.located()) == []


def test_one_request_that_clips_is_not_its_workloads_drift() -> None:
    units = Units()
    for request in range(20):
        for octave in (4, 5, 6):
            units.add(request, "code" if request < 8 else "chat", octave, 19 if request == 0 else 0)
    assert told(units.located()) == []


def test_a_workload_that_alone_has_long_positions_is_said_to_be_the_same_rows() -> None:
    units = Units()
    for request in range(20):
        long = request < 6
        units.add(request, "books" if long else "chat", 12 if long else 5, 12 if long else 0)
    (drift,) = units.located().drifts
    assert drift.same_rows_as is not None
    assert {drift.split.kind, drift.same_rows_as.kind} == {"workload", "position"}


def test_a_position_that_a_louder_workload_hid_is_named_once_that_is_set_aside() -> None:
    units = Units()
    for request in range(5):
        units.add(request, "books", 8, 0, of=10)
        units.add(request, "books", 10, 20, of=20)
    for request in range(5, 23):
        units.add(request, "language", 5, 5, of=5)
    for request in range(23, 60):
        units.add(request, "chat", 5, 0, of=11)
    located = units.located()
    assert told(located) == [("position", 9), ("workload", "language")]
    assert located.explained == {HEAD}
