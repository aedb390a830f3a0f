"""All state of one session inside the engine, and the rules of a duplex unit."""

import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

import torch
from torch import Tensor

from inference_service.engine.api import (
    Done,
    DuplexSettings,
    End,
    Event,
    Failure,
    Finalized,
    Finish,
    Piece,
    Prefilled,
    Ready,
    SessionSetup,
    Sink,
    UnitOverrides,
    UnitTimings,
    UnitUsage,
    WindowMode,
)
from inference_service.engine.context import Context
from inference_service.engine.sampler import PoisonedLogits, TextSampler
from inference_service.engine.speech import SpeechJob, SpeechState
from inference_service.models.audio_encoder import AudioState
from inference_service.models.tokenizer import Tokenizer
from inference_service.models.vocoder import VocoderState

MAX_UNIT_CHARACTERS = 28
"""A unit says fewer characters than this; the token that would reach it is not said."""


class Stage(Enum):
    """What a session waits for."""

    PROMPT = auto()
    IDLE = auto()
    PREFILL = auto()
    HEARD = auto()
    DECODE = auto()
    SPEAK = auto()
    DONE = auto()


@dataclass
class PendingUnit:
    """A unit's mel features and, once they have come, its orders to generate and finalise."""

    number: int
    mel: Tensor
    arrival: float
    force_listen: bool = False
    overrides: UnitOverrides | None = None
    finalize: bool = False


@dataclass
class Running:
    """The unit being worked on."""

    unit: PendingUnit
    settings: DuplexSettings
    cached: int = 0
    steps: int = 0
    sampled: int = 0
    fed: int = 0
    said: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    text: str = ""
    aloud: bool = False
    """Whether the token being fed is said aloud."""
    turn_ended: bool = False
    terminator: int | None = None
    end: End = End.LISTEN
    finish: Finish | None = None
    generator: torch.Generator | None = None
    started: float = 0.0
    prefilled_at: float = 0.0
    decoded_at: float = 0.0
    spoken_at: float = 0.0


