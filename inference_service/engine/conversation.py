"""All state of one session inside the engine, and the rules of a duplex unit."""

import time
from collections import deque
from enum import Enum, auto

import torch
from torch import Tensor

from inference_service.engine.api import (
    Done,
    End,
    Event,
    Failure,
    Finalized,
    Finish,
    Piece,
    Prefilled,
    Ready,
    SessionFailed,
    SessionSetup,
    Sink,
    UnitOverrides,
    UnitUsage,
    WindowMode,
)
from inference_service.engine.context import Context
from inference_service.engine.sampler import PoisonedLogits, TextSampler
from inference_service.engine.speech import SpeechJob, SpeechState
from inference_service.engine.unit import PendingUnit, Running
from inference_service.models.audio_encoder import AudioState
from inference_service.models.tokenizer import Tokenizer
from inference_service.models.vocoder import VocoderState

MAX_UNIT_CHARACTERS = 28
"""A unit says fewer characters than this; the token that would reach it is not said."""
_TERMINATORS = 2
"""A unit ends with a terminator and `</unit>`."""
_POISONED = Failure("INFERENCE_FAILED", "The model gave no usable numbers for this unit.", retryable=True)
_FULL = Failure("INPUT_TOO_LONG", "The context is full; open a new session.")


class Stage(Enum):
    """What a session waits for."""

    PROMPT = auto()
    IDLE = auto()
    PREFILL = auto()
    HEARD = auto()
    DECODE = auto()
    SPEAK = auto()
    DONE = auto()


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
        self.units: deque[PendingUnit] = deque()
        self.running: Running | None = None
        self.to_feed: Tensor | None = None
        self.last_hidden: Tensor | None = None
        self.turn_open = False
        self.heard_units = 0
        self.usage = UnitUsage()
        self.events: list[Event] = []
        self._cancelled_to = 0
        self._opened = time.monotonic()
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
        if self.running is not None and self.running.number == number:
            return self.running.unit
        return next((unit for unit in self.units if unit.number == number), None)

    def cancel(self, number: int) -> None:
        """Units up to and including `number` end CANCELLED, also those not yet come."""
        self._cancelled_to = max(self._cancelled_to, number)

    # ------------------------------------------------------------------ what it waits for

    @property
    def arrival(self) -> float:
        """Monotonic seconds since which the session's current work has been waiting."""
        return self.running.unit.arrival if self.running else self._opened

    @property
    def wants_decision(self) -> bool:
        """Whether the pending logits may be turned into a decision now."""
        if self.stage is Stage.HEARD:
            return self._run.unit.overrides is not None
        return self.stage is Stage.DECODE and self.to_feed is None

    @property
    def wants_end(self) -> bool:
        """Whether the running unit may be closed now."""
        return self.stage is Stage.DONE and self._run.unit.finalize

    @property
    def longest_unit(self) -> int:
        """Tokens that one unit can add: `<unit>`, its audio, its text, an ended turn and its terminators."""
        return 1 + self._unit_tokens + self.setup.duplex.max_new_speak_tokens_per_chunk + 1 + _TERMINATORS

    @property
    def is_full(self) -> bool:
        """Whether the next unit might not fit. A window makes room; without one the session ends here."""
        return self._is_full_after(0)

    def _is_full_after(self, tokens: int) -> bool:
        if self.setup.window.mode is WindowMode.BASIC:
            return False
        return self.context.tokens + tokens + self.longest_unit > self._limit

    @property
    def _is_cancelled(self) -> bool:
        return self._run.number <= self._cancelled_to

    # ------------------------------------------------------------------ hearing

    def start_prompt(self, embeds: Tensor) -> None:
        """The prompt's embeddings are ready to be fed."""
        self.to_feed = embeds

    def start_unit(self, carried: Tensor, audio: Tensor, ear: AudioState) -> None:
        """The next unit's embeddings [n, hidden] are ready: carried tokens with `<unit>`, then its audio."""
        run = self._begin()
        run.text_rows, run.audio_rows, run.cached = len(carried), len(audio), self.context.length
        self.ear = ear
        self.to_feed = torch.cat([carried, audio])
        self.stage = Stage.PREFILL

    def refuse_unit(self) -> None:
        """The next unit does not fit any more: it is answered, not heard."""
        self._begin()
        self._unheard(End.CONTEXT_FULL, _FULL)

    def _begin(self) -> Running:
        unit = self.units.popleft()
        self.running = Running(unit, self.setup.duplex, time.monotonic(), self.ear, self.turn_open)
        return self.running

    def take(self, hidden: Tensor | None) -> None:
        """Hidden states [n, hidden] of the rows just fed; None if they are not numbers."""
        assert self.to_feed is not None
        if hidden is None:
            self._poisoned()
            return
        self.context.advance(len(hidden))
        rest = self.to_feed[len(hidden) :]
        self.to_feed = rest if len(rest) else None
        if self.to_feed is not None:
            return
        self.last_hidden = hidden[-1]
        match self.stage:
            case Stage.PROMPT:
                self.context.end_prompt()
                self.events.append(Ready(self.context.prompt))
                self.stage = Stage.IDLE
            case Stage.PREFILL:
                self._heard()
            case _:
                self._fed(hidden[-1])

    def _heard(self) -> None:
        run = self._run
        run.heard_at = time.monotonic()
        self.heard_units += 1
        self.events.append(
            Prefilled(run.number, self.context.tokens, run.usage(), run.timings(run.heard_at))
        )
        self.stage = Stage.HEARD

    def _unheard(self, end: End, failure: Failure) -> None:
        """Nothing of the unit is in the context; it keeps its place in the order of answers."""
        self._run.end, self._run.failure = end, failure
        self.events.append(Prefilled(self._run.number, self.context.tokens, failure=failure))
        self.stage = Stage.HEARD

    # ------------------------------------------------------------------ deciding

    def begin_generate(self) -> bool:
        """Applies the unit's orders; False if it ends without the model: unheard, cancelled or forced."""
        run = self._run
        assert run.unit.overrides is not None
        run.decided_at = time.monotonic()
        run.settings = run.unit.overrides.apply(self.setup.duplex)
        run.most_steps = min(
            run.settings.max_new_speak_tokens_per_chunk, self.context.room - _TERMINATORS - 1
        )
        if run.unit.overrides.seed is not None:
            run.generator = torch.Generator().manual_seed(run.unit.overrides.seed)
        if run.failure is not None:
            self._finish(None, run.end)
        elif self._is_cancelled:
            self._cancel()
        elif run.unit.force_listen or self.heard_units <= run.settings.force_listen_count:
            self._listen()
        else:
            self.stage = Stage.DECODE
            return True
        return False

    def _listen(self) -> None:
        """A forced listen closes an open turn; its `<|turn_eos|>` is carried into the next forward."""
        if self.turn_open:
            self.context.pending.append(self._special.turn_eos)
            self.turn_open = False
            self._hush()
        self._finish(self._special.listen, End.LISTEN)

    def decide(self, logits: Tensor) -> int | None:
        """Takes one decision on scores [vocabulary]: the token to feed, or None if the unit's text is complete.

        Listening is no choice while a turn is open: it becomes `<|tts_bos|>`.
        """
        run = self._run
        if self._is_cancelled:
            self._cancel()
            return None
        try:
            token = self.sampler.decide(logits, run.settings, run.generator)
        except PoisonedLogits:
            self._poisoned()
            return None
        run.sampled += 1
        if token == self._special.listen and self.turn_open:
            token = self._special.tts_bos
        if token in self._special.terminators:
            self._text_complete(token, Finish.EOS)
        elif self._too_long(token):
            self._text_complete(self._special.chunk_eos, Finish.LENGTH)
        else:
            return token
        return None

    def _too_long(self, token: int) -> bool:
        run = self._run
        if run.steps == 0 or not self._tokenizer.is_text(token):
            return False
        return len(self._tokenizer.decode([*run.said, token])) >= MAX_UNIT_CHARACTERS

    def feed(self, token: int, embeds: Tensor) -> None:
        """The decided token goes into the next forward. A unit's first token is never text."""
        run = self._run
        if run.steps > 0:
            run.said.append(token)
        run.steps += 1
        run.turn_ended = token == self._special.turn_eos
        self.turn_open = not run.turn_ended
        self.to_feed = embeds

    def _fed(self, hidden: Tensor) -> None:
        run = self._run
        if run.said:
            run.hidden.append(hidden)
        if run.steps + 1 >= run.most_steps:
            self._text_complete(self._special.chunk_eos, Finish.LENGTH)

    def _text_complete(self, terminator: int, finish: Finish) -> None:
        run = self._run
        if self._is_cancelled:
            self._cancel()
            return
        run.terminator, run.finish = terminator, finish
        run.decoded_at = time.monotonic()
        if run.steps == 0 and not self.turn_open:
            self._finish(terminator, End.LISTEN)
            return
        text_ids = tuple(token for token in run.said if self._tokenizer.is_text(token))
        if text_ids:
            self.events.append(Piece(run.number, self._tokenizer.decode(list(text_ids)), text_ids))
        run.end = End.TURN if run.turn_ended else End.CHUNK
        self.stage = Stage.SPEAK

    # ------------------------------------------------------------------ speaking

    def speech_job(self) -> SpeechJob | None:
        """The unit's speech under way; None if nothing of it is to be said aloud."""
        run = self._run
        if self._is_cancelled or not run.settings.generate_audio:
            return None
        if run.job is None:
            assert self.last_hidden is not None
            run.job = SpeechJob(
                self.speech,
                run.said,
                torch.stack(run.hidden) if run.hidden else self.last_hidden.new_zeros(0, len(self.last_hidden)),
                may_be_short=self.speech.length == 0 or run.turn_ended,
                temperature=run.settings.tts_temperature,
                generator=run.generator or self.speech.generator,
            )
        return run.job

    def spoken(self, audio: Tensor | None, spoken_at: float) -> None:
        """The unit's speech is ready (or there is none): the unit ends."""
        run = self._run
        run.spoken_at = spoken_at
        if self._is_cancelled:
            self._cancel()
            return
        if run.job is not None and run.job.poisoned:
            run.end, run.failure = End.FAILED, _POISONED
        elif audio is not None and len(audio):
            self.events.append(Piece(run.number, audio=audio.numpy()))
        if run.turn_ended or run.failure is not None:
            self._hush()
        self._finish(run.terminator, run.end)

    def _hush(self) -> None:
        """The next words begin on a clean voice."""
        self.speech.end_turn()
        self.vocoder.reset()

    # ------------------------------------------------------------------ ending

    def _cancel(self) -> None:
        """Heard but not spoken: what has been fed stays, and so does the turn as that left it."""
        self._hush()
        self._finish(self._special.chunk_eos, End.CANCELLED)

    def _poisoned(self) -> None:
        """The unit fails and leaves no trace, so that the session can go on."""
        self.to_feed = None
        if self.stage is Stage.PROMPT:
            self.events.append(SessionFailed("INFERENCE_FAILED", "The model cannot read this prompt."))
            return
        run = self._run
        self.context.rewind()
        self.ear, self.turn_open = run.ear_before, run.turn_was_open
        if self.stage is Stage.PREFILL:
            self._unheard(End.FAILED, _POISONED)
        else:
            run.failure = _POISONED
            self._finish(None, End.FAILED)

    def _finish(self, terminator: int | None, end: End) -> None:
        run = self._run
        run.terminator = terminator
        if end in (End.LISTEN, End.CHUNK, End.TURN) and self._is_full_after(_TERMINATORS):
            end = End.CONTEXT_FULL
        failure = run.failure if end is End.FAILED else None
        usage, timings = run.usage(), run.timings(time.monotonic())
        self.usage += usage
        self.events.append(
            Done(run.number, end, run.finish, self.context.tokens, usage, timings, failure)
        )
        self.stage = Stage.DONE

    def finalize(self) -> None:
        """Closes the unit: its terminator and `</unit>` are carried into the next forward."""
        run = self._run
        dropped = 0
        if run.terminator is not None:
            dropped = self.context.end_unit([run.terminator, self._special.unit_end])
        self.events.append(Finalized(run.number, self.context.tokens, dropped, self.usage))
        self.running = None
        self.stage = Stage.IDLE

    @property
    def _run(self) -> Running:
        assert self.running is not None
        return self.running
