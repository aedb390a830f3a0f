"""A full-duplex session inside the engine, and the rules of its units."""

import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.contract import Reason
from inference_service.device.rows import Rows
from inference_service.engine.batch.draw import Draw, TextSampler
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.scheduler import UNIT_S
from inference_service.engine.batch.speech import SpeechJob, SpeechState
from inference_service.interface.engine import (
    End,
    Failure,
    Finalized,
    Finish,
    Piece,
    Ready,
    Rewound,
    SessionFailed,
)
from inference_service.interface.setups import (
    NO_OVERRIDES,
    DuplexSettings,
    DuplexSetup,
    UnitRecord,
)
from inference_service.media.image import MAX_FRAMES
from inference_service.models.config import TurnBound
from inference_service.models.tokenizer import Tokenizer
from inference_service.session.base.session import Run, Session, Stage
from inference_service.session.kinds.components import MouthState, SpeakingSession, View
from inference_service.session.kinds.past import Past, PastUnit, RestorePoint

_TERMINATORS = 2
"""A unit ends with a terminator and `</unit>`."""
_MARKS = 2
"""`<image>` and `</image>`."""
_POISONED = Failure("INFERENCE_FAILED", "The model gave no usable numbers for this unit.", retryable=True)
_MISMATCHED = Failure(
    Reason.PARAMS_INVALID,
    "recorded: the sampled ids and speech codes do not lead to the end in the record.",
    "recorded",
)
_NO_WORDS = Failure(Reason.PARAMS_INVALID, "recorded.word_ids must be ids of text.", "recorded.word_ids")
_FULL = Failure("INPUT_TOO_LONG", "The context is full; open a new session.")
MAX_CHARACTERS = 28
"""The limit of characters in a unit; the token that would reach it is not spoken."""


@dataclass(frozen=True)
class PreparedInput:
    """One second of input: text, which is read first, pictures, oldest first, and sound or None."""

    heard: Tensor | None
    pictures: tuple[View, ...] = ()
    text_ids: tuple[int, ...] = ()
    opens_turn: bool = False
    """Whether the model must speak at once, about the text that it has read."""
    recorded: UnitRecord | None = None
    """The recorded outcome of a replayed unit."""
    word_ids: tuple[int, ...] = ()
    """Recognised words of an utterance that ended in this second; they are read after the sound."""


