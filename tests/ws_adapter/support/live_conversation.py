"""The dialect of `/v1/live/sessions` without a network."""

import base64
from typing import Any

import numpy as np

from tests.support.schemas import Event
from tests.ws_adapter.support import tokens as counted
from tests.ws_adapter.support.conversation import CATALOGUE, SPEECH, ready_signal
from tests.ws_adapter.support.driven import Driven
from tests.ws_adapter.support.realtime_ga_conversation import told as types_of
from ws_adapter.protocol.core.actions import Send
from ws_adapter.protocol.core.answer import Answer
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import (
    Finalized,
    Piece,
    TextPurpose,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.live.machine import Live
from ws_adapter.protocol.live.sound import PCM_24K, Format
from ws_adapter.protocol.wire.limits import Limits

AUDIO = "session.output_audio.delta"


def start(**session: Any) -> Event:
    """A `session.start`."""
    return {"type": "session.start", "event_id": "start", "session": {"model": "antiphon-mini", **session}}


def append(seconds: float = 1.0, level: float = 0.0, format: Format = PCM_24K) -> Event:
    """Audio of equal samples."""
    samples = np.full(round(seconds * format.rate_hz), level, np.float32)
    return {"type": "session.input_audio.append", "audio": base64.b64encode(format.encode(samples)).decode()}


class LiveConversation(Driven):
    """One session with a clock of its own; `sent` holds the events as a client would parse them."""

    def __init__(self, catalogue: Catalogue | None = CATALOGUE, **limits: Any) -> None:
        super().__init__("/v1/live/sessions", catalogue, Limits(**limits))
        self.finished = 0
        """Units that the worker has answered."""
        self.answers: list[Answer] = []
        self.open()

    def new_dialect(self) -> Live:
        catalogue = self._catalogue
        return Live(
            "sess_0123456789ab", self._limits, lambda: catalogue, lambda: "0a", lambda at: at + 10_000
        )

    def carry_out(self, action: Action) -> list[Action]:
        if isinstance(action, Send) and action.answer is not None:
            self.answers.append(action.answer)
        return super().carry_out(action)

    def begin(self, *, reads: frozenset[TextPurpose] = frozenset(), **session: Any) -> Event:
        """Bring the session to ACTIVE with a model that reads texts for `reads`; return `session.started`."""
        self.client(start(**session))
        self.grant()
        return self.worker(ready_signal(text_purposes=reads))[0]

    def finish(self, end: UnitEnd = UnitEnd.LISTEN, text: str = "", **done: Any) -> list[Event]:
        """All that the worker says about its oldest unit, which speaks a second if there is a text."""
        self.finished += 1
        unit = self.finished
        pieces = [Piece(unit, text, SPEECH)] if text else []
        done = {"context_tokens": 819, "tokens": counted.tokens(input_audio=10, output_text=1), **done}
        return self.worker(*pieces, UnitDone(unit, end, **done), Finalized(unit))

    def listen_through(self) -> None:
        """Let the worker only listen in all its units."""
        while len(self.runs) > self.finished:
            self.finish(UnitEnd.LISTEN)

    def talk(self, *units: tuple[UnitEnd, str], level: float = 0.0) -> list[Event]:
        """A second of input and a little for each unit, each answered as soon as it is there."""
        before = len(self.sent)
        for end, text in units:
            while len(self.runs) <= self.finished:
                self.client(append(0.1, level))
                self.wait(0.1)
            self.finish(end, text)
        return self.sent[before:]


def sound(events: list[Event]) -> bytes:
    """Return the audio in `events`."""
    return b"".join(base64.b64decode(event["delta"]) for event in events if event["type"] == AUDIO)


def told(events: list[Event]) -> list[str]:
    """`type` of each event but audio, `error:CODE` of errors."""
    return types_of([event for event in events if event["type"] != AUDIO])
