"""A gRPC call that has come, as `https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md` has it."""

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol, cast
from urllib.parse import quote

import grpc
from h2.errors import ErrorCodes

from antiphon.http2.control import Headers
from antiphon.http2.grpc import CONTENT_TYPE, PREFIX, is_grpc
from antiphon.http2.messages import Message, MessageCompressed, Messages, MessageTooLarge
from antiphon.http2.stream import Carrier, Stream
from antiphon.semconv import MAX_MESSAGE_BYTES
from inference_service.errors import SessionError

logger = logging.getLogger(__name__)

_PREFIX_BYTES: Final = PREFIX.size
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_OURS: Final = frozenset({"te", "content-type", "user-agent"})
"""Headers that are nobody else's; those of gRPC and HTTP/2 begin alike."""
_AS_IT_IS: Final = "".join(chr(code) for code in range(0x20, 0x7F) if code != ord("%"))


class Caller(Carrier, Protocol):
    """The connection of a call."""

    def answer(self, call: "Call", headers: Headers, *, is_end: bool) -> None:
        """Sends the headers of an answer, or its trailers, with which the call ends."""

    def give_room(self, call: "Call") -> None:
        """As much may be sent to `call` as it has taken."""

    def repay(self, amount: float) -> None:
        """What was taken of the budget was for something."""


class Handler(Protocol):
    """Who answers a call. Nothing more is told after `given_up`, or after the call was ended."""

    def message_received(self, data: Message) -> None:
        """A request, valid until this returns; unless the call was held, the next one follows."""

    def half_closed(self) -> None:
        """There is no further request."""

    def given_up(self) -> None:
        """The caller does not want an answer any more, is gone, or has broken the protocol."""

    def drained(self) -> None:
        """What was written has left."""


class Nobody(Handler):
    """Answers nothing."""

    def message_received(self, data: Message) -> None:
        """See `Handler`."""

    def half_closed(self) -> None:
        """See `Handler`."""

    def given_up(self) -> None:
        """See `Handler`."""

    def drained(self) -> None:
        """See `Handler`."""


