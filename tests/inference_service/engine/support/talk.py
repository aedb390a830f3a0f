"""A conversation whose model is a script: every decision is forced by its scores, and no forward is run."""

import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen3Config, Qwen3Model

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.draw import TextSampler
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.speech import SpeechState
from inference_service.errors import UnitRefused
from inference_service.families.antiphon_mini import MiniSenses
from inference_service.interface.engine import Done, Event, Failure, Finalized, Piece, Prefilled
from inference_service.interface.setups import (
    Content,
    DuplexSettings,
    DuplexSetup,
    UnitOverrides,
    VoiceReference,
    Window,
)
from inference_service.models.config import TurnBound
from inference_service.models.vocoder import VocoderState
from inference_service.session.base.session import QueuedUnit, Session, Stage
from inference_service.session.kinds.duplex import DuplexSession, PreparedInput
from inference_service.session.kinds.duplex_kind import DuplexPreprocessor
from inference_service.session.kinds.reference_voice import ReferenceVoice
from tests.inference_service.engine.support import decisions, golden

HIDDEN = 8
VOCABULARY = 768
UNIT_TOKENS = 10
PICTURE_TOKENS = 4
PROMPT = 44
E = TypeVar("E", bound=Event)


def decoder(capacity: int) -> PackedDecoder:
    config = Qwen3Config(
        vocab_size=1, hidden_size=HIDDEN, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    return PackedDecoder(Qwen3Model(config).eval(), 1, capacity)


@dataclass
class Said:
    """The events of one unit."""

    events: list[Event] = field(default_factory=list)

    def one(self, kind: type[E]) -> E:
        """The only event of a kind."""
        (event,) = [event for event in self.events if isinstance(event, kind)]
        return event

    @property
    def prefilled(self) -> Prefilled:
        return self.one(Prefilled)

    @property
    def done(self) -> Done:
        return self.one(Done)

    @property
    def closed(self) -> Finalized:
        return self.one(Finalized)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Piece))

    @property
    def ids(self) -> list[int]:
        return [token for event in self.events if isinstance(event, Piece) for token in event.token_ids]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return (*self.ids,)

    @property
    def sound(self) -> NDArray[np.float32]:
        audio = [e.audio for e in self.events if isinstance(e, Piece) and e.audio is not None]
        return np.concatenate(audio) if audio else np.zeros(0, np.float32)

    @property
    def samples(self) -> int:
        return len(self.sound)


def write_ahead(session: Session[Any], number: int, content: Content, **orders: Any) -> None:
    """Queue a unit of this content, with fields of `QueuedUnit`; content that is refused fails it."""
    prepared, failure = None, None
    try:
        prepared = session.preprocessor.prepare(content)
    except UnitRefused as refused:
        failure = refused.failure
    session.queue.prefill(QueuedUnit(number, prepared, time.monotonic(), failure, **orders))