@dataclass
class DuplexRun(Run[PreparedInput]):
    """The running duplex unit."""

    settings: DuplexSettings
    ear_before: Any
    """The ear's state before the unit."""
    turn_was_open: bool
    decided_before: NDArray[np.int32]
    heard: Rows | None = None
    """Input rows of the unit, after the ids that were `carried` from the previous unit."""
    carried: int = 0
    samples: int = 0
    """Samples of the unit's sound."""
    most_steps: int = 0
    steps: int = 0
    """Decided tokens that have been fed."""
    said: list[int] = field(default_factory=list)
    """Tokens for the speech head: every token fed except the first, which is never text."""
    hidden: list[Tensor] = field(default_factory=list)
    """Hidden states of `said`, each [hidden]."""
    turn_ended: bool = False
    """Whether the last token fed ended the turn."""
    noise: Noise | None = None
    """The unit's own source of randomness, if it does not use the session's."""
    job: SpeechJob | None = None
    terminator: int | None = None
    """The id that closes the unit in the context; None if nothing of the unit is in it."""
    end: End = End.LISTEN
    drawn_ids: list[int] = field(default_factory=list)
    """Ids decided so far, by a draw or a record."""
    rest_before: int = 0
    text_draws_before: int = 0

    @property
    def recorded(self) -> UnitRecord | None:
        """The recorded outcome of a replayed unit; None if the model decides."""
        return self.unit.input.recorded if self.unit.input is not None else None

    @property
    def is_replayed_to_cancel(self) -> bool:
        """Whether a replayed unit has come to the place at which the recorded unit was cancelled."""
        recorded = self.recorded
        if recorded is None or recorded.end is not End.CANCELLED or self._has_recorded_ids:
            return False
        return not recorded.codes or (self.job is not None and self.job.sound is not None)

    @property
    def _has_recorded_ids(self) -> bool:
        return self.recorded is not None and len(self.drawn_ids) < len(self.recorded.sampled)

    def next_recorded(self) -> int | None:
        """Return the id that was sampled next; None if there is none left."""
        recorded = self.recorded
        return recorded.sampled[len(self.drawn_ids)] if recorded and self._has_recorded_ids else None

    def leads_to(self, end: End, *, speaks: bool) -> bool:
        """Return whether the end of the text matches the record; `speaks` says whether speech may follow."""
        recorded = self.recorded
        if recorded is None:
            return True
        if self._has_recorded_ids or (recorded.codes and not speaks):
            return False
        return recorded.end in (end, End.CANCELLED)

    def begin(self, room: int) -> None:
        """Start deciding the unit, which may feed at most `room` tokens."""
        self.decided_at = time.monotonic()
        self.settings, self.noise = self.ordered
        self.most_steps = min(self.settings.max_new_speak_tokens_per_chunk, room)

    @property
    def input(self) -> Rows:
        """The unit's input rows, `<unit>` included."""
        return Rows.of_ids([]) if self.heard is None else self.heard[self.carried :]

    @property
    def opens_turn(self) -> bool:
        """Whether the next token must be the one with which the model speaks."""
        return self.steps == 0 and self.unit.input is not None and self.unit.input.opens_turn

    @property
    def ordered(self) -> tuple[DuplexSettings, Noise | None]:
        """The settings and the noise that result from the unit's orders."""
        overrides = self.unit.overrides
        if overrides is None or overrides is NO_OVERRIDES:
            return self.settings, self.noise
        noise = self.noise if overrides.seed is None else Noise(overrides.seed)
        return overrides.apply(self.settings), noise

    def feed(self, token: int, *, ends_turn: bool) -> None:
        """Queue a decided token for the next forward."""
        if self.steps > 0:
            self.said.append(token)
        self.steps += 1
        self.turn_ended = ends_turn

    def fed(self, hidden: Tensor) -> None:
        """Take the hidden state [hidden] of the last token fed."""
        if self.said:
            self.hidden.append(hidden)

    @property
    def has_room(self) -> bool:
        """Whether one more step is allowed; the last step belongs to the terminator."""
        return self.steps + 1 < self.most_steps

    @property
    def is_at_last_step(self) -> bool:
        """Whether the next token is the last one to be fed."""
        return self.steps + 2 >= self.most_steps

    def is_too_long_with(self, token: int, tokenizer: Tokenizer) -> bool:
        """Return whether speaking `token` as well would reach the limit of characters."""
        if self.steps == 0 or not tokenizer.is_text(token):
            return False
        said = [*self.said, token]
        if sum(map(tokenizer.most_characters, said)) < MAX_CHARACTERS:
            return False
        return len(tokenizer.decode(said)) >= MAX_CHARACTERS

    def text(self, tokenizer: Tokenizer) -> Piece:
        """Return the unit's words."""
        ids = tuple(token for token in self.said if tokenizer.is_text(token))
        return Piece(self.number, tokenizer.decode(list(ids)), ids)

    def speech(self, state: SpeechState, like: Tensor) -> SpeechJob:
        """Return the unit's speech job; without words it continues the speech of earlier words.

        `like` is any hidden state [hidden], for the dtype and the device.
        """
        if self.job is None:
            self.job = SpeechJob(
                state,
                self.said,
                torch.stack(self.hidden) if self.hidden else like.new_zeros(0, len(like)),
                may_be_short=state.length == 0 or self.turn_ended,
                ends_turn=self.turn_ended,
                temperature=self.settings.tts_temperature,
                noise=self.noise or state.noise,
                recorded=self.recorded.codes if self.recorded is not None else None,
            )
        return self.job


