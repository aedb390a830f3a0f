"""`/v1/realtime` before its dialect is known: the first initialising event chooses it."""

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec.structs import replace

from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.duplex import earlier_events, realtime_events
from ws_adapter.protocol.duplex.earlier import Earlier
from ws_adapter.protocol.duplex.realtime import Realtime
from ws_adapter.protocol.duplex.vocabulary import Begin, Command, Vocabulary
from ws_adapter.protocol.wire.codec import EventDecoder

_AnyEvent: TypeAlias = realtime_events.ClientEvent | earlier_events.ClientEvent

_DECODER: Final[EventDecoder[_AnyEvent]] = EventDecoder(_AnyEvent)


class DialectNegotiator(Realtime):
    """The vocabulary before the choice. It reads client events of both dialects; its server events, for the
    queue and errors, are the same in both.

    `new_earlier_id` makes the session id of the earlier dialect.
    """

    def __init__(
        self,
        session_id: str,
        mode: Mode,
        max_append_s: float,
        new_token: Callable[[], str],
        new_earlier_id: Callable[[], str],
        recording_id: str | None = None,
    ) -> None:
        super().__init__(session_id, mode, max_append_s, new_token, recording_id)
        self._realtime = Realtime(session_id, mode, max_append_s, new_token, recording_id)
        self._new_earlier: Callable[[str], Earlier] = lambda earlier_id: Earlier(
            earlier_id, mode, max_append_s, new_token, recording_id
        )
        self._new_earlier_id = new_earlier_id

    def restored(self, saved: str) -> Vocabulary:
        return self._new_earlier(saved) if saved else self._realtime

    def decode(self, frame: bytes, *, drops_input: bool = False) -> Command:
        event = _DECODER.decode(frame, sized_only=drops_input)
        if not isinstance(event, earlier_events.SessionUpdate | earlier_events.AudioAppend):
            return self._realtime.command(event)
        command = self._new_earlier("").command(event)
        if isinstance(command, Begin):
            return replace(command, choose=lambda: self._new_earlier(self._new_earlier_id()))
        return command
