"""HTTP/1.1 requests of every method, with or without a body, and the connections over which they come.

The library reads opening handshakes alone and closes the socket on everything else; `parse` takes the place
of its parser for as long as no WebSocket is open.
"""

import asyncio
import re
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.exceptions import HeaderLineTooLong, RequestLineTooLong, TooManyHeaders
from websockets.http11 import Request, parse_headers, parse_line
from websockets.protocol import Protocol
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

LARGEST_BODY_BYTES: Final = 16 * 2**20
"""What is read of a body, and thrown away, so that its sender gets to read the answer."""

LINGER_S: Final = 2.0
"""How long a TLS connection, of which one direction alone cannot be closed, is still read after its answer.
Others are until the client closes theirs, within the time for the opening handshake."""

VERSIONS: Final = (b"HTTP/1.1", b"HTTP/1.0")

_METHOD: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_CHUNKED: Final = "chunked"


@dataclass
class HttpRequest(Request):
    """A request, or what came in place of one: then `fault` is the status to answer it with."""

    fault: HTTPStatus | None = None

    @property
    def wants_websocket(self) -> bool:
        """Whether frames follow it, if it is accepted."""
        if self.method != "GET" or self.fault is not None or self.refused_body is not None:
            return False
        return any(value.lower() == "websocket" for value in self.headers.get_all("Upgrade"))

    @property
    def refused_body(self) -> HTTPStatus | None:
        """The status for a request with a body, which no route takes; None if it has none."""
        if codings := self.headers.get_all("Transfer-Encoding"):
            is_known = ", ".join(codings).strip().lower() == _CHUNKED
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_known else HTTPStatus.NOT_IMPLEMENTED
        lengths = self.headers.get_all("Content-Length")
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if any(int(length) for length in lengths) else None

    @property
    def goes_on(self) -> bool:
        """Whether bytes of it may follow that nobody wants."""
        return self.fault is not None or self.refused_body is not None


class HttpConnection(ServerConnection):
    """A connection that takes any request, so that each can have its answer, whatever else comes with it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plain: HttpRequest | None = None
        """Its request, if that opens no WebSocket."""
        self._has_all_input = False
        self._closing: asyncio.TimerHandle | None = None
        self.protocol.parser = parse(self.protocol)
        next(self.protocol.parser)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Whoever has no more to say may still want the answer; TLS cannot be open in one direction only."""
        if self.plain is not None and self.response is None and self.transport.can_write_eof():
            self._has_all_input = True
            return True
        super().eof_received()
        return None

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        super().connection_lost(error)
        if self._closing is not None:
            self._closing.cancel()

    def end_output(self, *, goes_on: bool) -> None:
        """Nothing more is sent; with `goes_on` the client may not have heard of it, and sends on."""
        if self._has_all_input:
            self.transport.close()
        elif self.transport.can_write_eof():
            with suppress(OSError, RuntimeError):
                self.transport.write_eof()
        elif goes_on or (self.plain is not None and self.plain.goes_on):
            # Closed with input that nobody has read, a socket takes the answer along.
            self._closing = self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()


def parse(protocol: ServerProtocol) -> Generator[None]:
    """Takes the place of `ServerProtocol.parse`, which takes it again once the first event is there: an
    `HttpRequest`. Frames follow."""
    reader = protocol.reader
    try:
        request = yield from _read_request(reader)
    except EOFError:
        reader.discard()
    else:
        protocol.events.append(request)
        while not request.wants_websocket and not (yield from reader.at_eof()):
            reader.discard()
    protocol.parser = Protocol.parse(protocol)
    next(protocol.parser)
    yield


def _read_request(reader: StreamReader) -> Generator[None, None, HttpRequest]:
    """Raises `EOFError` if the stream ends within the request."""
    try:
        while not reader.buffer and not reader.eof:
            yield
        if reader.buffer and not _METHOD.match(reader.buffer[:1]):
            return _unreadable(HTTPStatus.BAD_REQUEST)  # such as TLS, whose first line may never end
        line = yield from parse_line(reader.read_line, RequestLineTooLong)
        method, target, version = line.split(b" ", 2)
        if version not in VERSIONS:
            is_http = version.startswith(b"HTTP/")
            return _unreadable(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED if is_http else HTTPStatus.BAD_REQUEST)
        if not _METHOD.fullmatch(method):
            return _unreadable(HTTPStatus.BAD_REQUEST)
        headers = yield from parse_headers(reader.read_line)
        if not all(_LENGTH.fullmatch(length) for length in headers.get_all("Content-Length")):
            return _unreadable(HTTPStatus.BAD_REQUEST)
        return HttpRequest(target.decode("ascii"), headers, method.decode("ascii"), version.decode("ascii"))
    except RequestLineTooLong:
        return _unreadable(HTTPStatus.REQUEST_URI_TOO_LONG)
    except (HeaderLineTooLong, TooManyHeaders):
        return _unreadable(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    except EOFError:
        if reader.eof:
            raise
        return _unreadable(HTTPStatus.BAD_REQUEST)  # which the library raises for a line without CR, too
    except ValueError:
        return _unreadable(HTTPStatus.BAD_REQUEST)


def _unreadable(fault: HTTPStatus) -> HttpRequest:
    return HttpRequest("", Headers(), "", fault=fault)
