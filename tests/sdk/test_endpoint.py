"""Addresses that people write, and the one that is meant."""

import pytest

from antiphon import ConnectError
from antiphon.endpoint import endpoint


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ws://localhost:8006", "ws://localhost:8006/v1/realtime?mode=audio"),
        ("ws://localhost:8006/", "ws://localhost:8006/v1/realtime?mode=audio"),
        ("http://localhost:8006", "ws://localhost:8006/v1/realtime?mode=audio"),
        ("https://example.org", "wss://example.org/v1/realtime?mode=audio"),
        ("wss://example.org/speech/", "wss://example.org/speech/v1/realtime?mode=audio"),
        ("ws://localhost:8006/v1/realtime?mode=video", "ws://localhost:8006/v1/realtime?mode=audio"),
        ("ws://localhost/v1/realtime/?probe=1", "ws://localhost/v1/realtime?probe=1&mode=audio"),
    ],
)
def test_address_is_completed(written: str, meant: str) -> None:
    assert endpoint(written, mode="audio") == meant


@pytest.mark.parametrize("written", ["localhost:8006", "ftp://localhost", "", "ws://", "8006"])
def test_what_is_no_address_is_refused_with_an_example(written: str) -> None:
    with pytest.raises(ConnectError, match="ws://localhost:8006") as caught:
        endpoint(written, mode="audio")

    assert not caught.value.retryable