@dataclass(eq=False)
class DuplexSession(Session[PreparedInput], SpeakingSession):
    """One full-duplex session: its context, ear, voice, random numbers and place in the unit loop."""

    _: KW_ONLY
    setup: DuplexSetup
    tokenizer: Tokenizer
    sampler: TextSampler
    speech: SpeechState
    unit_tokens: int
    """Embeddings of one unit's audio."""
    word_tokens: int = 0
    """Most tokens that a recogniser adds to a unit."""
    slice_tokens: int = 0
    """Embeddings of one slice of a picture, with the marks round them."""
    forbidden_ids: frozenset[int] = frozenset()
    """Ids that are never decided, not even by a record."""
    turn_bound: TurnBound | None = None
    """The bound on open turns; None for a model that always ends its turns."""
    reference_quirks: bool = False
    """Whether to repeat two errors of the reference implementation. A forced listen leaves the speech head in
    the middle of its turn, and a listen after the end of a turn loses the unit's words.
    """
    ear: Any = None
    """State of the ear; None before the session has begun."""
    mouth: MouthState | None = None
    running: DuplexRun | None = None
    turn_open: bool = False
    """Whether a turn is open: the last token fed was anything but `<|turn_eos|>`."""
    turn_units: int = 0
    """Closed units of the open turn."""
    rest: int = 0
    """Number of units that must still listen after a turn that its bound has ended."""
    heard_units: int = 0
    going_back: RestorePoint | None = None
    """The restore point of stage REWIND."""

    longest_unit: int = field(init=False)
    """Tokens that a unit can add: `<unit>`, pictures of one slice each, audio, recognised words, text, an
    ended turn and its terminators."""

    def __post_init__(self) -> None:
        seen = MAX_FRAMES * self.slice_tokens if self.setup.sees else 0
        said = self.setup.duplex.max_new_speak_tokens_per_chunk
        self.longest_unit = 1 + seen + self.unit_tokens + self.word_tokens + said + 1 + _TERMINATORS
        self._special = self.tokenizer.special
        self._past = Past(self._special.turn_eos, (self._special.listen, self._special.unit_end))

    @property
    def is_full(self) -> bool:
        """Whether the next unit might not fit."""
        return not self.context.has_room_for(self.longest_unit)

    @property
    def _is_cancelled(self) -> bool:
        return self.queue.is_cancelled(self._run.unit) or self._run.is_replayed_to_cancel

    @property
    def due(self) -> float | None:
        if self._replays:
            return None  # a replay has no deadline, so that it delays no unit of others
        if self.queue.rewinds:
            return self.queue.rewinds[0].arrival + UNIT_S
        if self.stage in (Stage.OPENING, Stage.PROMPT) or self.queue.first is None:
            return None
        return self.queue.first.arrival + UNIT_S

    @property
    def clip_rows(self) -> int:
        return self.unit_tokens if self._replays else 0

    @property
    def _replays(self) -> bool:
        unit = self.queue.first
        return unit is not None and unit.input is not None and unit.input.recorded is not None

    def slices(self) -> Sequence[Any]:
        unit = self.queue.first
        if unit is None or unit.input is None or not unit.input.pictures or self._refusal() is not None:
            return ()
        return [piece for picture in unit.input.pictures for piece in picture.slices]

    def start_unit(self, carried: list[int], seen: Sequence[Rows], audio: Rows, ear: Any) -> None:
        """Start the next unit with its rows: carried tokens, slices, its audio.

        Each slice has a mark at either end; `ear` is the state after the audio.
        """
        run = self._begin()
        run.vision_slices, marks = len(seen), _MARKS * len(seen)
        run.vision_rows = sum(map(len, seen)) - marks
        text, words = (run.unit.input.text_ids, run.unit.input.word_ids) if run.unit.input else ((), ())
        run.text_rows = self.context.closing + len(text) + 1 + marks + len(words)
        run.audio_rows, run.cached = len(audio), self.context.length
        self.ear = ear
        run.heard = Rows.join(
            [Rows.of_ids([*carried, *text, self._special.unit]), *seen, audio, Rows.of_ids(words)]
        )
        run.carried, self.to_feed = len(carried), run.heard
        self.seen = []
        self.stage = Stage.PREFILL

    def refuse_unit(self) -> bool:
        failure = self._refusal()
        if failure is not None:
            self.seen = []
            self._begin()
            self._heard(End.CONTEXT_FULL if self.is_full else End.FAILED, failure)
        return failure is not None

    def _refusal(self) -> Failure | None:
        unit = self.queue.first
        assert unit is not None
        if self.is_full:
            return _FULL
        return unit.failure or self._invalid_words(unit.input) or self._too_long(unit.input)

    def _invalid_words(self, unit: PreparedInput | None) -> Failure | None:
        """Return why the recorded words of a unit are invalid: control tokens would break the
        unit's shape.
        """
        is_text = self.tokenizer.is_text
        return None if unit is None or all(map(is_text, unit.word_ids)) else _NO_WORDS

    def _too_long(self, unit: PreparedInput | None) -> Failure | None:
        """Return why a text or pictures of several slices do not fit, where single slices without
        text would.
        """
        slices = [len(picture.slices) for picture in unit.pictures] if unit else []
        text = len(unit.text_ids) if unit else 0
        tokens = self.longest_unit + self.slice_tokens * max(0, sum(slices) - MAX_FRAMES) + text
        if self.context.has_room_for(tokens) and tokens <= self.context.free:
            return None
        if text:
            problem = f"have {text} tokens, for which there is no room in the context"
            return Failure(Reason.INPUT_TOO_LONG, f"duplex.texts {problem}.", "duplex.texts")
        problem = f"are {sum(slices)} slices, for which there is no room in the context"
        return Failure(
            Reason.INPUT_TOO_LONG,
            f"duplex.frames {problem}. Ask for fewer with max_slice_nums.",
            "duplex.frames",
        )

    def _begin(self) -> DuplexRun:
        assert self.queue.first is not None
        history = self.sampler.history
        self.running = DuplexRun(self.queue.first, self.setup.duplex, self.ear, self.turn_open, history)
        self.running.replayed = self._replays
        self.running.rest_before, self.running.text_draws_before = self.rest, self.sampler.noise.drawn
        return self.running

    def taken(self) -> None:
        match self.stage:
            case Stage.PROMPT:
                self.context.end_prompt()
                self.events.append(Ready(self.context.prompt))
                self.stage = Stage.IDLE
            case Stage.PREFILL if self._run.heard_at:
                self.stage = Stage.HEARD
            case Stage.PREFILL:
                self.heard_units += 1
                self._run.heard_at = time.monotonic()
                self._heard()
            case Stage.REWIND:
                self._gone_back()
            case _:
                assert self.last_hidden is not None
                self._run.fed(self.last_hidden)
                if not self._run.has_room:
                    self._text_complete(self._special.chunk_eos, Finish.LENGTH)

    def _heard(self, end: End = End.LISTEN, failure: Failure | None = None) -> None:
        """Note that the unit is in the context; with a `failure` nothing of it is, and the unit will end with
        `end`.
        """
        self._run.end, self._run.failure = end, failure
        self.events.append(self._run.prefilled(self.context.tokens))
        self.stage = Stage.HEARD

    def begin_generate(self) -> bool:
        """Apply the unit's orders; return False if it ends without the model: failed, cancelled or forced."""
        run = self._run
        run.begin(self.context.free - _TERMINATORS)
        if run.failure is not None:
            self._finish(None, run.end)
        elif run.unit.rejection is not None:
            run.failure = run.unit.rejection
            self._reset_voice()
            self._finish(self._special.chunk_eos, End.FAILED)
        elif self._is_cancelled:
            self._cancel()
        elif self._listens_without_decision():
            self.rest = max(0, self.rest - 1)
            self._listen()
        else:
            self.stage = Stage.DECODE
        return self.stage is Stage.DECODE

    def _listens_without_decision(self) -> bool:
        """Return whether the running unit listens without a decision, by rule or by its record."""
        recorded = self._run.recorded
        if recorded is None:
            return self._must_listen(self.heard_units, self._run.settings)
        return recorded.end is End.LISTEN and not recorded.sampled and not recorded.codes

    def _must_listen(self, number: int, settings: DuplexSettings) -> bool:
        """Return whether the running unit, the `number`th that was heard, must listen."""
        unit = self.queue.first
        if unit is not None and unit.input is not None and unit.input.opens_turn:
            return unit.force_listen
        return self._run.unit.force_listen or number <= settings.force_listen_count or self.rest > 0

    def _listen(self) -> None:
        """Force a listen, which closes an open turn; its `<|turn_eos|>` is carried into the next forward."""
        if self.turn_open:
            self.context.pending.append(self._special.turn_eos)
            self.turn_open = False
            self._reset_voice(forgets_speech=not self.reference_quirks)
        self._finish(self._special.listen, End.LISTEN)

    def foresee(self) -> Draw | None:
        run = self.running
        if run is None or run.failure is not None or run.recorded is not None:
            return None
        if self.stage is Stage.DECODE and run.has_room:
            return self.sampler.draw(run.settings, run.noise)
        if self.stage is not Stage.PREFILL or run.unit.overrides is None or run.unit.rejection is not None:
            return None
        settings, noise = run.ordered
        forced = self._must_listen(self.heard_units + 1, settings)
        return None if forced else self.sampler.draw(settings, noise)

    def draw(self) -> Draw | None:
        if self._is_cancelled:
            self._cancel()
            return None
        if self._run.recorded is not None:
            self._replay()
            return None
        return self.sampler.draw(self._run.settings, self._run.noise)

    def _replay(self) -> None:
        """Decide the next token by the record."""
        sampled = self._run.next_recorded()
        if sampled is None or sampled in self.forbidden_ids:
            self._refuse_record()
        elif (token := self.decide(sampled)) is not None:
            self.feed(token)

    def _refuse_record(self) -> None:
        """Fail the unit and undo it, because its record contradicts the rules of a unit."""
        run = self._run
        self.context.rewind()
        self.ear, self.turn_open, self.rest = run.ear_before, run.turn_was_open, run.rest_before
        self.sampler.history, self.sampler.noise.drawn = run.decided_before, run.text_draws_before
        run.failure = _MISMATCHED
        self._finish(None, End.FAILED)

    def decide(self, token: int | None) -> int | None:
        """Take the drawn token; return the token to feed, or None if the unit's text is complete.

        A listen in an open turn becomes `<|tts_bos|>`.
        """
        run = self._run
        if token is None:
            self.poisoned()
            return None
        self.sampler.decided(token, run.settings, run.noise)
        run.drawn_ids.append(token)
        run.sampled += run.recorded is None
        if run.opens_turn and not self.turn_open:
            token = self._special.speak
        elif token == self._special.listen and self.turn_open:
            token = self._special.tts_bos
        token = self._within_turn_bound(token)
        if token in self._special.terminators:
            self._text_complete(token, Finish.EOS)
        elif run.is_too_long_with(token, self.tokenizer):
            self._text_complete(self._special.chunk_eos, Finish.LENGTH)
        else:
            return token
        return None

    def _within_turn_bound(self, token: int) -> int:
        """Return the decided token; in the last unit of a bounded turn, a token that ends the unit ends the
        turn instead.
        """
        run, bound = self._run, self.turn_bound
        if bound is None or self.turn_units + 1 < bound.units:
            return token
        if run.turn_ended:
            return self._special.chunk_eos
        ends = token in self._special.terminators or run.is_too_long_with(token, self.tokenizer)
        if not self.turn_open or not (ends or run.is_at_last_step):
            return token
        self.rest = bound.rest
        return self._special.turn_eos

    def feed(self, token: int) -> None:
        self._run.feed(token, ends_turn=token == self._special.turn_eos)
        self.turn_open = not self._run.turn_ended
        self.to_feed = Rows.of_ids([token])

    def _text_complete(self, terminator: int, finish: Finish) -> None:
        run = self._run
        if self._is_cancelled:
            self._cancel()
            return
        run.terminator, run.finish = terminator, finish
        run.begin_speech()
        is_lost = self.reference_quirks and terminator == self._special.listen
        listens = is_lost or (run.steps == 0 and not self.turn_open)
        end = End.LISTEN if listens else End.TURN if run.turn_ended else End.CHUNK
        if not run.leads_to(end, speaks=self.mouth is not None and not listens):
            self._refuse_record()
            return
        if listens:
            self._finish(terminator, End.LISTEN)
            return
        text = run.text(self.tokenizer)
        if text.token_ids and run.recorded is None:
            self.events.append(text)
        run.end = end
        self.stage = Stage.SPEAK

    def speech_job(self) -> SpeechJob | None:
        if self._is_cancelled or self.mouth is None or not self._run.settings.generate_audio:
            return None
        assert self.last_hidden is not None
        return self._run.speech(self.speech, self.last_hidden)

    def spoken(self, audio: Tensor | None, spoken_at: float) -> None:
        """End the unit with its finished speech, or without speech."""
        run = self._run
        run.codes = len(run.job.codes) if run.job and run.recorded is None else 0
        run.end_speech(spoken_at)
        if self._is_cancelled:
            self._cancel()
            return
        if run.job is not None and run.job.poisoned:
            run.end, run.failure = End.FAILED, _POISONED
        elif audio is not None and len(audio):
            run.samples = len(audio)
            if run.recorded is None:
                self.events.append(Piece(run.number, audio=audio.numpy()))
        if run.turn_ended or run.failure is not None:
            self._reset_voice()
        self._finish(run.terminator, run.end)

    def _reset_voice(self, *, forgets_speech: bool = True) -> None:
        """Reset speech head and vocoder for the next words."""
        if forgets_speech:
            self.speech.end_turn()
        if self.mouth is not None:
            self.mouth.reset()

    def _cancel(self) -> None:
        """Cancel a heard unit: the fed tokens stay in the context, and the turn stays as they left it."""
        self._reset_voice()
        self._finish(self._special.chunk_eos, End.CANCELLED)

    def poisoned(self) -> None:
        """Fail the unit and undo it, so that the session can go on; fail the session outside units."""
        self.to_feed = None
        if self.stage is Stage.PROMPT:
            self.events.append(SessionFailed("INFERENCE_FAILED", "The model cannot read this prompt."))
            return
        if self.stage is Stage.REWIND:
            self.fail(SessionFailed("INFERENCE_FAILED", "The model could not rebuild the context to rewind."))
            return
        self.context.rewind()
        self.ear, self.turn_open = self._run.ear_before, self._run.turn_was_open
        if self.stage is Stage.PREFILL and self._run.heard_at:
            self._run.end, self._run.failure, self.stage = End.FAILED, _POISONED, Stage.HEARD
        elif self.stage is Stage.PREFILL:
            self._heard(End.FAILED, _POISONED)
        else:
            self._run.failure = _POISONED
            self._finish(None, End.FAILED)

    def _finish(self, terminator: int | None, end: End) -> None:
        run = self._run
        run.terminator = terminator
        if run.recorded is not None and run.failure is None:
            self.sampler.noise.drawn = run.recorded.text_draws
            self.speech.noise.drawn = run.recorded.speech_draws
        if self.setup.records and terminator is not None:
            run.record = self._record(end)
        fits = self.context.has_room_for(_TERMINATORS + self.longest_unit)
        if end in (End.LISTEN, End.CHUNK, End.TURN) and not fits:
            end = End.CONTEXT_FULL
        self.turn_units = self.turn_units + 1 if self.turn_open else 0
        if end is End.CONTEXT_FULL:
            run.record = None
        self.conclude(run, end)

    def _record(self, end: End) -> UnitRecord | None:
        """Return the record of the running unit; None if it cannot be replayed."""
        run = self._run
        if run.job is not None and run.job.poisoned:
            return None
        # A rejected unit has input and no output, like a cancelled unit.
        end = End.CANCELLED if end is End.FAILED else end
        is_said = run.job is not None and run.job.sound is not None
        codes = tuple(run.job.codes) if run.job is not None and is_said else ()
        draws = self.sampler.noise.drawn, self.speech.noise.drawn
        words = run.unit.input.word_ids if run.unit.input is not None else ()
        return UnitRecord(end, tuple(run.drawn_ids), codes, *draws, words)

    def end_unit(self) -> None:
        run, context = self._run, self.context
        if run.terminator is not None:
            heard = run.input
            said = [token for token in run.said if self.tokenizer.is_text(token)]
            context.end_unit([run.terminator, self._special.unit_end], said)
            self._past.add(
                PastUnit(
                    run.number,
                    len(heard),
                    heard,
                    run.steps,
                    run.samples,
                    list(context.pending),
                    run.turn_was_open,
                    run.decided_before,
                )
            )

    def finalize(self) -> None:
        dropped = self.context.slide()
        self._past.drop(dropped)
        self.events.append(Finalized(self._run.number, self.context.tokens, dropped, self.usage))
        self.queue.close_first()
        self.running = None
        self.stage = Stage.IDLE

    # ---------------------------------------------------------------------------------------------- rewind

    @property
    def wants_decision(self) -> bool:
        return super().wants_decision and not self.wants_rewind

    @property
    def wants_rewind(self) -> bool:
        return self.queue.may_rewind and self.stage in (Stage.IDLE, Stage.HEARD)

    def rewind(self) -> None:
        """Remove words that the user has not heard from the context, and nothing else."""
        order = self.queue.rewinds[0]
        way = self._past.way_back(order.unit, order.heard_samples)
        if not isinstance(way, RestorePoint):
            self._answer_rewind(0, way)
            return
        run = self.running
        if run is not None and run.failure is None:
            self.context.rewind()
        first = self._past.go_back(way)
        self.context.take_back(way.index, first.length, way.closing)
        self._reset_voice()
        self.turn_open, self.turn_units, self.rest = False, 0, 0
        assert first.decided is not None
        self.sampler.history = first.decided
        if run is not None:
            run.turn_was_open, run.decided_before = False, first.decided
        self.going_back, self.stage = way, Stage.REWIND
        if not way.again:
            self._gone_back()
            return
        silence = Rows.of_ids(self._past.silence)
        parts = [Rows.of_ids(self.context.carry())]
        for past in way.again:
            assert past.input is not None
            parts += [past.input, silence]
        self.to_feed = Rows.join(parts[:-1])

    def _gone_back(self) -> None:
        """Complete a rewind, once the units after its restore point were fed again."""
        way, run = self.going_back, self.running
        assert way is not None
        if way.again:
            self.context.heard_again([past.length for past in way.again], self._past.silence)
        self.going_back = None
        self._answer_rewind(way.units)
        if run is None:
            self.stage = Stage.IDLE
        elif run.failure is not None:
            self.stage = Stage.HEARD
        else:
            self.stage = Stage.PREFILL
            self.to_feed = Rows.join([Rows.of_ids(self.context.carry()), run.input])

    def _answer_rewind(self, units: int, failure: Failure | None = None) -> None:
        order = self.queue.rewinds.popleft()
        self.events.append(Rewound(order.unit, self.context.tokens, units, failure))

    def leave(self) -> None:
        super().leave()
        self.ear = self.mouth = self.running = None

    @property
    def _run(self) -> DuplexRun:
        assert self.running is not None
        return self.running
