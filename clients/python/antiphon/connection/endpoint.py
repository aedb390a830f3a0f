"""Addresses of a server's services, and the opening and closing of WebSockets."""

import contextlib
import ipaddress
from typing import Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import InvalidHandshake, InvalidURI

from antiphon.connection import refusals
from antiphon.errors import ConnectError
from antiphon.version import VERSION

REALTIME: Final = "/v1/realtime"
CHAT: Final = "/ws/chat"
TRANSCRIPTION: Final = "/v1/transcription"
LIVE: Final = "/v1/live/sessions"
MODELS: Final = "/v1/models"
DEFAULT_VOICE: Final = "/api/default_ref_audio"

_PATHS: Final = (REALTIME, CHAT, TRANSCRIPTION, LIVE)
_MODE: Final = ("mode", "intent")
"""The query parameters that choose the dialect of `/v1/realtime`; `endpoint` replaces them by its `mode`."""

NORMAL_CLOSURE: Final = 1000
CLOSE_TIMEOUT_S: Final = 2.0
"""The longest time in seconds for closing, including `session.closed` and the closing handshake."""

_OPEN_TIMEOUT_S: Final = 10.0
_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_MAX_WAITING_MESSAGES: Final = 8192
"""The limit of unread messages before back-pressure stops the server: a chat answer of 4096 tokens fits."""

_EXAMPLE: Final = "Write it like ws://localhost:8006."
_SCHEMES: Final = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


def endpoint(url: str, path: str, mode: str | None = None) -> str:
    """Return the WebSocket address of the service at `path`; `mode` is only for `/v1/realtime`.

    `url` may be the server's root (`ws://localhost:8006`, `http` works as well) or the whole address of any
    of its services. Other query parameters are kept. Raises `ConnectError` for any other address.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        why = f" ({error})"
        raise ConnectError(f"{url!r} is no address of a server{why}. {_EXAMPLE}", reason="url") from None
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname or port == 0:
        raise ConnectError(f"{url!r} is no address of a server. {_EXAMPLE}", reason="url")
    root = parts.path.rstrip("/")
    for known in _PATHS:
        root = root.removesuffix(known)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name not in _MODE]
    if mode is not None:
        query.append(("mode", mode))
    return urlunsplit((scheme, parts.netloc, root + path, urlencode(query), ""))


def page(url: str, path: str) -> str:
    """Return the HTTP address of a page of the server at `url`. Raises `ConnectError` like `endpoint`."""
    return "http" + urlunsplit(urlsplit(endpoint(url, path))._replace(query="")).removeprefix("ws")


async def open_websocket(
    url: str, api_key: str | None, max_message_bytes: int = _MAX_MESSAGE_BYTES
) -> ClientConnection:
    """Open a WebSocket, through the proxy of the environment unless the server is on loopback.

    Raises `ConnectError` or `AuthError`.
    """
    proxy: Literal[True] | None = None if is_loopback(url) else True
    try:
        return await connect_websocket(
            url,
            additional_headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            user_agent_header=f"antiphon-python/{VERSION}",
            compression=None,
            proxy=proxy,
            open_timeout=_OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=max_message_bytes,
            max_queue=_MAX_WAITING_MESSAGES,
        )
    except InvalidURI:
        raise ConnectError(f"{url!r} is no WebSocket address.", reason="url") from None
    except InvalidHandshake as error:
        raise refusals.from_handshake(url, error) from error
    except OSError as error:
        raise refusals.from_os_error(url, error) from error


async def close_websocket(socket: ClientConnection, code: int = NORMAL_CLOSURE) -> None:
    """Close the WebSocket and wait at most 2 s for the peer. Repeated calls do nothing."""
    # The library aborts a transport; one that has closed by itself has no event loop any more.
    with contextlib.suppress(AttributeError):
        await socket.close(code)


def is_loopback(url: str) -> bool:
    """Return whether the server is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
