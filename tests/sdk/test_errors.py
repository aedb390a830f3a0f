"""Tests of the exceptions: one base class, and `retryable` on each."""

import pytest

import antiphon


@pytest.mark.parametrize(
    "error",
    [
        antiphon.ConnectError("away"),
        antiphon.QueueFull("full"),
        antiphon.AuthError("no key"),
        antiphon.ProtocolError("what?"),
        antiphon.ReplayError("another model"),
        antiphon.SessionClosed("backend_error"),
        antiphon.AudioError("stereo"),
        antiphon.ImageError("no picture"),
        antiphon.VideoError("no video"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_is_an_antiphon_error_with_retryable(error: antiphon.AntiphonError) -> None:
    assert isinstance(error, antiphon.AntiphonError)
    assert isinstance(error.retryable, bool)
    assert str(error)


def test_session_closed_message_contains_only_known_fields() -> None:
    error = antiphon.SessionClosed("backend_error", 1011, "4bf92f", message="The worker was lost.")
    assert (error.reason, error.code, error.trace_id) == ("backend_error", 1011, "4bf92f")
    assert str(error) == "The session ended: backend_error (code 1011, trace 4bf92f). The worker was lost."
    assert str(antiphon.SessionClosed("timeout")) == "The session ended: timeout."
