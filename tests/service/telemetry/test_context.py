"""Trace context as text."""

from antiphon_service.telemetry.context import format_traceparent, parse_traceparent

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_traceparent_round_trips_and_only_valid_tracestate_is_kept() -> None:
    context = parse_traceparent(GIVEN)
    with_state = parse_traceparent(GIVEN, "vendor=1,other=a")
    malformed = parse_traceparent(GIVEN, "no state at all, is it")
    assert context is not None
    assert context.is_remote
    assert context.trace_flags.sampled
    assert format_traceparent(context) == GIVEN
    assert with_state is not None
    assert with_state.trace_state.to_header() == "vendor=1,other=a"
    assert malformed is not None
    assert not malformed.trace_state


def test_malformed_traceparent_is_none() -> None:
    for text in (
        *(None, "", "00", GIVEN[:-1], GIVEN.replace("-", "_"), GIVEN.upper(), "ff" + GIVEN[2:]),
        *("00-" + "0" * 32 + GIVEN[35:], GIVEN[:36] + "0" * 16 + "-01", GIVEN + "-more", "é" * 55),
        "0" * 10_000,
    ):
        assert parse_traceparent(text) is None, text
