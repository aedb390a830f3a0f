"""One of the three calls of a session: it handles requests in order and writes answers in order."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from google.protobuf.message import Message

from inference_service.errors import PayloadInvalid, SessionError
from inference_service.rpc.messages import requests
from inference_service.rpc.transport.call import Call, Handler
from inference_service.rpc.transport.outbox import Outbox
from inference_service.session.units import Stream

DecodedContent = Callable[[], Any]
"""Returns the decoded request, or raises its error."""


class CallOwner(Protocol):
    """The session that owns a call."""

    def may_read(self, stream: Stream) -> bool:
        """Return whether a request of `stream` may be handled now."""

    def may_handle(self, stream: Stream, request: Message) -> bool:
        """Return whether `request`, which was read, may be handled now."""

    async def decode(self, stream: Stream, data: bytes) -> tuple[Message, DecodedContent]:
        """Decode a large request in a thread; return it with a function that returns its content.

        Raises `PayloadInvalid`.
        """

    def handle(self, stream: Stream, request: Message, made: DecodedContent | None) -> None:
        """Handle a request."""

    def half_close(self, stream: Stream) -> None:
        """Handle the half-close of `stream`."""

    def fail(self, error: SessionError) -> None:
        """Fail the session."""

    def give_up(self, stream: Stream) -> None:
        """Give up the session because its caller is gone."""

    def answered(self) -> None:
        """Handle that the waiting answers have been written."""

    def end_call(self, stream: Stream, call: Call) -> None:
        """Handle that everything has been written."""


class SessionCall(Handler):
    """One of the three calls of a session. It reads nothing before `go_on`."""

    def __init__(self, stream: Stream, call: Call, session: CallOwner, outbox: Outbox[Any]) -> None:
        self._stream = stream
        self._call = call
        self._session = session
        self._outbox = outbox
        self._parse = requests.REQUESTS[stream].FromString
        self._decoding: asyncio.Task[None] | None = None
        self._next: tuple[Message, DecodedContent | None] | None = None
        """A request that was read and may not be handled yet; None if there is none."""

    def go_on(self) -> None:
        """Read and handle requests again, if nothing holds them back any more."""
        if not self._call.is_held or self._decoding is not None:
            return
        if self._next is not None:
            request, made = self._next
            if not self._session.may_handle(self._stream, request):
                return
            self._next = None
            self._session.handle(self._stream, request, made)
        if self._session.may_read(self._stream):
            self._call.resume()

    # ---------------------------------------------------------------------------------------- requests

    def message_received(self, data: bytes) -> None:
        if len(data) > requests.LARGE:
            self._call.hold()
            self._decoding = asyncio.create_task(self._decode(data))
            return
        try:
            request = requests.decoded(self._parse, data)
        except PayloadInvalid as error:
            self._session.fail(error.with_traceback(None))
            return
        self._handle(request, None)

    async def _decode(self, data: bytes) -> None:
        try:
            request, made = await self._session.decode(self._stream, data)
        except PayloadInvalid as error:
            self._session.fail(error.with_traceback(None))
            return
        finally:
            self._decoding = None
        self._handle(request, made)
        self.go_on()

    def _handle(self, request: Message, made: DecodedContent | None) -> None:
        if not self._session.may_handle(self._stream, request):
            self._next = (request, made)
            self._call.hold()
            return
        self._session.handle(self._stream, request, made)
        if not self._session.may_read(self._stream):
            self._call.hold()

    def half_closed(self) -> None:
        self._session.half_close(self._stream)

    def given_up(self) -> None:
        self._stop()
        self._outbox.close()
        self._session.give_up(self._stream)

    def drained(self) -> None:
        self._outbox.flush()
        self._session.answered()

    def cut(self, error: SessionError) -> None:
        """End the call with `error` and drop the waiting answers, which the caller had time to read."""
        self._stop()
        self._outbox.close()
        self._call.discard()
        self._call.fail(error)

    def _stop(self) -> None:
        if self._decoding is not None:
            self._decoding.cancel()

    # ----------------------------------------------------------------------------------------- answers

    @property
    def is_busy(self) -> bool:
        return self._call.is_busy

    def write(self, message: Message) -> None:
        self._call.write(message.SerializeToString())

    def finish(self) -> None:
        self._stop()
        self._session.end_call(self._stream, self._call)