class Conversation:
    """One session: its context, ear, voice, random generators and place in the unit loop."""

    def __init__(
        self,
        session_id: str,
        slot: int,
        setup: SessionSetup,
        sink: Sink,
        tokenizer: Tokenizer,
        context: Context,
        ear: AudioState,
        sampler: TextSampler,
        speech: SpeechState,
        vocoder: VocoderState,
        context_limit: int,
        unit_tokens: int,
    ) -> None:
        self.id = session_id
        self.slot = slot
        self.setup = setup
        self.sink = sink
        self.context = context
        self.ear = ear
        self.sampler = sampler
        self.speech = speech
        self.vocoder = vocoder
        self.stage = Stage.PROMPT
        self._opened = time.monotonic()
        self.units: deque[PendingUnit] = deque()
        self.running: Running | None = None
        self.to_feed: Tensor | None = None
        self.last_hidden: Tensor | None = None
        self.turn_open = False
        self.turn_units = 0
        self.heard_units = 0
        self.cancelled_to = 0
        self.usage = UnitUsage()
        self.events: list[Event] = []
        self._tokenizer = tokenizer
        self._special = tokenizer.special
        self._limit = context_limit
        self._unit_tokens = unit_tokens

    # ------------------------------------------------------------------ orders from outside

    def order_generate(self, number: int, force_listen: bool, overrides: UnitOverrides) -> None:
        """The unit may be decided as soon as it is heard."""
        unit = self._find(number)
        if unit is not None:
            unit.force_listen, unit.overrides = force_listen, overrides

    def order_finalize(self, number: int) -> None:
        """The unit may be closed as soon as it is done."""
        unit = self._find(number)
        if unit is not None:
            unit.finalize = True

    def _find(self, number: int) -> PendingUnit | None:
        if self.running is not None and self.running.unit.number == number:
            return self.running.unit
        return next((unit for unit in self.units if unit.number == number), None)

    def cancel(self, number: int) -> None:
        """Units up to and including `number` end CANCELLED, also those not yet come."""
        self.cancelled_to = max(self.cancelled_to, number)

    # ------------------------------------------------------------------ hearing

    def start_prompt(self, embeds: Tensor) -> None:
        """The prompt's embeddings are ready to be fed."""
        self.to_feed = embeds

    def start_unit(self, embeds: Tensor, cached: int) -> None:
        """The next unit's embeddings, carried tokens first, are ready to be fed."""
        unit = self.units.popleft()
        self.running = Running(unit, self.setup.duplex, cached=cached, started=time.monotonic())
        self.running.fed = len(embeds)
        self.context.pending.clear()
        self.to_feed = embeds
        self.stage = Stage.PREFILL

    def take(self, hidden: Tensor) -> None:
        """Hidden states [n, hidden] of the rows just fed."""
        assert self.to_feed is not None
        self.context.advance(len(hidden))
        rest = self.to_feed[len(hidden) :]
        self.last_hidden = hidden[-1]
        if len(rest):
            self.to_feed = rest
            return
        self.to_feed = None
        if self.stage is Stage.PROMPT:
            self.context.end_prompt()
            self.events.append(Ready(self.context.prompt))
            self.stage = Stage.IDLE
        elif self.stage is Stage.PREFILL:
            self._heard()
        elif self.stage is Stage.DECODE:
            self._said(hidden[-1])

    def _heard(self) -> None:
        run = self._run
        run.prefilled_at = time.monotonic()
        self.heard_units += 1
        heard = UnitUsage(
            input_text_tokens=run.fed - self._unit_tokens,
            input_audio_tokens=self._unit_tokens,
            cached_tokens=run.cached,
        )
        self.usage += heard
        timings = UnitTimings(
            queue=run.started - run.unit.arrival,
            prefill=run.prefilled_at - run.started,
            total=run.prefilled_at - run.unit.arrival,
        )
        self.events.append(Prefilled(run.unit.number, self.context.tokens, heard, timings))
        self.stage = Stage.HEARD

    # ------------------------------------------------------------------ deciding

    @property
    def wants_decision(self) -> bool:
        """Whether the pending logits may be turned into a decision now."""
        if self.stage is Stage.HEARD:
            return self._run.unit.overrides is not None
        return self.stage is Stage.DECODE and self.to_feed is None

    def begin_generate(self) -> bool:
        """Applies the unit's orders; False if it is decided without the model (cancelled or forced to listen)."""
        run = self._run
        overrides = run.unit.overrides
        assert overrides is not None
        run.settings = overrides.apply(self.setup.duplex)
        if overrides.seed is not None:
            run.generator = torch.Generator().manual_seed(overrides.seed)
        if self._cancelled:
            self._finish(self._special.chunk_eos, End.CANCELLED)
            return False
        if run.unit.force_listen or self.heard_units <= run.settings.force_listen_count:
            if self.turn_open:
                self.context.pending.append(self._special.turn_eos)
                self._close_turn()
            self._finish(self._special.listen, End.LISTEN)
            return False
        self.stage = Stage.DECODE
        return True

    @property
    def arrival(self) -> float:
        """Monotonic seconds since which the session's current work has been waiting."""
        return self.running.unit.arrival if self.running else self._opened

    @property
    def interrupted(self) -> bool:
        """Whether the running unit has been cancelled."""
        return self._cancelled

    @property
    def _cancelled(self) -> bool:
        return self._run.unit.number <= self.cancelled_to

    def decide(self, logits: Tensor) -> int | None:
        """Takes one decision on scores [vocabulary]; the token to feed, or None when the unit's text is complete."""
        run = self._run
        if self._cancelled:
            self._finish(self._special.chunk_eos, End.CANCELLED)
            return None
        try:
            token = self.sampler.decide(logits, run.settings, run.generator)
        except PoisonedLogits:
            failure = Failure(
                "INFERENCE_FAILED", "The model gave no usable scores for this unit.", retryable=True
            )
            self._finish(self._special.chunk_eos, End.FAILED, failure=failure)
            return None
        run.sampled += 1
        if token == self._special.listen and (self.turn_open or run.said) and not run.turn_ended:
            token = self._special.tts_bos
        if token in self._special.terminators:
            run.finish = Finish.EOS
            return self._text_complete(token)
        if self._too_long(token):
            run.finish = Finish.LENGTH
            return self._text_complete(self._special.chunk_eos)
        run.steps += 1
        return token

    def _too_long(self, token: int) -> bool:
        run = self._run
        if run.steps == 0 or not self._tokenizer.is_text(token):
            return False
        spoken = [t for t in (*run.said, token) if self._tokenizer.is_text(t)]
        return len(self._tokenizer.decode(spoken)) >= MAX_UNIT_CHARACTERS

    def feed(self, token: int, embeds: Tensor) -> None:
        """The decided token goes into the next forward. A unit's first token is never text."""
        run = self._run
        run.aloud = run.steps > 1 and (self._tokenizer.is_text(token) or token == self._special.turn_eos)
        if run.aloud:
            run.said.append(token)
        if token == self._special.turn_eos:
            run.turn_ended = True
        self.to_feed = embeds

    def _said(self, hidden: Tensor) -> None:
        run = self._run
        if run.aloud:
            run.hidden.append(hidden)
        if run.steps + 1 >= run.settings.max_new_speak_tokens_per_chunk:
            run.finish = Finish.LENGTH
            self._text_complete(self._special.chunk_eos)

    def _text_complete(self, terminator: int) -> None:
        run = self._run
        run.terminator = terminator
        run.decoded_at = time.monotonic()
        if run.steps == 0:
            self._finish(terminator, End.LISTEN)
            return
        text_ids = [token for token in run.said if self._tokenizer.is_text(token)]
        run.text = self._tokenizer.decode(text_ids)
        if run.text or text_ids:
            self.events.append(Piece(run.unit.number, run.text, tuple(text_ids)))
        run.end = End.TURN if run.turn_ended else End.CHUNK
        self.turn_open = True
        self.turn_units += 1
        self.stage = Stage.SPEAK

    # ------------------------------------------------------------------ speaking

    def speech_job(self) -> SpeechJob | None:
        """The speech of the unit whose text is complete; None if there is nothing to say aloud."""
        run = self._run
        if not run.settings.generate_audio or not run.said:
            return None
        return SpeechJob(
            self.speech,
            list(run.said),
            torch.stack(run.hidden),
            may_be_short=self.turn_units == 1 or run.turn_ended,
            temperature=run.settings.tts_temperature,
        )

    def spoken(self, codes: int, audio: Tensor | None, spoken_at: float) -> None:
        """The unit's speech is ready (or there is none): the unit ends."""
        run = self._run
        run.spoken_at = spoken_at
        if self._cancelled:
            self._finish(run.terminator or self._special.chunk_eos, End.CANCELLED, codes)
            return
        if audio is not None and len(audio):
            self.events.append(Piece(run.unit.number, audio=audio.numpy()))
        if run.turn_ended:
            self._close_turn()
        self._finish(run.terminator or self._special.chunk_eos, run.end, codes)

    def _close_turn(self) -> None:
        self.turn_open = False
        self.turn_units = 0
        self.speech.end_turn()
        self.vocoder.reset()

    # ------------------------------------------------------------------ ending

    def _finish(self, terminator: int, end: End, codes: int = 0, failure: Failure | None = None) -> None:
        run = self._run
        now = time.monotonic()
        run.terminator = terminator
        usage = UnitUsage(
            input_text_tokens=run.fed - self._unit_tokens,
            input_audio_tokens=self._unit_tokens,
            cached_tokens=run.cached,
            output_text_tokens=run.sampled,
            output_audio_tokens=codes,
        )
        self.usage += UnitUsage(output_text_tokens=run.sampled, output_audio_tokens=codes)
        decoded = run.decoded_at or now
        spoken = run.spoken_at or decoded
        timings = UnitTimings(
            queue=run.started - run.unit.arrival,
            prefill=run.prefilled_at - run.started,
            decode=decoded - run.prefilled_at,
            speech=spoken - decoded,
            vocoder=now - spoken if run.spoken_at else 0.0,
            total=now - run.unit.arrival,
        )
        if self._full and end not in (End.FAILED, End.CANCELLED):
            end = End.CONTEXT_FULL
        self.events.append(
            Done(run.unit.number, end, run.finish, self.context.tokens, usage, timings, failure)
        )
        self.stage = Stage.DONE

    @property
    def _full(self) -> bool:
        """Whether the next unit might not fit."""
        if self.setup.window.mode is WindowMode.BASIC:
            return False
        return self.context.tokens + 2 + self.longest_unit > self._limit

    @property
    def longest_unit(self) -> int:
        """Tokens that one unit can add: its audio, its text, an ended turn and its terminators."""
        return 1 + self._unit_tokens + self.setup.duplex.max_new_speak_tokens_per_chunk + 3

    def finalize(self) -> None:
        """Closes the unit: its terminator and `</unit>` are carried into the next forward."""
        run = self._run
        assert run.terminator is not None
        dropped = self.context.end_unit([run.terminator, self._special.unit_end])
        self.events.append(Finalized(run.unit.number, self.context.tokens, dropped, self.usage))
        self.running = None
        self.stage = Stage.IDLE

    @property
    def _run(self) -> Running:
        assert self.running is not None
        return self.running
