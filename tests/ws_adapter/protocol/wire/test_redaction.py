"""Tests of log redaction: log lines reveal no content of clients."""

from ws_adapter.protocol.wire.redaction import outline, where
from ws_adapter.web.routes import describe

CANARY = "canary"


def test_outline_and_error_location_reveal_no_content() -> None:
    assert outline(CANARY) == outline(CANARY.encode())
    assert outline(CANARY).startswith("6 bytes, sha256 ")
    assert outline(CANARY) != outline(CANARY.upper())
    assert CANARY not in outline(CANARY)
    assert outline("\udcff").startswith("1 bytes")
    try:
        int(CANARY)
    except ValueError as error:
        told = where(error)
    assert told.endswith("ValueError")
    assert "test_redaction.py" in told
    assert f"'{CANARY}'" not in told


def test_description_of_path_shows_only_known_paths() -> None:
    assert describe("/v1/realtime?mode=audio") == "/v1/realtime"
    assert describe("/healthz?x") == "/healthz"
    for path in ("/canary", "/ws/duplex/canary", "/api/queue/ticket_canary"):
        assert CANARY not in describe(path)
