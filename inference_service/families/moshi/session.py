"""A conversation with Moshi: in every frame it hears, thinks, and says something, if only silence.

A row of the temporal transformer holds, for its moment, the text and the first code that were drawn behind
the row before, and the first code of what is heard; all other codes of both streams come one row late. So a
frame of the model's sound is complete, and leaves, once the row of its own moment has been computed.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference_service.api.engine import (
    End,
    Failure,
    Finalized,
    Finish,
    Piece,
    Ready,
    Rewound,
    SessionFailed,
)
from inference_service.api.setups import NO_OVERRIDES, DuplexSettings, DuplexSetup
from inference_service.engine.batch.draw import COLDEST, UNIFORMS, Draw
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.rolling import RollingContext
from inference_service.engine.device.rows import Rows
from inference_service.engine.session import Run, Session, Stage
from inference_service.engine.sessions.text import Detokenizer
from inference_service.families.moshi.rewind import History, PastFrame
from inference_service.models.moshi.mimi import ConvState
from inference_service.models.moshi.model import Codes, Words

Heard = list[Tensor]
"""The frames of a unit, float32 [samples] each."""

HOLD: Final = 12
"""Frames without a word after which a turn is over: about a second."""
_POISONED = Failure("INFERENCE_FAILED", "The model gave no usable numbers for this unit.", retryable=True)


@dataclass
class FrameRun(Run[Heard]):
    """The unit being worked on."""

    settings: DuplexSettings
    noise: Noise | None = None
    """Where its draws come from, if not from the session's own."""
    frames: int = 0
    """Frames of it that have been heard."""
    samples: int = 0
    """Samples of its sound."""
    text: str = ""
    ids: list[int] = field(default_factory=list)
    sound: list[NDArray[np.float32]] = field(default_factory=list)
    """What its frames came to: it goes out when the last one is over, as words and then as sound."""
    says: bool = False
    """Whether the model was in a turn in one of its frames."""
    ends_turn: bool = False

    @property
    def has_more(self) -> bool:
        """Whether a frame of it has not been heard."""
        return self.unit.input is not None and self.frames < len(self.unit.input)


@dataclass(frozen=True)
class Said:
    """What the next row holds of the model's own stream."""

    text: int
    first: int
    """The first code of the frame of the next row."""
    late: Codes
    """The other codes of the frame before."""


@dataclass(frozen=True)
class Before:
    """What a frame that goes wrong goes back to."""

    row: int
    """The position of its row."""
    ear: int
    """The position of its first row in the ear."""
    ear_state: ConvState
    heard: Tensor


