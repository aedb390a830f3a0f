"""The exceptions: one tree, each saying whether another try makes sense."""

import pytest

from antiphon import (
    AntiphonError,
    AudioError,
    AuthError,
    ConnectError,
    ImageError,
    ProtocolError,
    QueueFull,
    ReplayError,
    SessionClosed,
    VideoError,
)


@pytest.mark.parametrize(
    "error",
    [
        ConnectError("away"),
        QueueFull("full"),
        AuthError("no key"),
        ProtocolError("what?"),
        ReplayError("another model"),
        SessionClosed("backend_error"),
        AudioError("stereo"),
        ImageError("no picture"),
        VideoError("no video"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_is_an_antiphon_error_with_retryable(error: AntiphonError) -> None:
    assert isinstance(error, AntiphonError)
    assert isinstance(error.retryable, bool)
    assert str(error)


def test_session_closed_says_what_it_knows_and_no_more() -> None:
    error = SessionClosed("backend_error", 1011, "4bf92f", message="The worker was lost.")

    assert (error.reason, error.code, error.trace_id) == ("backend_error", 1011, "4bf92f")
    assert str(error) == "The session ended: backend_error (code 1011, trace 4bf92f). The worker was lost."
    assert str(SessionClosed("timeout")) == "The session ended: timeout."
