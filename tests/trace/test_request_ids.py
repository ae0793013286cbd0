"""The front end's request id in the scheduler's, as vLLM 0.32 makes the one of the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.trace.request_ids import front_end_id, id_of_response

DRAWN = "-1f2e3d4c"


@pytest.mark.parametrize(
    ("internal", "is_randomized", "expected"),
    [
        ("chatcmpl-ticket-17" + DRAWN, True, "ticket-17"),
        ("cmpl-ticket-17-0" + DRAWN, True, "ticket-17"),
        ("cmpl-ticket-17-12" + DRAWN, True, "ticket-17"),  # prompt 12 of one call
        ("3_chatcmpl-a" + DRAWN, True, "a"),  # answer 3 of several
        ("3_cmpl-a-0" + DRAWN, True, "a"),
        ("chatcmpl-a" + DRAWN + DRAWN, True, "a" + DRAWN),  # the client's own may end so too
        ("chatcmpl-cmpl-a" + DRAWN, True, "cmpl-a"),
        ("chatcmpl-ticket-17", False, "ticket-17"),
        ("cmpl-ticket-17-0", False, "ticket-17"),
        ("chatcmpl-ticket-17", True, None),  # no drawn end where there should be one
        ("chatcmpl-ticket" + DRAWN, False, None),  # one where there should be none
        ("0" + DRAWN, True, None),  # offline
        ("cmpl-a" + DRAWN, True, None),  # no prompt's number
        ("resp_17" + DRAWN, True, None),
        ("", True, None),
        ("chatcmpl-" + DRAWN, True, None),
    ],
)
def test_it_is_told_from_the_form_or_not_at_all(
    internal: str, is_randomized: bool, expected: str | None
) -> None:
    assert front_end_id(internal, is_randomized=is_randomized) == expected


@given(
    st.text(min_size=1),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["chatcmpl-{}", "cmpl-{}-0", "7_chatcmpl-{}", "1_cmpl-{}-31"]),
)
def test_any_header_comes_back_from_what_vllm_makes_of_it(header: str, drawn: int, form: str) -> None:
    internal = f"{form.format(header)}-{drawn:08x}"
    assert front_end_id(internal, is_randomized=True) == header


def test_a_responses_id_has_the_same() -> None:
    assert id_of_response("chatcmpl-ticket-17") == id_of_response("cmpl-ticket-17") == "ticket-17"
    assert id_of_response("resp_17") is None
