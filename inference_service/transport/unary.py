"""Calls with one request."""

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from antiphon.http2.messages import Message as Data
from inference_service.transport.call import Call, Nobody

Request = TypeVar("Request", bound=Message)

MOST_BYTES: Final = 2**16
"""Of the one request."""

REQUEST_S: Final = 60.0
"""How long it may take to come."""


class Unary(Nobody, Generic[Request]):
    """Reads the request of a call and sends what `answer` makes of it, unless that answers by itself."""

    def __init__(
        self, call: Call, parse: Callable[[bytes], Request], answer: Callable[[Request], Message | None]
    ) -> None:
        self._call = call
        self._parse = parse
        self._answer = answer
        call.messages.most = MOST_BYTES
        call.is_minor = True
        late = f"There was no request in {REQUEST_S:g} s."
        self._patience = asyncio.get_running_loop().call_later(
            REQUEST_S, call.end, grpc.StatusCode.DEADLINE_EXCEEDED, late
        )
        call.take(self)
        call.resume()

    def message_received(self, data: Data) -> None:
        """See `Handler`."""
        self._patience.cancel()
        try:
            request = self._parse(bytes(data))
        except DecodeError:
            self._call.end(grpc.StatusCode.INTERNAL, "The request cannot be parsed.")
            return
        if (answer := self._answer(request)) is not None:
            self._call.write(answer.SerializeToString())
            self._call.end(grpc.StatusCode.OK)

    def half_closed(self) -> None:
        """See `Handler`."""
        self._patience.cancel()
        self._call.end(grpc.StatusCode.INTERNAL, "There is no request.")

    def given_up(self) -> None:
        """See `Handler`."""
        self._patience.cancel()
