"""A reader of HTTP/1.1 requests of every method, with or without a body. Pure: bytes in, a request out.

`websockets` reads opening handshakes only: it closes the connection on a body and on bytes that are no
request.
"""

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from websockets.datastructures import Headers
from websockets.http11 import Request

from ws_adapter.web.routes import largest_body, opens_session

LONGEST_LINE: Final = 8192
"""The most bytes of a request line or a header field with its CRLF, as in `websockets`."""

MOST_FIELDS: Final = 128
LARGEST_BODY_BYTES: Final = 16 * 2**20
"""The most bytes of a body that are discarded, so that its sender can read the answer."""

LARGEST_HEAD: Final = 2**16
"""The most bytes of a request line with all header fields, which bounds the memory of a slow sender."""

_CHUNKED: Final = "chunked"
_VERSIONS: Final = (b"HTTP/1.1", b"HTTP/1.0")
_TOKEN: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[\x09\x20-\x7e\x80-\xff]*")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_TOO_LARGE: Final = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


@dataclass
class HttpRequest(Request):
    """A request. `fault` is the status of the answer to an invalid one, None for a valid one."""

    method: str = "GET"
    protocol: str = "HTTP/1.1"
    fault: HTTPStatus | None = None
    content: bytes = b""
    """The body, if the path takes one."""

    @property
    def wants_websocket(self) -> bool:
        """Whether the request asks for an upgrade to WebSocket."""
        if self.method != "GET" or self.fault is not None or self.refused_body is not None:
            return False
        return any(value.lower() == "websocket" for value in self.headers.get_all("Upgrade"))

    @property
    def refused_body(self) -> HTTPStatus | None:
        """The status that refuses an unread body; None if there is none."""
        if self.content:
            return None
        if codings := self.headers.get_all("Transfer-Encoding"):
            is_known = ", ".join(codings).strip().lower() == _CHUNKED
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_known else HTTPStatus.NOT_IMPLEMENTED
        lengths = self.headers.get_all("Content-Length")
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if any(length != "0" for length in lengths) else None

    @property
    def size(self) -> int:
        """The declared bytes of the body; 0 without an unambiguous Content-Length."""
        lengths = self.headers.get_all("Content-Length")
        return int(lengths[0]) if len(lengths) == 1 and "Transfer-Encoding" not in self.headers else 0

    @property
    def goes_on(self) -> bool:
        """Whether further bytes of the request may follow, which are discarded."""
        return self.fault is not None or self.refused_body is not None


class RequestReader:
    """A reader of one request from a byte stream. It rejects an invalid request at its first wrong line."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._end = 0
        """The offset of the end of the last line that was read."""
        self._searched = 0
        """The offset up to which there is no end of a further line."""
        self._request: HttpRequest | None = None
        """The request as far as it was read; None before its first line."""
        self._fields = 0
        self._has_head = False

    def feed(self, data: bytes) -> HttpRequest | None:
        """Return the complete request, with its body if its path takes one; None before."""
        self._data += data
        try:
            while not self._has_head:
                if (line := self._next_line()) is None:
                    return None
                self._read_line(line)
        except _Fault as fault:
            return HttpRequest("", Headers(), method="", fault=fault.status)
        request = self._request
        assert request is not None
        if opens_session(request.method, request.path):
            return request  # the session reads its body
        if request.size <= largest_body(request.method, request.path):
            if len(self._data) < self._end + request.size:
                return None
            request.content = bytes(self._data[self._end : self._end + request.size])
        return request

    def split(self) -> tuple[bytes, bytes]:
        """Return the bytes of the head, and the bytes after it; drop both here."""
        data, self._data = bytes(self._data), bytearray()
        return data[: self._end], data[self._end :]

    def _next_line(self) -> bytes | None:
        """Return a line without its CRLF, or None until it is complete. Raises `_Fault`."""
        data, start = self._data, self._end
        if start == 0 and data and not _TOKEN.match(data, 0, 1):
            raise _Fault(HTTPStatus.BAD_REQUEST)  # such as TLS, which may contain no line end
        end = data.find(b"\n", self._searched) + 1
        read = end or len(data)
        if read - start > LONGEST_LINE:
            too_long = HTTPStatus.REQUEST_URI_TOO_LONG if start == 0 else _TOO_LARGE
            raise _Fault(too_long)
        if read > LARGEST_HEAD:
            raise _Fault(_TOO_LARGE)
        self._searched = read
        if not end:
            return None
        if data[end - 2 : end] != b"\r\n":
            raise _Fault(HTTPStatus.BAD_REQUEST)
        self._end = end
        return bytes(data[start : end - 2])

    def _read_line(self, line: bytes) -> None:
        """Add a line to the request. Raises `_Fault` if it is invalid."""
        if self._request is None:
            self._request = _first_line(line)
        elif line:
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise _Fault(_TOO_LARGE)
            _read_field(line, self._request.headers)
        else:
            lengths = self._request.headers.get_all("Content-Length")
            if not all(map(_LENGTH.fullmatch, lengths)):
                raise _Fault(HTTPStatus.BAD_REQUEST)
            self._has_head = True


class _Fault(Exception):
    """An invalid request; `status` is the status of the answer."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status)
        self.status = status


def _first_line(line: bytes) -> HttpRequest:
    method, target, version = (*line.split(b" ", 2), b"", b"")[:3]
    if version.startswith(b"HTTP/") and version not in _VERSIONS:
        raise _Fault(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    if version not in _VERSIONS or not _TOKEN.fullmatch(method) or not target.isascii():
        raise _Fault(HTTPStatus.BAD_REQUEST)
    return HttpRequest(target.decode(), Headers(), method=method.decode(), protocol=version.decode())


def _read_field(line: bytes, headers: Headers) -> None:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise _Fault(HTTPStatus.BAD_REQUEST)
    headers[name.decode()] = value.decode("latin-1")
