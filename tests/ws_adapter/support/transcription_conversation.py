"""The dialect of `/v1/transcription` without a network."""

import base64
from typing import Any, cast

import numpy as np

from tests.ws_adapter.support import tokens as counted
from tests.ws_adapter.support.conversation import CATALOGUE, Event, ready_signal
from tests.ws_adapter.support.driven import Driven
from ws_adapter.protocol.core.actions import CancelUnits, LeaveSlot, RunSegment, TakeSlot
from ws_adapter.protocol.core.config import Catalogue, TranscriptionSetup
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import Failed, Finalized, Piece, Signal, UnitDone, UnitEnd
from ws_adapter.protocol.transcription.machine import Transcription
from ws_adapter.protocol.wire.limits import Limits

SESSION_ID = "sess-0b6d2f3e9a7c4d51b8e0f1a2c3d4e5f6"
CREATED = 1_795_159_650
RATE = 16_000
PROMPT = 39
"""Tokens that the model feeds in the first step of an utterance."""

UPDATE: Event = {"type": "session.update", "model": "antiphon-mini"}
COMMIT: Event = {"type": "input_audio_buffer.commit"}
FINAL: Event = {"type": "input_audio_buffer.commit", "final": True}
CREATED_EVENT: Event = {"type": "session.created", "id": SESSION_ID, "created": CREATED}


def append(seconds: float = 1.0, level: int = 1000) -> Event:
    """An append of equal samples of int16."""
    return {"type": "input_audio_buffer.append", "audio": pcm16(round(seconds * RATE), level)}


def pcm16(samples: int, level: int = 1000) -> str:
    """Base64 of so many equal samples of int16."""
    return base64.b64encode(np.full(samples, level, "<i2").tobytes()).decode()


def delta(text: str) -> Event:
    return {"type": "transcription.delta", "delta": text}


def done(text: str = "", prompt: int = PROMPT, completion: int = 0) -> Event:
    """An utterance's last event."""
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return {"type": "transcription.done", "text": text, "usage": counts | details}


EMPTY = done(prompt=0)


class TranscriptionConversation(Driven):
    """One socket with a clock of its own; `sent` holds the events as a client would parse them, `runs` what
    the worker of the slot that is held now was given, `heard` all that any worker was given.
    """

    def __init__(self, catalogue: Catalogue | None = CATALOGUE, **limits: Any) -> None:
        super().__init__("/v1/transcription", catalogue, Limits(**limits))
        self.heard: list[RunSegment] = []
        self.finalized = 0
        self.slot = "none"
        """`none`, `wanted` or `held`."""
        self.taken = 0
        self.left = 0
        self.open()

    def new_dialect(self) -> Transcription:
        return Transcription(SESSION_ID, CREATED, self._limits, lambda: self._catalogue)

    @property
    def is_ready(self) -> bool:
        return self.slot == "held"

    def lose_worker(self) -> None:
        self.slot = "none"

    def client(self, *events: Event | bytes | list[Any]) -> list[Event]:
        """Send client events; return the server's events that they caused at once."""
        return [told for event in events for told in super(TranscriptionConversation, self).client(event)]

    def worker(self, *signals: Signal) -> list[Event]:
        """Deliver signals of the worker as long as its slot is held."""
        start = len(self.sent)
        for signal in signals:
            if self.slot != "held":
                break
            if isinstance(signal, Failed):
                self.slot = "failed"
            if isinstance(signal, Finalized):
                self.finalized = signal.unit
            self.do(self.dialect.signal(signal, self.now))
        return self.sent[start:]

    def carry_out(self, action: Action) -> list[Action]:
        match action:
            case TakeSlot():
                assert self.slot in ("none", "failed"), "it has one, or waits for one"
                self.slot = "wanted"
                self.taken += 1
            case LeaveSlot():
                assert self.slot != "none"
                self.slot = "none"
                self.left += 1
            case RunSegment():
                assert self.slot == "held"
                self.runs.append(action)
                self.heard.append(action)
                assert action.unit == len(self.runs)
            case _:
                assert self.slot == "held" or not isinstance(action, CancelUnits)
                return super().carry_out(action)
        return []

    def grant(self) -> list[Event]:
        """Grant a slot."""
        assert self.slot == "wanted"
        self.slot = "held"
        self.runs, self.finalized = [], 0
        return super().grant()

    def serve(self, **ready: Any) -> list[Event]:
        """Grant a slot whose worker is ready."""
        self.grant()
        return self.worker(ready_signal(**{"prompt_tokens": PROMPT, "max_units_in_flight": 8, **ready}))

    def begin(self, seconds: float = 1.0) -> None:
        """Bring the session to an open utterance at a worker that has received this much audio."""
        self.client(UPDATE, COMMIT)
        self.serve()
        if seconds:
            self.client(append(seconds))

    def finish(
        self, unit: int, text: str = "", end: UnitEnd = UnitEnd.CHUNK, sampled: int = 1, **fields: Any
    ) -> list[Event]:
        """Deliver all of the worker's answers to a unit."""
        pieces = [Piece(unit, text, b"")] if text else []
        tokens = counted.tokens(input_text=2, input_audio=10, output_text=sampled)
        return self.worker(*pieces, UnitDone(unit, end, 100, tokens, **fields), Finalized(unit))

    def complete(self, text: str = "") -> list[Event]:
        """Let the worker answer all its units, the next one with `text`."""
        start = len(self.sent)
        while self.finalized < len(self.runs):
            run, said, text = self.runs[self.finalized], text, ""
            self.finish(run.unit, said, UnitEnd.TURN if run.ends else UnitEnd.CHUNK)
        return self.sent[start:]

    @property
    def setups(self) -> list[TranscriptionSetup]:
        """The settings that workers were given."""
        setups = [action.setup for action in self.configured]
        assert all(isinstance(setup, TranscriptionSetup) for setup in setups)
        return cast("list[TranscriptionSetup]", setups)

    @property
    def samples(self) -> int:
        """How many samples workers were given."""
        return sum(len(run.audio) // 4 for run in self.heard)

    @property
    def levels(self) -> list[int]:
        """The int16 samples that workers were given, without repetitions."""
        pcm = np.concatenate([np.frombuffer(run.audio, "<f4") for run in self.heard]) * 32768
        return [int(level) for level in pcm[np.flatnonzero(np.diff(pcm, prepend=np.nan))]]


def codes(events: list[Event]) -> list[str]:
    """`type` of each event, of errors their code."""
    return [event["code"] if event["type"] == "error" else event["type"] for event in events]
