"""Who may come in: what is decided in HTTP, before a WebSocket opens."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from websockets.http11 import Request, Response

from antiphon.semconv import Rejection
from ws_adapter import pages
from ws_adapter.clock import Clock
from ws_adapter.keys import Key, Keys
from ws_adapter.options import AdapterOptions
from ws_adapter.routes import key_in_query, offered_subprotocols
from ws_adapter.visitors import TooMany, Visitors, visitor_address, visitor_name

KEY_SUBPROTOCOL: Final = "openai-insecure-api-key."
"""How a browser, which cannot set headers, sends a key: as a subprotocol beside the real one."""

_BEARER: Final = "bearer "
_WHERE: Final = "send it as Authorization: Bearer KEY or as the subprotocol openai-insecure-api-key.KEY"


class Denied(Exception):
    """Somebody may not come in: `response` is the answer, `reason` what is counted."""

    def __init__(self, reason: Rejection, response: Response) -> None:
        super().__init__(response.reason_phrase)
        self.reason = reason
        self.response = response


@dataclass(frozen=True)
class Pass:
    """Somebody may come in. `leave` is to be called once when the connection has ended."""

    key: Key | None
    leave: Callable[[], None]


class Access:
    """Origins, keys and how often somebody may connect."""

    def __init__(self, options: AdapterOptions, clock: Clock) -> None:
        """Reads the file of keys, if there is one. Raises `ConfigurationError`."""
        self._keys = Keys(options.keys) if options.keys is not None else None
        self._in_query = options.auth_query
        self._origins = options.allowed_origins and {origin.lower() for origin in options.allowed_origins}
        self._proxies = options.proxies
        self._addresses = Visitors(
            clock, "address", options.opens_per_min_per_address, options.connections_per_address
        )
        self._holders = Visitors(clock, "key", options.opens_per_min_per_key, options.connections_per_key)

    def reload(self) -> None:
        """Reads the file of keys again. Raises `ConfigurationError`, and then all stays as it was."""
        if self._keys is not None:
            self._keys.reload()

    def is_withdrawn(self, key: Key | None) -> bool:
        """Whether the key somebody came in with no longer counts."""
        return key is not None and self._keys is not None and self._keys.current(key) is None

    def enter(self, request: Request, peer: str) -> Pass:
        """Lets a WebSocket from the address `peer` in. Raises `Denied`.

        What was counted on the way is given back if a later check fails, except the attempt itself.
        """
        self.check_origin(request)
        with ExitStack() as leaves:
            try:
                address = visitor_address(peer, request.headers.get_all("X-Forwarded-For"), self._proxies)
                if not address.is_loopback:
                    leaves.callback(self._addresses.enter(visitor_name(address)))
                key = self.identify(request)
                if key is not None:
                    leaves.callback(self._holders.enter(key.hash))
            except TooMany as error:
                raise Denied(Rejection.RATE, pages.too_many(error.message, error.retry_s)) from None
            return Pass(key, leaves.pop_all().close)

    def check_origin(self, request: Request) -> None:
        """Raises `Denied` for a web page that may not use the adapter."""
        origins = request.headers.get_all("Origin")
        if self._origins and any(origin.lower() not in self._origins for origin in origins):
            message = "pages of this origin may not use this server; its operator can allow them"
            raise Denied(Rejection.ORIGIN, pages.forbidden(message))

    def identify(self, request: Request, *, admin: bool = False) -> Key | None:
        """The key of a request; None if none is needed. Raises `Denied` without a valid one.

        With `admin` only an admin's key will do.
        """
        if self._keys is None:
            return None
        secret = self._secret(request)
        if not secret:
            raise Denied(Rejection.AUTH, pages.unauthorized(f"a key is needed: {_WHERE}"))
        key = self._keys.find(secret)
        if key is None:
            message = "the key is not known here; ask the operator for another"
            raise Denied(Rejection.AUTH, pages.unauthorized(message))
        if admin and not key.is_admin:
            raise Denied(Rejection.AUTH, pages.forbidden("this needs the key of an admin"))
        return key

    def _secret(self, request: Request) -> str:
        """What was sent as a key: in a header, as a subprotocol, in the query; the first that is there."""
        for value in request.headers.get_all("Authorization"):
            if value.lower().startswith(_BEARER):
                return value[len(_BEARER) :].strip()
        for name in offered_subprotocols(request.headers.get_all("Sec-WebSocket-Protocol")):
            if name.startswith(KEY_SUBPROTOCOL):
                return name.removeprefix(KEY_SUBPROTOCOL)
        return key_in_query(request.path) if self._in_query else ""