@dataclass(eq=False)
class FrameSession(Session[Heard]):
    """One conversation: its context, codec, random numbers and place in the loop over its units."""

    _: KW_ONLY
    setup: DuplexSetup
    words: Words
    text: Detokenizer
    noise: Noise
    voice_noise: Noise
    silence: Codes
    """Codes of a frame in which nothing is said."""
    frame_s: float
    again: Callable[[Sequence[PastFrame]], Tensor]
    """Makes rows [n, hidden] of frames in which nothing was said."""
    ear: RollingContext
    ear_state: ConvState
    mouth: RollingContext
    mouth_state: ConvState
    unspoken: ConvState
    """The state of a mouth that has said nothing."""
    heard: Tensor
    """Codes of the frame heard last, [codes]."""
    said: Said
    running: FrameRun | None = None
    history: History = field(default_factory=History)
    hold: int = 0
    """Frames without a word until the open turn is over; 0 outside turns."""
    heard_units: int = 0
    _before: Before | None = None
    _drawn_text: int = 0
    _recent: deque[int] = field(default_factory=lambda: deque(maxlen=512))
    _going_back: int = 0
    _unshown: list[int] = field(default_factory=list)

    # -------------------------------------------------------------------------------------------- deadlines

    @property
    def unit_s(self) -> float:
        unit = self.queue.first
        frames = len(unit.input) if unit is not None and unit.input is not None else 1
        return max(1, frames) * self.frame_s

    @property
    def due(self) -> float | None:
        if self.queue.rewinds:
            return self.queue.rewinds[0].arrival + self.frame_s
        if self.stage in (Stage.OPENING, Stage.PROMPT) or self.queue.first is None:
            return None
        return self.queue.first.arrival + self.unit_s

    # ---------------------------------------------------------------------------------------------- hearing

    def refuse_unit(self) -> bool:
        unit = self.queue.first
        assert unit is not None
        if unit.failure is None:
            return False
        self._begin()
        self._fail(unit.failure)
        return True

    def _begin(self) -> None:
        assert self.queue.first is not None
        self.running = FrameRun(self.queue.first, self.setup.duplex, cached=self.context.tokens)

    def next_frame(self) -> Tensor:
        """Return the frame to hear, [samples]."""
        unit, run = self.queue.first, self.running
        assert unit is not None
        assert unit.input is not None
        return unit.input[run.frames if run is not None else 0]

    def hear(self, row: Tensor, heard: Tensor, beside: Tensor, ear_state: ConvState, ear_rows: int) -> None:
        """Take the row [1, hidden] of the next frame.

        Its codes [codes] were `heard`; `beside` are those of the user's stream in the row.
        """
        if self.running is None:
            self._begin()
        position = self.rolling.position
        self._before = Before(position, self.ear.position, self.ear_state, self.heard)
        self.history.add(PastFrame(self._run.number, position, beside, self.said.late))
        self.heard, self.ear_state = heard, ear_state
        self.ear.advance(ear_rows)
        self._run.frames += 1
        self._run.audio_rows += 1
        self.to_feed = Rows.of(row)
        self.stage = Stage.PREFILL

    def taken(self) -> None:
        match self.stage:
            case Stage.PROMPT:
                self.context.end_prompt()
                self.stage = Stage.DECODE
            case Stage.REWIND:
                self._gone_back()
            case Stage.PREFILL if self._run.decided_at:
                self._decide_or_fall_silent()
            case _:
                self.heard_units += 1
                self._run.heard_at = time.monotonic()
                self.events.append(self._run.prefilled(self.context.tokens))
                self.stage = Stage.HEARD

    # ---------------------------------------------------------------------------------------------- deciding

    @property
    def wants_decision(self) -> bool:
        return super().wants_decision and not self.wants_rewind

    def begin_generate(self) -> bool:
        run = self._run
        overrides = run.unit.overrides
        run.decided_at = time.monotonic()
        if overrides is not None and overrides is not NO_OVERRIDES:
            run.settings = overrides.apply(run.settings)
            run.noise = None if overrides.seed is None else Noise(overrides.seed)
        if run.failure is not None:
            self.conclude(run, End.FAILED)
        elif run.unit.rejection is not None:
            run.failure = run.unit.rejection
            self._fall_silent()
        else:
            self._decide_or_fall_silent()
        return self.stage is Stage.DECODE

    def _decide_or_fall_silent(self) -> None:
        if self._is_silent:
            self._fall_silent()
        else:
            self.stage = Stage.DECODE

    @property
    def _is_silent(self) -> bool:
        """Whether nothing may be said in the running unit."""
        run = self.running
        if run is None:
            return False
        forced = run.unit.force_listen or self.heard_units <= run.settings.force_listen_count
        return forced or run.failure is not None or self.queue.is_cancelled(run.unit)

    def _fall_silent(self) -> None:
        """The frame is heard and answered by silence; a turn is over."""
        self._recent.clear()
        self.quieten()
        self._frame_over()

    def quieten(self) -> None:
        """The next row holds silence, and the next sound begins on a clean voice."""
        self.said = Said(self.words.pad, self.silence[0], self.silence[1:])
        self.text.flush()
        self._unshown = []
        self.hold = 0
        if self.mouth.length:
            self.mouth.restart()
        self.mouth_state = self.unspoken

    def foresee(self) -> Draw | None:
        if self.stage is Stage.PROMPT:
            return self._draw(self.setup.duplex)
        run = self.running
        if self.stage is not Stage.PREFILL or run is None or run.unit.overrides is None:
            return None
        if run.unit.rejection is not None or (run.unit.overrides is not NO_OVERRIDES and not run.decided_at):
            return None
        return None if self._is_silent else self._draw(run.settings)

    def draw(self) -> Draw | None:
        if self._is_silent:
            self._fall_silent()
            return None
        return self._draw(self.running.settings if self.running is not None else self.setup.duplex)

    def _draw(self, settings: DuplexSettings) -> Draw:
        scale = settings.listen_prob_scale
        return Draw(
            0.0 if settings.greedy else settings.temperature,
            settings.top_k,
            settings.top_p,
            self._text_noise.ahead(UNIFORMS),
            recent=np.array(self._recent, np.int32),
            repetition_penalty=settings.text_repetition_penalty,
            favoured=self.words.pad,
            bias=log(scale) if scale > 0 else -np.inf,
        )

    @property
    def _text_noise(self) -> Noise:
        return self.noise if self.running is None or self.running.noise is None else self.running.noise

    @property
    def _voice_noise(self) -> Noise:
        own = self.running.noise if self.running is not None else None
        return self.voice_noise if own is None else own

    def decide(self, token: int | None) -> int | None:
        if token is None:
            self.poisoned()
            return None
        self._text_noise.use(UNIFORMS)
        self._drawn_text = token
        if token not in self.words.silent:
            self._recent.append(token)
        if self.running is not None:
            self.running.sampled += 1
            self.running.begin_speech()
        self.stage = Stage.SPEAK
        return None

    def feed(self, token: int) -> None:
        raise TypeError("The text of a frame is fed with its codes.")

    # ---------------------------------------------------------------------------------------------- speaking

    @property
    def drawn_text(self) -> int:
        """The text that was drawn for the next row."""
        return self._drawn_text

    def code_numbers(self, codes: int) -> tuple[float, list[float]]:
        """Return the temperature of the frame's codes, and a random number for each."""
        settings = self.running.settings if self.running is not None else self.setup.duplex
        is_greedy = settings.greedy or settings.tts_temperature < COLDEST
        return 0.0 if is_greedy else settings.tts_temperature, self._voice_noise.ahead(codes)

    @property
    def is_heard(self) -> bool:
        """Whether the frame under way is to become sound: all are but the one before the first unit."""
        return self.running is not None and self.setup.duplex.generate_audio

    def spoken(self, codes: list[int], pcm: NDArray[np.float32] | None, spoken_at: float) -> None:
        """The codes of the frame, negative ones if they are no numbers, and its sound [samples]."""
        run = self.running
        if run is not None:
            run.end_speech(spoken_at)
        if min(codes) < 0:
            self.poisoned()
            return
        self._voice_noise.use(len(codes))
        if run is None:
            self.said = Said(self._drawn_text, codes[0], self.said.late)
            self.events.append(Ready(self.context.prompt))
            self.stage = Stage.IDLE
            return
        run.codes += len(codes)
        if self.queue.is_cancelled(run.unit):
            self._fall_silent()
            return
        self.said = Said(self._drawn_text, codes[0], tuple(codes[1:]))
        self._say(run, pcm)
        self._frame_over()

    def _say(self, run: FrameRun, pcm: NDArray[np.float32] | None) -> None:
        """Give out the text and sound of a frame; outside turns there is neither."""
        token, was_open = self._drawn_text, self.hold > 0
        text = ""
        if token in self.words.silent:
            self.hold = max(0, self.hold - 1)
        else:
            self.hold = HOLD
            self._unshown.append(token)
            text = self.text.add(token)
        if not was_open and not self.hold:
            return
        run.says = True
        run.ends_turn = was_open and not self.hold
        if run.ends_turn:
            text += self.text.flush()
        if text:
            run.text += text
            run.ids += self._unshown
            self._unshown = []
        if pcm is not None:
            self.history.sent(run.samples, len(pcm))
            run.samples += len(pcm)
            run.sound.append(pcm)

    def _give_out(self, run: FrameRun) -> None:
        """The words and the sound of the unit that is over."""
        if run.text:
            self.events.append(Piece(run.number, run.text, tuple(run.ids)))
        if run.sound:
            sound = run.sound[0] if len(run.sound) == 1 else np.concatenate(run.sound)
            self.events.append(Piece(run.number, audio=sound))

    def _frame_over(self) -> None:
        """The next frame of the unit is to be heard; without one the unit ends."""
        run = self._run
        if run.has_more and run.failure is None:
            self.stage = Stage.PREFILL
            return
        if run.failure is not None:
            end = End.FAILED
        elif self.queue.is_cancelled(run.unit):
            end = End.CANCELLED
        elif run.ends_turn:
            end = End.TURN
        else:
            end = End.CHUNK if run.says else End.LISTEN
        if end not in (End.FAILED, End.CANCELLED):
            self._give_out(run)
        run.finish = Finish.EOS if run.sampled else None
        self.conclude(run, end)

    # ------------------------------------------------------------------------------------------------ ending

    def poisoned(self) -> None:
        """The unit fails; the frame leaves no trace, so that the session can go on."""
        self.to_feed = self.last_hidden = None
        if self.stage is Stage.REWIND:
            self.fail(SessionFailed("INFERENCE_FAILED", "The model cannot hear again what it heard."))
            return
        if self.running is None:
            self.fail(SessionFailed("INFERENCE_FAILED", "The model cannot read this prompt."))
            return
        before = self._before
        assert before is not None
        self.rolling.go_back(before.row)
        self.ear.go_back(before.ear)
        self.ear_state, self.heard = before.ear_state, before.heard
        self.history.forget()
        self.quieten()
        self._fail(_POISONED)

    def _fail(self, failure: Failure) -> None:
        run = self._run
        run.failure = failure
        if run.heard_at:
            self.conclude(run, End.FAILED)
        else:
            self.events.append(run.prefilled(self.context.tokens))
            self.stage = Stage.HEARD

    def end_unit(self) -> None:
        """The context knows no units: its window slides row by row."""

    def finalize(self) -> None:
        self.events.append(Finalized(self._run.number, self.context.tokens, 0, self.usage))
        self.queue.close_first()
        self.running = None
        self.stage = Stage.IDLE

    # -------------------------------------------------------------------------------------------- going back

    @property
    def wants_rewind(self) -> bool:
        return self.queue.may_rewind and self.stage in (Stage.IDLE, Stage.HEARD)

    def rewind(self) -> None:
        """What was said and not heard becomes silence; what the user said meanwhile is heard again."""
        order = self.queue.rewinds[0]
        taken = self.history.take_back(order.unit, order.heard_samples)
        if isinstance(taken, Failure):
            self._answer_rewind(0, taken)
            return
        frames, units = taken
        late = self.said.late
        self.quieten()
        if not frames:
            self.said = replace(self.said, late=late)  # of a frame that was heard
            self._answer_rewind(units)
            return
        self._going_back = units
        self.rolling.go_back(frames[0].position)
        self.to_feed = Rows.of(self.again(frames))
        self.history.silenced(frames, self.silence[1:])
        self.stage = Stage.REWIND

    def _gone_back(self) -> None:
        self._answer_rewind(self._going_back)
        self.stage = Stage.IDLE if self.running is None else Stage.HEARD

    def _answer_rewind(self, units: int, failure: Failure | None = None) -> None:
        order = self.queue.rewinds.popleft()
        self.events.append(Rewound(order.unit, self.context.tokens, units, failure))

    def leave(self) -> None:
        super().leave()
        self.running, self.history = None, History()
        self.ear_state = self.mouth_state = ()

    @property
    def rolling(self) -> RollingContext:
        """Its context, which looks back on a window."""
        assert isinstance(self.context, RollingContext)
        return self.context

    @property
    def _run(self) -> FrameRun:
        assert self.running is not None
        return self.running