class Scripted:
    """A stand-in for the tick of one session; the test makes its decisions."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.number = 0
        self.said = Said()

    def generate(self, overrides: UnitOverrides | None = None, *, force_listen: bool = False) -> Said:
        """Request generation, and begin it."""
        self._session.queue.generate(self.number, force_listen, overrides or UnitOverrides())
        assert self._session.wants_decision
        self._session.begin_generate()
        return self._collected()

    def decide(self, *tokens: int) -> Said:
        """Decide these tokens one after another; feed those that the session feeds."""
        for token in tokens:
            scores = torch.zeros(VOCABULARY)
            scores[token] = 1000.0
            self.decide_on(scores)
        return self._collected()

    def decide_on(self, scores: Tensor) -> Said:
        """Decide once on these scores."""
        raise NotImplementedError

    def _collected(self) -> Said:
        self.said.events += self._session.events
        self._session.events.clear()
        return self.said


class Talk(Scripted):
    """A conversation whose prompt has been read."""

    def __init__(
        self,
        *,
        window: Window | None = None,
        limit: int = 2048,
        prompt: int = PROMPT,
        poisoned: bool = False,
        sees: bool = False,
        turn_bound: TurnBound | None = None,
        **settings: object,
    ) -> None:
        tokenizer = golden.tokenizer()
        self.special = tokenizer.special
        self.encode = tokenizer.encode
        window = window or Window()
        generator, senses = torch.Generator().manual_seed(0), MiniSenses(0, UNIT_TOKENS)
        duplex = DuplexSettings(**{"force_listen_count": 0, **settings})  # type: ignore[arg-type]
        self.conversation = DuplexSession(
            "talk",
            0,
            lambda event: None,
            Context(decoder(limit + 128), 0, window, limit),
            DuplexPreprocessor(senses, ReferenceVoice(VoiceReference(), senses, None)),
            setup=DuplexSetup("", duplex, window, seed=0, sees=sees),
            tokenizer=tokenizer,
            sampler=TextSampler(self.special, torch.tensor([self.special.chunk_eos]), Noise(0)),
            speech=SpeechState(0, Noise(0)),
            unit_tokens=UNIT_TOKENS,
            slice_tokens=PICTURE_TOKENS + 2,
            turn_bound=turn_bound,
            ear=[torch.zeros(1)],
            mouth=VocoderState(0.0, 0.0, torch.zeros(2, 240), torch.zeros(784), generator),
        )
        super().__init__(self.conversation)
        self.fed: list[int] = []
        """Every id fed; -1 for a row of audio, -2 for one of a picture."""
        self.conversation.to_feed = Rows.of(torch.zeros(prompt, HIDDEN))
        self._forward([-1] * prompt, poisoned=poisoned)
        self.opening = self._collected().events

    def hear(self, *, pictures: int = 0, failure: Failure | None = None, poisoned: bool = False) -> Said:
        """Queue the next unit and feed its rows as far as possible."""
        self.number += 1
        self.said = Said()
        talk = self.conversation
        perceived = PreparedInput(torch.zeros(100, 80))
        talk.queue.prefill(QueuedUnit(self.number, perceived, time.monotonic(), failure))
        assert talk.wants_unit
        if not talk.refuse_unit():
            carried = talk.context.carry()
            ear = [talk.ear[0] + 1]
            seen = [Rows.of(torch.zeros(PICTURE_TOKENS + 2, HIDDEN))] * pictures
            audio = Rows.of(torch.zeros(UNIT_TOKENS, HIDDEN))
            talk.start_unit(carried, seen, audio, ear)
            picture = [self.special.image, *[-2] * PICTURE_TOKENS, self.special.image_end]
            rows = [self.special.unit, *picture * pictures, *[-1] * UNIT_TOKENS]
            self._forward([*carried, *rows], poisoned=poisoned)
        return self._collected()

    def decide_on(self, scores: Tensor, *, poisoned: bool = False, cancelled: bool = False) -> Said:
        """Decide once on these scores; its forward may give NaN (`poisoned`), or a cancel may arrive."""
        talk = self.conversation
        assert talk.wants_decision
        draw = talk.draw()
        chosen = None if draw is None else talk.decide(decisions.chosen(scores, draw))
        if chosen is not None:
            talk.feed(chosen)
            if cancelled:
                talk.queue.cancel(self.number)
            self._forward([chosen], poisoned=poisoned)
        return self._collected()

    def speak(self, codes: int = 25, *, poisoned: bool = False) -> Said:
        """Let the speech head return `codes` codes, if there is a job for it."""
        talk = self.conversation
        assert talk.stage is Stage.SPEAK
        job = talk.speech_job()
        if job is None:
            talk.spoken(None, time.monotonic())
        else:
            job.codes = [0] * codes
            job.poisoned = poisoned
            talk.speech.length += len(job.tokens) + 1 + codes
            talk.spoken(torch.zeros(codes * 960), time.monotonic())
        return self._collected()

    def finalize(self) -> Said:
        """Finalize the unit."""
        talk = self.conversation
        talk.queue.finalize(self.number)
        assert talk.wants_end
        talk.end_unit()
        if talk.context.must_slide:
            carried = talk.context.carry()
            self.fed += carried
            talk.context.advance(len(carried))
        talk.finalize()
        return self._collected()

    def unit(
        self,
        *tokens: int,
        codes: int = 25,
        force_listen: bool = False,
        overrides: UnitOverrides | None = None,
        pictures: int = 0,
    ) -> Said:
        """Run a whole unit in which the model decides `tokens`."""
        self.hear(pictures=pictures)
        self.generate(force_listen=force_listen, overrides=overrides)
        self.decide(*tokens)
        if self.conversation.stage is Stage.SPEAK:
            self.speak(codes)
        return self.finalize()

    def _forward(self, ids: list[int], *, poisoned: bool = False) -> None:
        rows = self.conversation.to_feed
        assert rows is not None
        assert len(rows) == len(ids)
        self.fed += ids
        self.conversation.take(len(rows), None if poisoned else torch.zeros(HIDDEN))
