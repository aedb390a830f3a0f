"""HTTP/1.1 requests of every method, with or without a body."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from websockets.datastructures import Headers
from websockets.http11 import Request

LARGEST_BODY_BYTES: Final = 16 * 2**20
"""What is read of a body, and thrown away, so that its sender gets to read the answer."""

_CHUNKED: Final = "chunked"


@dataclass
class HttpRequest(Request):
    """A request, or what came in place of one: then `fault` is the status to answer it with."""

    fault: HTTPStatus | None = None
    content: bytes = b""
    """Its body, where the path takes one."""

    @property
    def wants_websocket(self) -> bool:
        """Whether frames follow it, if it is accepted."""
        if self.method != "GET" or self.fault is not None or self.refused_body is not None:
            return False
        return any(value.lower() == "websocket" for value in self.headers.get_all("Upgrade"))

    @property
    def refused_body(self) -> HTTPStatus | None:
        """The status for a request with a body that was not read; None if it has none."""
        if self.content:
            return None
        if codings := self.headers.get_all("Transfer-Encoding"):
            is_known = ", ".join(codings).strip().lower() == _CHUNKED
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_known else HTTPStatus.NOT_IMPLEMENTED
        lengths = self.headers.get_all("Content-Length")
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if any(int(length) for length in lengths) else None

    @property
    def size(self) -> int:
        """Bytes of its body, if it says so plainly; else 0."""
        lengths = self.headers.get_all("Content-Length")
        return int(lengths[0]) if len(lengths) == 1 and "Transfer-Encoding" not in self.headers else 0

    @property
    def goes_on(self) -> bool:
        """Whether bytes of it may follow that nobody wants."""
        return self.fault is not None or self.refused_body is not None


def unreadable(fault: HTTPStatus) -> HttpRequest:
    """What stands for bytes that are no request."""
    return HttpRequest("", Headers(), "", fault=fault)
