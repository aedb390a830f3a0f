"""A conversation with a real model, unit after unit, without the engine's thread."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.interface.engine import Done, End, Event, Rewound
from inference_service.interface.setups import DuplexSetup, StandaloneText, UnitInput, UnitOverrides, Window
from inference_service.session.base.session import QueuedUnit, Session, Stage
from tests.inference_service.engine.support.guests import Sound
from tests.inference_service.engine.support.talk import Said
from tests.inference_service.engine.test_crowd import runtime
from tests.inference_service.engine.test_shares import sound
from tests.support.drawing import jpeg

ALL = None


class Conversation:
    """A session whose ticks the test runs, and its events."""

    def __init__(self, where: Runtime, session: Session[Any], budget: int | None = None) -> None:
        self.where, self.session = where, session
        self.told, self.sent = list[Event](), 0
        self.tick = Tick(where, budget)
        self.refusal = where.start(session)
        self.work()

    def work(self, *others: "Conversation") -> None:
        """Run ticks until no session has work."""
        everybody = [self, *others]
        while self.tick.has_work([it.session for it in everybody]):
            self.tick.run([it.session for it in everybody])
            for it in everybody:
                it.told += it.session.events
                it.session.events.clear()

    def decide(self, *, force_listen: bool = False) -> None:
        """Request generation and finalization of the newest unit."""
        self.session.queue.generate(self.sent, force_listen, UnitOverrides())
        self.session.queue.finalize(self.sent)

    @property
    def ends(self) -> list[End]:
        return [event.end for event in self.told if isinstance(event, Done)]

    def leave(self) -> None:
        self.session.leave()
        self.where.clear(self.session.slot)


class Talker(Conversation):
    """A conversation in a slot with greedy decoding and without initial forced listens."""

    def __init__(
        self,
        slot: int = 0,
        *,
        window: Window | None = None,
        where: Runtime | None = None,
        prompt: str = "Be brief, and kind to whoever asks.",
        records: bool = False,
        **duplex: Any,
    ) -> None:
        """Open the conversation; `duplex` overrides its settings."""
        self.where = where or runtime()
        chosen = {"force_listen_count": 0, "temperature": 0.0} | duplex
        settings = replace(self.where.info.duplex_defaults, **chosen)
        setup = DuplexSetup(prompt, settings, window or Window(), 1, sees=True, records=records)
        session = self.where.open("talker", slot, setup, lambda event: None)
        self.session, self.told, self.sent = session, list[Event](), 0
        assert self.where.start(session) is None
        self.tick = Tick(self.where)
        self.work()

    def work(self, *others: "Talker") -> None:
        """Run ticks until no session has work."""
        everybody = [self, *others]
        while self.tick.has_work([talker.session for talker in everybody]):
            self.tick.run([talker.session for talker in everybody])
            for talker in everybody:
                talker.told += talker.session.events
                talker.session.events.clear()

    def hear(
        self,
        *,
        seed: int | None = None,
        pictures: int = 0,
        pcm: Sound | None = None,
        texts: Sequence[StandaloneText] = (),
    ) -> None:
        """Queue the next second of audio."""
        self.sent += 1
        frames = tuple(jpeg("red", "circle", (64, 48)) for _ in range(pictures))
        content = UnitInput(
            sound(self.sent if seed is None else seed) if pcm is None else pcm, frames, texts=tuple(texts)
        )
        prepared = self.session.preprocessor.prepare(content)
        self.session.queue.prefill(QueuedUnit(self.sent, prepared, time.monotonic()))

    def unit(self, **how: Any) -> None:
        """Run a whole unit."""
        listens = how.pop("force_listen", False)
        self.hear(**how)
        self.decide(force_listen=listens)
        self.work()

    def rewind(self, unit: int, heard_samples: int | None = ALL) -> Rewound:
        self.session.queue.rewind(unit, heard_samples)
        self.work()
        return self.answers[-1]

    @property
    def answers(self) -> list[Rewound]:
        return [event for event in self.told if isinstance(event, Rewound)]

    def said(self, unit: int) -> str:
        """Return the text of a unit."""
        return self._of(unit).text

    def samples(self, unit: int) -> int:
        """Return the number of output samples of a unit."""
        return self._of(unit).samples

    def _of(self, unit: int) -> Said:
        return Said([event for event in self.told if getattr(event, "unit", None) == unit])

    def after(self, seed: int = 77) -> Tensor:
        """Feed one more second; return the hidden state [hidden] for the next decision."""
        self.hear(seed=seed)
        self.work()
        assert self.session.stage is Stage.HEARD
        assert self.session.last_hidden is not None
        state = self.session.last_hidden.clone()
        self.decide(force_listen=True)
        self.work()
        return state
