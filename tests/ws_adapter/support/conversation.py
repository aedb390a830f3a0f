"""A dialect without a network: events go in, actions are carried out, everything is recorded."""

import base64
from typing import Any, ClassVar

import numpy as np

from antiphon.contract import Reason
from tests.ws_adapter.support import tokens as counted
from tests.ws_adapter.support.driven import Driven
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from ws_adapter.protocol.core.actions import Send, Withdraw
from ws_adapter.protocol.core.answer import Outcome
from ws_adapter.protocol.core.config import Catalogue, Mode
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import Finalized, Piece, Ready, UnitDone, UnitEnd
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.duplex.machine import DuplexMachine
from ws_adapter.protocol.duplex.negotiation import DialectNegotiator
from ws_adapter.protocol.duplex.vocabulary import Vocabulary
from ws_adapter.protocol.wire.limits import Limits

Event = dict[str, Any]

CATALOGUE = catalogue_of(voices={"amber"})


def pcm(seconds: float = 1.0, level: float = 0.1) -> str:
    """Return the Base64 of float32 audio at 16 kHz."""
    return base64.b64encode(np.full(round(seconds * 16_000), level, "<f4").tobytes()).decode()


def append(seconds: float = 1.0, **fields: Any) -> Event:
    return {"type": "input.append", "input": {"audio": pcm(seconds), **fields}}


INIT: Event = {"type": "session.init", "payload": {}}
CLOSE: Event = {"type": "session.close", "reason": "user_stop"}
SPEECH = np.full(24_000, 0.25, "<f4").tobytes()


class Conversation(Driven):
    """One dialect with a clock of its own; `sent` holds the events as a client would parse them.

    With `hold_output` sent events stay in an outbox until `flush_output`, so that they can be withdrawn.
    """

    dialect: DuplexMachine
    opener: ClassVar[Event] = INIT

    def __init__(
        self,
        hold_output: bool = False,
        catalogue: Catalogue | None = CATALOGUE,
        mode: Mode = Mode.AUDIO,
        **limits: Any,
    ):
        self.limits = Limits(**limits)
        vocabulary = self.vocabulary(mode)
        path = "/ws/duplex" if vocabulary.opener == "prepare" else "/v1/realtime"
        super().__init__(path, catalogue, self.limits)
        self._hold_output = hold_output
        self._outbox: list[tuple[Send, Event]] = []
        self.dialect = DuplexMachine(vocabulary, self.limits, lambda: catalogue, self._new_token)

    def vocabulary(self, mode: Mode) -> Vocabulary:
        """Return the first vocabulary of the session; other dialects override this method."""
        return DialectNegotiator(
            "sess_0123456789ab", mode, self.limits.max_append_s, self._new_token, lambda: "rt_1795159650250"
        )

    def flush_output(self, events: int | None = None) -> None:
        """Send the oldest events of the outbox, or all: they can no longer be withdrawn."""
        del self._outbox[:events]

    def carry_out(self, action: Action) -> list[Action]:
        if isinstance(action, Withdraw):
            return self._withdraw(action.response_id)
        caused = super().carry_out(action)
        if isinstance(action, Send) and self._hold_output:
            self._outbox.append((action, self.sent[-1]))
        return caused

    def _withdraw(self, response_id: str) -> list[Action]:
        def is_stale(send: Send) -> bool:
            answer = send.answer
            return (
                answer is not None and answer.outcome is Outcome.SPEECH and answer.response_id == response_id
            )

        taken = [(send, told) for send, told in self._outbox if is_stale(send)]
        gone = {id(told) for _, told in taken}
        self._outbox = [(send, told) for send, told in self._outbox if id(told) not in gone]
        self.sent = [told for told in self.sent if id(told) not in gone]
        return self.dialect.withdrawn([send for send, _ in taken])

    def connect(self) -> None:
        self.do(self.dialect.granted(self.now))

    def activate(self, payload: Event | None = None, **ready: Any) -> Event:
        """Bring the session to ACTIVE; return `session.created`."""
        self.connect()
        self.client({"type": "session.init", "payload": payload or {}})
        return self.worker(ready_signal(**ready))[0]

    def finish(
        self,
        unit: int,
        end: UnitEnd = UnitEnd.LISTEN,
        text: str = "",
        audio: bytes = b"",
        failure: Reason | None = None,
        **done: Any,
    ) -> list[Event]:
        """Deliver all of the worker's answers to a unit."""
        pieces = [Piece(unit, text, audio)] if text or audio else []
        done = {"context_tokens": 100 + unit, "tokens": counted.tokens(input_audio=10, output_text=1), **done}
        return self.worker(*pieces, UnitDone(unit, end, failure=failure, **done), Finalized(unit))

    def speak(self, unit: int, text: str = "Seven", end: UnitEnd = UnitEnd.CHUNK) -> list[Event]:
        return self.finish(unit, end, text, SPEECH)

    def finish_all(self, start: int = 1) -> list[Event]:
        """Let the worker only listen in every unit that it is given, from unit `start`."""
        sent, unit = len(self.sent), start
        while unit <= len(self.runs):
            self.finish(unit)
            unit += 1
        return self.sent[sent:]


def active(**options: Any) -> Conversation:
    """Return a session in ACTIVE, by default without inserted silence."""
    talk = Conversation(**{"silence_tail_units": 0, **options})
    talk.activate()
    return talk


def bring(talk: Any, state: State) -> None:
    """Brings a new session, whose `opener` is known, to `state`; in QUEUED nothing is held."""
    if state is State.QUEUED:
        return
    talk.grant()
    if state is State.CONNECTED:
        return
    talk.client(talk.opener)
    if state is State.CONFIGURING:
        return
    talk.worker(ready_signal())
    if state is State.PAUSED:
        talk.client({"type": "pause"})
    assert talk.dialect.state is state


def ready_signal(**fields: Any) -> Ready:
    values = {"prompt_tokens": 58, "context_limit": 8192, "max_units_in_flight": 2, "generate_audio": True}
    return Ready(**(values | fields))


def kinds(events: list[Event]) -> list[str]:
    """`kind` of deltas, `type` of everything else, `error:<code>` of errors."""
    return [
        f"error:{event['error']['code']}" if event["type"] == "error" else event.get("kind", event["type"])
        for event in events
    ]


def codes(events: list[Event]) -> list[str]:
    return [event["error"]["code"] for event in events if event["type"] == "error"]
