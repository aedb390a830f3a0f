"""The chat dialects without a network: events go in, actions are carried out, everything is recorded."""

import base64
from typing import Any, Final

import numpy as np

from tests.ws_adapter.support import tokens as counted
from tests.ws_adapter.support.conversation import CATALOGUE, INIT, Event, ready_signal
from tests.ws_adapter.support.driven import Driven
from ws_adapter.protocol.chat.realtime_chat import RealtimeChat
from ws_adapter.protocol.chat.ws_chat import Chat, State
from ws_adapter.protocol.core.actions import LeaveSlot, TakeSlot
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action, Machine, Offload, Place
from ws_adapter.protocol.core.signals import (
    NO_TIMINGS,
    Finish,
    Piece,
    Prefilled,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.core.turn import Turn
from ws_adapter.protocol.wire.events import TokenUsage
from ws_adapter.protocol.wire.limits import Limits

USER: Final[Event] = {"role": "user", "content": "Name a prime."}
SPOKEN: Final = np.full(2400, 0.25, "<f4").tobytes()
READ: Final = counted.tokens(input_text=27)


def request(*messages: Event, **fields: Any) -> Event:
    """Return a request, by default of one user message."""
    return {"messages": list(messages) or [USER], **fields}


def append(*messages: Event, **fields: Any) -> Event:
    """Return the same request as an event of `/v1/realtime`."""
    return {"type": "input.append", "input": request(*messages, **fields)}


def user(*parts: Event) -> Event:
    return {"role": "user", "content": list(parts)}


def f32(seconds: float = 1.0, rate: int = 16_000, level: float = 0.1) -> str:
    """Return the Base64 of equal samples."""
    return base64.b64encode(np.full(round(seconds * rate), level, "<f4").tobytes()).decode()


class Jar(Driven):
    """A chat with a clock of its own; `sent` holds the events as a client would parse them.

    `slots` writes down what was asked of the queue. What is to run beside the event loop runs when the test
    says so, with `read_now` at once.
    """

    path = ""

    def __init__(self, catalogue: Catalogue | None = CATALOGUE, read_now: bool = True, **limits: Any) -> None:
        self.limits = Limits(**limits)
        super().__init__(self.path, catalogue, self.limits)
        self.slots: list[str] = []
        self.offload: Offload | None = None
        self._read_now = read_now
        self.open()

    @property
    def machine(self) -> Machine:
        machine: Machine = self.dialect
        return machine

    @property
    def is_unread(self) -> bool:
        return self.offload is not None

    def _known(self) -> Catalogue | None:
        return self._catalogue

    @property
    def turn(self) -> Turn:
        """The turn that runs, or the last one."""
        turn: Turn = self.runs[-1].turn
        return turn

    def read(self) -> list[Event]:
        """Do the work that is due outside the event loop."""
        assert self.offload is not None
        work, self.offload = self.offload.work, None
        return self.do(work()(self.now))

    def queue(self, position: int = 1, length: int = 1, wait_s: float = 12.34) -> list[Event]:
        return self.do(self.machine.queued(Place(position, wait_s, "ticket_5f0c9a17be42", length, False)))

    def ready(self, **fields: Any) -> list[Event]:
        """Let the worker of the slot report that it is ready."""
        return self.worker(ready_signal(**fields))

    def prefilled(self, tokens: TokenUsage = READ) -> list[Event]:
        return self.worker(Prefilled(1, NO_TIMINGS, tokens=tokens))

    def say(self, text: str = "", audio: bytes = b"") -> list[Event]:
        return self.worker(Piece(1, text, audio))

    def done(
        self, end: UnitEnd = UnitEnd.TURN, finish: Finish | None = Finish.EOS, **fields: Any
    ) -> list[Event]:
        tokens = counted.tokens(input_text=27, output_text=4)
        return self.worker(UnitDone(1, end, 31, **{"tokens": tokens, "finish": finish, **fields}))

    def carry_out(self, action: Action) -> list[Action]:
        match action:
            case TakeSlot():
                self.slots.append("take")
            case LeaveSlot():
                self.slots.append("leave")
            case Offload() if not self._read_now:
                self.offload = action
            case _:
                return super().carry_out(action)
        return []


class ChatJar(Jar):
    """`/ws/chat`."""

    path = "/ws/chat"

    def new_dialect(self) -> Machine:
        return Chat(self.limits, self._known, "sess_0123456789ab-1")

    @property
    def hears(self) -> bool:
        assert isinstance(self.machine, Chat)
        return self.machine.state is State.WAIT_REQUEST

    def ask(self, *messages: Event, **fields: Any) -> None:
        """Bring the chat to a turn at the worker."""
        self.client(request(*messages, **fields))
        self.grant()
        self.ready()


class RealtimeChatJar(Jar):
    """`/v1/realtime?mode=chat`."""

    path = "/v1/realtime?mode=chat"
    opener: Final = INIT

    def new_dialect(self) -> Machine:
        return RealtimeChat("sess_0123456789ab", self.limits, self._known, self._new_token)

    def init(self, payload: Event | None = None) -> list[Event]:
        return self.client({"type": "session.init", "payload": payload or {}})

    def activate(self, payload: Event | None = None, **ready: Any) -> Event:
        """Bring the session to ACTIVE; return `session.created`."""
        self.grant()
        self.init(payload)
        return self.ready(**ready)[0]

    def answer(self, text: str = "Seven") -> list[Event]:
        """Answer the running turn from beginning to end."""
        start = len(self.sent)
        self.prefilled()
        self.say(text)
        self.done()
        return self.sent[start:]

    def next_slot(self, **ready: Any) -> list[Event]:
        """Grant a slot to the turn that waits for one."""
        return [*self.grant(), *self.ready(**ready)]