class Call(Stream):
    """One call. Requests are held back until there is a handler who wants them: see `resume`."""

    __slots__ = (
        "_expiry",
        "_handler",
        "_has_begun",
        "_held",
        "_last",
        "cost",
        "has_all",
        "is_held",
        "is_minor",
        "messages",
        "metadata",
        "on_over",
        "path",
    )

    def __init__(self, path: str, metadata: list[tuple[str, str | bytes]]) -> None:
        super().__init__()
        self.path = path
        self.metadata = metadata
        """What the caller has sent with it: texts, and bytes where the name ends with `-bin`."""
        self.cost = 0.0
        """What it took of its caller's budget."""
        self.is_minor = False
        """Whether it may be cut for the sake of others: it holds nothing, and can be made again."""
        self.on_over: Callable[[grpc.StatusCode], None] = _nothing
        """Called once, with how the call has ended: CANCELLED if it was not we who ended it."""
        self._handler: Handler = _NOBODY
        self._expiry: asyncio.TimerHandle | None = None
        self._has_begun = False
        self._last: Headers | None = None
        """The trailers, once nothing comes before them any more."""
        self.is_held = True
        """Whether requests are kept back."""
        self._held = bytearray()
        self.has_all = False
        """Whether the caller sends nothing more."""
        self.messages = Messages(MAX_MESSAGE_BYTES)
        """As far as they have come."""

    # ----------------------------------------------------------------------------------- for who answers

    def take(self, handler: Handler, *metadata: tuple[str, str]) -> None:
        """`handler` answers from now on, with `metadata` before any message. It is held: see `resume`."""
        self._handler = handler
        if self.connection is not None and not self._has_begun:
            self._has_begun = True
            headers = ((":status", "200"), ("content-type", CONTENT_TYPE), _ACCEPTED, *metadata)
            self._caller.answer(self, headers, is_end=False)

    def hold(self) -> None:
        """No further request is told; as many bytes of them as fit into a window are kept."""
        self.is_held = True

    def resume(self) -> None:
        """Requests are told from now on, beginning with those that were held."""
        if not self.is_held or self.connection is None:
            return
        self.is_held = False
        if held := self._held:
            self._held = bytearray()
            self._read(memoryview(held))
        if self.is_held or self.connection is None:
            return
        if self.has_all:
            self._half_close()
        else:
            self._caller.give_room(self)

    @property
    def is_busy(self) -> bool:
        """Whether something that was written has yet to leave; the handler is told when it has."""
        return bool(self.waiting)

    def write(self, message: bytes) -> None:
        """Sends a message behind those written before; never waits. After the end it does nothing."""
        if self.connection is not None:
            size = len(message)
            self.connection.send(self, _PREFIX_BYTES + size, PREFIX.pack(0, size), message)

    def end(self, code: grpc.StatusCode, message: str = "", details: bytes = b"") -> None:
        """Ends the call after what was written; `details` are a serialised `google.rpc.Status`."""
        if self.connection is None or self._last is not None:
            return
        self._handler = _NOBODY
        headers = [("grpc-status", str(code.value[0]))]
        if message:
            headers.append(("grpc-message", quote(message, _AS_IT_IS)))
        if details:
            headers.append(("grpc-status-details-bin", base64.b64encode(details).decode().rstrip("=")))
        if not self._has_begun:
            headers = [(":status", "200"), ("content-type", CONTENT_TYPE), _ACCEPTED, *headers]
        self._last = headers
        self._over(code)
        if not self.waiting:
            self._caller.answer(self, headers, is_end=True)

    def fail(self, error: SessionError) -> None:
        """Ends the call with `error` after what was written."""
        self.end(error.code, error.message, error.status().SerializeToString())

    def abort(self) -> None:
        """Ends the call without what waits to leave."""
        if self.connection is not None:
            self._handler = _NOBODY
            self._over(grpc.StatusCode.CANCELLED)
            self._caller.reset(self, ErrorCodes.CANCEL)

    def repay(self) -> None:
        """It was made for something: its caller has back what it took."""
        if self.connection is not None:
            self._caller.repay(self.cost)
            self.cost = 0.0

    @property
    def _caller(self) -> Caller:
        return cast(Caller, self.connection)

    def expire_in(self, seconds: float) -> None:
        """The caller waits so long and no longer."""
        self._expiry = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self.connection is not None:
            self._give_up(grpc.StatusCode.DEADLINE_EXCEEDED, "The deadline of the caller is over.")

    def _give_up(self, code: grpc.StatusCode, message: str) -> None:
        """Ends the call though its handler did not."""
        handler, self._handler = self._handler, _NOBODY
        if self.waiting:  # which the caller does not read
            self.abort()
        else:
            self.end(code, message)
        handler.given_up()

    def _over(self, code: grpc.StatusCode) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        on_over, self.on_over = self.on_over, _nothing
        on_over(code)

    # ------------------------------------------------------------------------------- from the connection

    def broken(self, why: str) -> None:
        """See `Stream`."""
        handler, self._handler = self._handler, _NOBODY
        self._held.clear()
        self._over(grpc.StatusCode.CANCELLED)
        handler.given_up()

    def drained(self) -> None:
        """See `Stream`."""
        if self._last is None:
            self._handler.drained()
        elif self.connection is not None:
            self._caller.answer(self, self._last, is_end=True)

    def ended(self) -> None:
        """The caller sends nothing more, and `has_all` says so."""
        if not self.is_held:
            self._half_close()

    def _half_close(self) -> None:
        if self.messages.is_between:
            self._handler.half_closed()
        else:
            self._give_up(grpc.StatusCode.INTERNAL, "The last message is incomplete.")

    def data_received(self, data: memoryview) -> None:
        """See `Stream`."""
        if self.is_held:
            self._held += data
        elif self._last is None:
            self._read(data)

    def _read(self, data: memoryview) -> None:
        try:
            rest = self.messages.read(data, self._take)
        except MessageTooLarge as error:
            self._give_up(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except MessageCompressed as error:
            self._give_up(grpc.StatusCode.UNIMPLEMENTED, str(error))
        else:
            if self.is_held:
                self._held += rest

    def _take(self, message: Message) -> bool:
        try:
            self._handler.message_received(message)
        except Exception:
            logger.exception("a request could not be handled")
            self._give_up(grpc.StatusCode.INTERNAL, "The call failed inside the worker.")
        return not self.is_held and self._last is None and self.connection is not None


class MalformedRequest(Exception):
    """A request that is no gRPC call; `status` is HTTP's word for it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status


def read_head(headers: Iterable[tuple[bytes, bytes]]) -> tuple[Call, float | None]:
    """The call that a request is, and for how many seconds the caller will wait.

    Raises `MalformedRequest`. Metadata that cannot be read is left out.
    """
    path = ""
    method = content_type = b""
    timeout: float | None = None
    metadata: list[tuple[str, str | bytes]] = []
    for raw, value in headers:
        name = raw.decode("latin-1")
        match name:
            case ":path":
                path = value.decode("latin-1")
            case ":method":
                method = value
            case "content-type":
                content_type = value
            case "grpc-timeout":
                timeout = _seconds(value)
            case _ if name in _OURS or name.startswith((":", "grpc-")):
                pass
            case _ if name.endswith("-bin"):
                with suppress(binascii.Error):
                    metadata.append((name, base64.b64decode(value + b"=" * (-len(value) % 4))))
            case _:
                metadata.append((name, value.decode("latin-1")))
    if method != b"POST":
        raise MalformedRequest(405)
    if not is_grpc(content_type.decode("latin-1")):
        raise MalformedRequest(415)
    return Call(path, metadata), timeout


def _seconds(value: bytes) -> float:
    match = _TIMEOUT.fullmatch(value.decode("latin-1"))
    if match is None:
        raise MalformedRequest(400)
    return int(match[1]) * _UNITS[match[2]]


def _nothing(code: grpc.StatusCode) -> None:
    pass


_NOBODY: Final = Nobody()
_ACCEPTED: Final = ("grpc-accept-encoding", "identity")
