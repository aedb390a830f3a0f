"""A machine of a protocol in a jar: what every conversation that drives one has."""

import json
from typing import Any

from antiphon.contract import Reason
from tests.support.schemas import Event, Observer
from ws_adapter.protocol.core.actions import CloseSocket, OpenWorkerSession
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import Failed, Signal
from ws_adapter.protocol.wire.limits import Limits


class Driven:
    """A session with a clock of its own; `sent` holds the events as a client would parse them.

    Subclasses carry out the actions of their `dialect` in `do`.
    """

    dialect: Any

    def __init__(self, path: str, catalogue: Catalogue | None, limits: Limits) -> None:
        self.now = 1000.0
        self.sent: list[Event] = []
        self.cancelled: list[int] = []
        self.configured: list[OpenWorkerSession] = []
        self.closed: CloseSocket | None = None
        self._tokens = 0
        self._observer = Observer(path)
        self._catalogue, self._limits = catalogue, limits

    @property
    def close_code(self) -> int | None:
        """The code of the close frame, or None while the socket is open."""
        return self.closed and self.closed.code

    def _new_token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:012x}"

    def do(self, actions: list[Action]) -> list[Event]:
        raise NotImplementedError

    def client(self, event: Any) -> list[Event]:
        """Sends one event; what it causes at once. One that is accepted has to be one that may be sent."""
        frame = event if isinstance(event, bytes) else json.dumps(event).encode()
        told = self.do(self.dialect.text_frame(frame, self.now))
        if isinstance(event, dict) and not any(answer["type"] == "error" for answer in told):
            self._observer.client_was_heard(event)
        return told

    def worker(self, *signals: Signal) -> list[Event]:
        start = len(self.sent)
        for signal in signals:
            self.do(self.dialect.signal(signal, self.now))
        return self.sent[start:]

    def grant(self) -> list[Event]:
        """A worker waits for the settings."""
        return self.do(self.dialect.granted(self.now))

    def wait(self, seconds: float = 0.0, others_wait: bool = False) -> list[Event]:
        """Lets time pass, ticking exactly at each deadline on the way."""
        start, until = len(self.sent), self.now + seconds
        while (due := self.dialect.deadline) is not None and due <= until:
            self.now = max(self.now, due)
            self.do(self.dialect.tick(self.now, others_wait))
        self.now = until
        return self.sent[start:]

    def fail(self, reason: Reason) -> list[Event]:
        return self.worker(Failed(reason))
