"""Tests of the completion of server addresses."""

import pytest

from antiphon import ConnectError
from antiphon.connection.endpoint import CHAT, MODELS, REALTIME, TRANSCRIPTION, endpoint, page


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
    assert endpoint(written, REALTIME, mode="audio") == meant


@pytest.mark.parametrize(
    "written",
    [
        "ws://localhost:8006",
        "http://localhost:8006/",
        "ws://localhost:8006/ws/chat",
        "ws://localhost:8006/v1/realtime?mode=audio",
        "ws://localhost:8006/v1/realtime?intent=transcription",
        "ws://localhost:8006/v1/transcription/",
    ],
)
def test_address_of_one_service_gives_those_of_the_others(written: str) -> None:
    assert endpoint(written, CHAT) == "ws://localhost:8006/ws/chat"
    assert endpoint(written, TRANSCRIPTION) == "ws://localhost:8006/v1/transcription"
    assert endpoint(written, REALTIME, mode="video") == "ws://localhost:8006/v1/realtime?mode=video"
    assert page(written, MODELS) == "http://localhost:8006/v1/models"


def test_page_of_a_server_with_tls_keeps_its_root_and_no_query() -> None:
    assert page("wss://example.org/speech/ws/chat?probe=1", MODELS) == "https://example.org/speech/v1/models"


@pytest.mark.parametrize("written", ["localhost:8006", "ftp://localhost", "", "ws://", "8006"])
def test_invalid_address_is_refused_with_example(written: str) -> None:
    with pytest.raises(ConnectError, match="ws://localhost:8006") as caught:
        endpoint(written, REALTIME, mode="audio")
    assert not caught.value.retryable
