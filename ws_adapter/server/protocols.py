"""The state machine for each kind of WebSocket."""

import secrets
from collections.abc import Callable
from dataclasses import replace

from ws_adapter.process.clock import Clock
from ws_adapter.protocol.chat.realtime_chat import RealtimeChat
from ws_adapter.protocol.chat.ws_chat import Chat
from ws_adapter.protocol.core.config import Catalogue, Mode
from ws_adapter.protocol.core.machine import Machine
from ws_adapter.protocol.core.vocabulary import Vocabulary
from ws_adapter.protocol.duplex.machine import DuplexMachine
from ws_adapter.protocol.duplex.negotiation import Opening
from ws_adapter.protocol.duplex.ws_duplex import Duplex
from ws_adapter.protocol.transcription.machine import Transcription
from ws_adapter.protocol.wire.limits import Limits
from ws_adapter.web.routes import Dialect, Selection


def new_id(prefix: str) -> str:
    """`prefix`, an underscore and 12 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(6)}"


def new_session_id(dialect: Dialect) -> str:
    """What a session is called, in the form that the dialect has for it."""
    if dialect is Dialect.TRANSCRIPTION:
        return f"sess-{secrets.token_hex(16)}"
    return new_id("sess")


class MachineMaker:
    """Makes machines; `catalogue` tells what the workers serve, None while none is known."""

    def __init__(self, catalogue: Callable[[], Catalogue | None], clock: Clock) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._last_earlier_id = 0

    def make(
        self, selection: Selection, session_id: str, limits: Limits, recording_id: str | None = None
    ) -> Machine:
        """The machine of one session; `recording_id` is that of its recording, if one is made."""
        vocabulary: Vocabulary
        match selection.dialect:
            case Dialect.REALTIME if selection.mode is Mode.CHAT:
                return RealtimeChat(session_id, limits, self._catalogue, new_id, recording_id)
            case Dialect.CHAT:
                return Chat(limits, self._catalogue, recording_id)
            case Dialect.REALTIME:
                vocabulary = Opening(
                    session_id,
                    selection.mode,
                    limits.max_append_s,
                    new_id,
                    self._new_earlier_id,
                    recording_id,
                )
            case Dialect.DUPLEX:
                # Its clients count one result for each chunk they send.
                limits = replace(limits, silence_tail_units=0)
                vocabulary = Duplex(
                    selection.label or session_id,
                    selection.mode,
                    limits,
                    new_id,
                    announces_slot=selection.announces_slot,
                    recording_id=recording_id,
                )
            case Dialect.TRANSCRIPTION:
                return Transcription(session_id, int(self._clock.unix()), limits, self._catalogue)
        return DuplexMachine(vocabulary, limits, self._catalogue, new_id)

    def _new_earlier_id(self) -> str:
        """`rt_` and Unix milliseconds, raised by 1 where two would be equal."""
        self._last_earlier_id = max(self._last_earlier_id + 1, round(self._clock.unix() * 1000))
        return f"rt_{self._last_earlier_id}"
