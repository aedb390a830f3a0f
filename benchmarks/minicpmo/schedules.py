"""Two schedules of the same work on the same modules.

The engine's schedule is one forward per tick for all sessions. The reference runs one session after another:
a forward for each piece of a unit, for each token and for the end of the unit, and the vocoder of one session
at a time.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from inference_service.engine.batch.decoder import Segment
from inference_service.engine.tick import Tick
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Piece
from inference_service.interface.setups import (
    DuplexSettings,
    DuplexSetup,
    UnitInput,
    UnitOverrides,
    Window,
    WindowMode,
)
from inference_service.session.base.session import QueuedUnit, Session, Stage
from inference_service.session.kinds.components import DuplexComponents
from inference_service.session.kinds.duplex import DuplexSession

RATE_HZ = 16_000
WARM_UP = 2
"""Units that are not counted."""
_SETTINGS = DuplexSettings(greedy=True, force_listen_count=0, tts_temperature=0.0)
_WINDOW = Window(WindowMode.BASIC, 1200, 900)


class Counting(DuplexRuntime):
    """A runtime that counts forwards by the part that runs them."""

    def __init__(self, components: DuplexComponents, slots: int) -> None:
        super().__init__(components, slots)
        self.forwards: Counter[str] = Counter()
        assert self.speaker is not None
        assert components.speech is not None
        self._count(self.language, "last", "language model")
        self._count(self.speaker.decoder, "last", "speech head")
        self._count(components.ear, "encode", "ear")
        self._count(components.speech.mouth, "say", "vocoder")

    def _count(self, part: Any, method: str, name: str) -> None:
        own = getattr(type(part), method)

        def counted(*arguments: Any) -> Any:
            self.forwards[name] += 1
            return own(part, *arguments)

        setattr(part, method, counted)


class Reference(Counting):
    """A runtime with the reference's schedule: one session after another, piece by piece."""

    def think(self, segments: list[Segment]) -> list[Tensor | None]:
        return [self._piecewise(segment) for segment in segments]

    def _piecewise(self, segment: Segment) -> Tensor:
        """Run the end of the unit before, `<unit>` and the audio as separate forwards; return the last hidden
        state."""
        count, audio = len(segment.rows), self.components.unit_tokens
        borders = [0, count] if count <= audio else sorted({0, count - audio - 1, count - audio, count})
        for begin, end in pairwise(borders):
            piece = Segment(
                segment.slot, segment.start + begin, segment.position + begin, segment.rows[begin:end]
            )
            (hidden,), _ = self.language.last([piece])
        return hidden

    def hear(self, sessions: Sequence[Session[Any]]) -> None:
        for session in sessions:
            super().hear([session])

    def speak(self, sessions: Sequence[Session[Any]]) -> None:
        for session in sessions:
            super().speak([session])


@dataclass(frozen=True)
class Cost:
    """The mean cost of one unit of one session."""

    forwards: dict[str, float]
    seconds: float
    """The CPU time on one thread, in seconds."""
    said: list[tuple[int, ...]]
    """The generated text tokens of each session, for the comparison of both schedules."""


@torch.inference_mode()
def cost(runtime: Counting, sessions: int, units: int, *, listens: bool) -> Cost:
    """Return the cost of conversations with simultaneous units, all forced to listen if `listens`."""
    talks = [_opened(runtime, slot) for slot in range(sessions)]
    together = not isinstance(runtime, Reference)
    said: list[list[int]] = [[] for _ in talks]
    begin = 0.0
    for number in range(1, WARM_UP + units + 1):
        if number == WARM_UP + 1:
            runtime.forwards.clear()
            begin = time.process_time()
        for talk in talks:
            _send(talk, number, listens)
        for group in [talks] if together else [[talk] for talk in talks]:
            _run(runtime, group)
        for slot, talk in enumerate(talks):
            said[slot] += [token for it in talk.events if isinstance(it, Piece) for token in it.token_ids]
            talk.events.clear()
    spent = time.process_time() - begin
    for talk in talks:
        talk.leave()
        runtime.clear(talk.slot)
    count = sessions * units
    forwards = {name: total / count for name, total in runtime.forwards.items()}
    return Cost(forwards, spent / count, [tuple(it) for it in said])


def _opened(runtime: Counting, slot: int) -> DuplexSession:
    setup = DuplexSetup("", _SETTINGS, _WINDOW, seed=slot)
    talk = cast(DuplexSession, runtime.open("bench", slot, setup, lambda event: None))
    talk.preprocessor.begin()
    assert runtime.start(talk) is None
    _run(runtime, [talk])
    return talk


def _send(talk: DuplexSession, number: int, listens: bool) -> None:
    """Send a second of noise, different for each session and unit."""
    noise = np.random.default_rng(1000 * talk.slot + number).standard_normal(RATE_HZ) * 0.1
    heard = talk.preprocessor.prepare(UnitInput(noise.astype(np.float32)))
    unit = QueuedUnit(number, heard, time.monotonic(), overrides=UnitOverrides(), finalize=True)
    unit.force_listen = listens
    talk.queue.prefill(unit)


def _run(runtime: Counting, talks: list[DuplexSession]) -> None:
    tick = Tick(runtime)
    while tick.has_work(talks):
        tick.run(talks)
    assert all(talk.stage is Stage.IDLE for talk in talks)
