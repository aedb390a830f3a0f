"""The choice of the protocol state machine for a session, by dialect and mode."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from ws_adapter.process.clock import Clock
from ws_adapter.protocol.chat.realtime_chat import RealtimeChat
from ws_adapter.protocol.chat.ws_chat import Chat
from ws_adapter.protocol.completions.machine import CompletionMachine
from ws_adapter.protocol.core.config import Catalogue, Mode
from ws_adapter.protocol.core.machine import Machine
from ws_adapter.protocol.duplex.machine import DuplexMachine
from ws_adapter.protocol.duplex.negotiation import DialectNegotiator
from ws_adapter.protocol.duplex.ws_duplex import Duplex
from ws_adapter.protocol.live.machine import Live
from ws_adapter.protocol.realtime_ga.machine import RealtimeGa
from ws_adapter.protocol.realtime_ga.wire.fields import SessionFields
from ws_adapter.protocol.transcription.machine import Transcription
from ws_adapter.protocol.transcription_ga import events as transcription_ga
from ws_adapter.protocol.transcription_ga.machine import ProtocolChooser, TranscriptionGa
from ws_adapter.protocol.wire.limits import Limits
from ws_adapter.web.routes import Dialect, Selection
from ws_adapter.web.session_ids import new_token


class MachineFactory:
    """The factory of protocol state machines."""

    def __init__(self, clock: Clock) -> None:
        """`clock` is the source of the Unix time in ids."""
        self._clock = clock
        self._last_earlier_id = 0

    def make(
        self,
        selection: Selection,
        session_id: str,
        limits: Limits,
        catalogue: Callable[[], Catalogue | None],
        clock: Clock,
        recording_id: str | None = None,
    ) -> Machine:
        """Make the machine of one session.

        `catalogue` returns the catalogue of the session, None while no worker is known. `recording_id` is the
        id of its recording, None without one. `clock` is the clock of the session.
        """
        make = MACHINES[selection.dialect, selection.mode]
        return make(
            _MachineParts(
                selection,
                session_id,
                limits,
                recording_id,
                catalogue,
                clock,
                self._new_earlier_id,
            )
        )

    def _new_earlier_id(self) -> str:
        """Return `rt_` and Unix milliseconds, raised by 1 where two would be equal."""
        self._last_earlier_id = max(self._last_earlier_id + 1, round(self._clock.unix() * 1000))
        return f"rt_{self._last_earlier_id}"


@dataclass(frozen=True, slots=True)
class _MachineParts:
    """The arguments for making a machine."""

    selection: Selection
    session_id: str
    limits: Limits
    recording_id: str | None
    catalogue: Callable[[], Catalogue | None]
    clock: Clock
    new_earlier_id: Callable[[], str]


def _realtime(parts: _MachineParts) -> Machine:
    vocabulary = DialectNegotiator(
        parts.session_id,
        parts.selection.mode,
        parts.limits.max_append_s,
        new_token,
        parts.new_earlier_id,
        parts.recording_id,
    )
    return DuplexMachine(vocabulary, parts.limits, parts.catalogue, new_token)


def _realtime_chat(parts: _MachineParts) -> Machine:
    return RealtimeChat(parts.session_id, parts.limits, parts.catalogue, new_token, parts.recording_id)


def _duplex(parts: _MachineParts) -> Machine:
    # Clients of this dialect expect exactly one result for each chunk, so no silent tail may follow.
    limits = replace(parts.limits, silence_tail_units=0)
    vocabulary = Duplex(
        parts.selection.label or parts.session_id,
        parts.selection.mode,
        limits,
        new_token,
        announces_slot=parts.selection.announces_slot,
        recording_id=parts.recording_id,
    )
    return DuplexMachine(vocabulary, limits, parts.catalogue, new_token)


def _chat(parts: _MachineParts) -> Machine:
    return Chat(parts.limits, parts.catalogue, parts.recording_id)


def _completion(parts: _MachineParts) -> Machine:
    created = int(parts.clock.unix())
    return CompletionMachine(parts.limits, parts.catalogue, secrets.token_hex(12), created)


def _transcription(parts: _MachineParts) -> Machine:
    created = int(parts.clock.unix())
    if parts.selection.may_be_ga:
        return ProtocolChooser(parts.session_id, created, parts.limits, parts.catalogue, new_token)
    return Transcription(parts.session_id, created, parts.limits, parts.catalogue)


def _transcription_ga(parts: _MachineParts) -> Machine:
    session, shape = parts.selection.session, transcription_ga.SessionFields
    return TranscriptionGa(
        parts.session_id,
        int(parts.clock.unix()),
        parts.limits,
        parts.catalogue,
        new_token,
        msgspec.json.decode(session, type=shape) if session else None,
    )


def _live(parts: _MachineParts) -> Machine:
    clock = parts.clock
    return Live(
        parts.session_id,
        parts.limits,
        parts.catalogue,
        new_token,
        lambda at: clock.unix() + at - clock.now(),
    )


def _realtime_ga(parts: _MachineParts) -> Machine:
    clock, selection = parts.clock, parts.selection
    given = msgspec.json.decode(selection.session, type=SessionFields) if selection.session else None
    return RealtimeGa(
        parts.session_id,
        selection.model or (given.model if given is not None else None) or "",
        parts.limits,
        parts.catalogue,
        new_token,
        lambda at: clock.unix() + at - clock.now(),
        given,
    )


MACHINES: Final[dict[tuple[Dialect, Mode], Callable[[_MachineParts], Machine]]] = {
    (Dialect.REALTIME, Mode.AUDIO): _realtime,
    (Dialect.REALTIME, Mode.VIDEO): _realtime,
    (Dialect.REALTIME, Mode.CHAT): _realtime_chat,
    (Dialect.DUPLEX, Mode.AUDIO): _duplex,
    (Dialect.DUPLEX, Mode.VIDEO): _duplex,
    (Dialect.CHAT, Mode.CHAT): _chat,
    (Dialect.COMPLETIONS, Mode.CHAT): _completion,
    (Dialect.TRANSCRIPTION, Mode.TRANSCRIPTION): _transcription,
    (Dialect.LIVE, Mode.AUDIO): _live,
    (Dialect.REALTIME_GA, Mode.CHAT): _realtime_ga,
    (Dialect.REALTIME_GA, Mode.AUDIO): _realtime_ga,
    (Dialect.TRANSCRIPTION_GA, Mode.TRANSCRIPTION): _transcription_ga,
}
"""The functions that make the machines, by dialect and mode."""
