"""The address of a server and how a WebSocket to it is opened."""

import ipaddress
from typing import Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import InvalidHandshake, InvalidURI

from antiphon import __version__, refusals
from antiphon.errors import ConnectError

PATH: Final = "/v1/realtime"
CLOSE_TIMEOUT_S: Final = 2.0
"""Longest that closing may take, `session.closed` and the closing handshake included."""

_OPEN_TIMEOUT_S: Final = 10.0
_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_SCHEMES: Final = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


def endpoint(url: str, mode: str) -> str:
    """The WebSocket address of a mode on a server.

    `url` may be the server's root (`ws://localhost:8006`, `http` works as well) or a whole `/v1/realtime`
    address; other query parameters are kept. Raises `ConnectError` if it is no such address.
    """
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise ConnectError(
            f"{url!r} is no address of a server. Write it like ws://localhost:8006.", reason="url"
        )
    path = parts.path.rstrip("/")
    if not path.endswith(PATH):
        path += PATH
    query = [(name, value) for name, value in parse_qsl(parts.query) if name != "mode"]
    return urlunsplit((scheme, parts.netloc, path, urlencode([*query, ("mode", mode)]), ""))


async def open_websocket(url: str, api_key: str | None) -> ClientConnection:
    """Connects, through the proxy of the environment unless on loopback.

    Raises `ConnectError` or `AuthError`.
    """
    proxy: Literal[True] | None = None if _is_loopback(urlsplit(url).hostname or "") else True
    try:
        return await connect_websocket(
            url,
            additional_headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            user_agent_header=f"antiphon-python/{__version__}",
            compression=None,
            proxy=proxy,
            open_timeout=_OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=_MAX_MESSAGE_BYTES,
        )
    except InvalidURI:
        raise ConnectError(f"{url!r} is no WebSocket address.", reason="url") from None
    except InvalidHandshake as error:
        raise refusals.from_handshake(url, error) from error
    except OSError as error:
        raise refusals.from_os_error(url, error) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
