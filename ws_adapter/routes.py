"""Which path and query mean what."""

from collections.abc import Sequence
from enum import Enum
from typing import Final
from urllib.parse import parse_qs, urlsplit

from ws_adapter.dialects.errors import CloseCode, ErrorCode, Verdict

SUBPROTOCOL: Final = "realtime"


class Page(Enum):
    """What a path leads to."""

    HEALTH = "health"
    READY = "ready"
    VERSION = "version"
    REALTIME = "realtime"


_PAGES: Final = {
    "/health": Page.HEALTH,
    "/healthz": Page.HEALTH,
    "/ready": Page.READY,
    "/readyz": Page.READY,
    "/version": Page.VERSION,
    "/v1/realtime": Page.REALTIME,
}

_AUDIO: Final = "audio"


def find_page(target: str) -> Page | None:
    """The page of a request target; a slash at its end makes no difference."""
    path = urlsplit(target).path
    return _PAGES.get(path.rstrip("/") or "/")


def refuse_mode(target: str, offered: Sequence[str]) -> Verdict | None:
    """Why a socket on `/v1/realtime` is not served, None if it is.

    `offered` are the subprotocols of the client. Browsers cannot read an HTTP refusal, so the verdict is told
    after the upgrade.
    """
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    mode = query.get("mode", [""])[0]
    if mode == _AUDIO:
        return None
    intends = query.get("intent", [""])[0] == "transcription"
    if not mode and not intends and (SUBPROTOCOL in offered or "model" in query):
        message = "this protocol is not served here: choose one by ?mode=audio"
        return Verdict(ErrorCode.UNSUPPORTED_PROTOCOL, message, None, CloseCode.POLICY_VIOLATION)
    message = "mode: expected audio; choose it by ?mode=audio"
    return Verdict(ErrorCode.UNSUPPORTED_MODE, message, None, CloseCode.POLICY_VIOLATION)
