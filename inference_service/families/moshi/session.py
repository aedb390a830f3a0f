"""A conversation with Moshi: each frame of the user is answered by a frame of the model, often silence.

A row of the temporal transformer holds the text and the first code that were drawn after the previous row. It
also holds the first code of the user's frame. All other codes of both streams come one row late. So a frame
of the model's sound is complete, and is sent, once the row of the same time has been computed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.draw import Draw
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.rolling import RollingContext
from inference_service.families.moshi.draws import FrameDraws
from inference_service.families.moshi.frame_run import FrameRun, Heard
from inference_service.families.moshi.monologue import Monologue
from inference_service.families.moshi.rewind import History, PastFrame
from inference_service.interface.engine import (
    End,
    Failure,
    Finalized,
    Finish,
    Ready,
    Rewound,
    SessionFailed,
)
from inference_service.interface.setups import NO_OVERRIDES, DuplexSettings, DuplexSetup
from inference_service.models.moshi.mimi import ConvState
from inference_service.models.moshi.model import Codes
from inference_service.session.base.session import Session, Stage

_POISONED = Failure("INFERENCE_FAILED", "The model gave no usable numbers for this unit.", retryable=True)


@dataclass(frozen=True)
class OwnTokens:
    """The model's own tokens in the next row."""

    text: int
    first: int
    """The first code of the frame of the next row."""
    late: Codes
    """The other codes of the previous frame."""


@dataclass(frozen=True)
class FrameState:
    """The state before a frame, to which the session returns if the frame fails."""

    row: int
    """The position of its row."""
    ear: int
    """The position of its first row in the ear."""
    ear_state: ConvState
    heard: Tensor


@dataclass(eq=False)
class FrameSession(Session[Heard]):
    """One conversation: its context, codec, random numbers and place in the unit loop.

    The ear is the encoding half of the codec, the mouth the decoding half.
    """

    _: KW_ONLY
    setup: DuplexSetup
    monologue: Monologue
    draws: FrameDraws
    silence: Codes
    """Codes of a silent frame."""
    frame_s: float
    silent_rows: Callable[[Sequence[PastFrame]], Tensor]
    """Returns rows [n, hidden] of frames, computed as if the model had been silent in them."""
    ear: RollingContext
    ear_state: ConvState
    mouth: RollingContext
    mouth_state: ConvState
    unspoken: ConvState
    """The state of a mouth before its first frame."""
    heard: Tensor
    """Codes of the last frame heard, [codes]."""
    said: OwnTokens
    running: FrameRun | None = None
    history: History = field(default_factory=History)
    heard_units: int = 0
    _before: FrameState | None = None
    _drawn_text: int = 0
    _going_back: int = 0
    """Units that lose sound by the running rewind."""

    # -------------------------------------------------------------------------------------------- deadlines

    @property
    def defers_others(self) -> bool:
        """Return false: a tick makes a frame of every session, and waiting frames do not make it longer."""
        return False

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
        self.draws.of_unit = None

    def next_frame(self) -> Tensor:
        """Return the frame to hear, [samples]."""
        unit, run = self.queue.first, self.running
        assert unit is not None
        assert unit.input is not None
        return unit.input[run.frames if run is not None else 0]

    def hear(self, row: Tensor, heard: Tensor, beside: Tensor, ear_state: ConvState, ear_rows: int) -> None:
        """Feed the row [1, hidden] of the next frame.

        `heard` are the codes [codes] that the ear made of it, `beside` the user's codes in the row. The ear's
        context has `ear_rows` more entries.
        """
        if self.running is None:
            self._begin()
        position = self.rolling.position
        self._before = FrameState(position, self.ear.position, self.ear_state, self.heard)
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
            self.draws.of_unit = None if overrides.seed is None else Noise(overrides.seed)
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
        """Whether the running unit must be silent."""
        run = self.running
        if run is None:
            return False
        forced = run.unit.force_listen or self.heard_units <= run.settings.force_listen_count
        return forced or run.failure is not None or self.queue.is_cancelled(run.unit)

    def _fall_silent(self) -> None:
        """Answer the frame with silence, and end an open turn."""
        self.monologue.forget_recent()
        self.quieten()
        self._frame_over()

    def quieten(self) -> None:
        """Put silence into the next row, and start the next sound on a fresh decoder."""
        self.said = OwnTokens(self.monologue.words.pad, self.silence[0], self.silence[1:])
        self.monologue.break_off()
        if self.mouth.length:
            self.mouth.restart()
        self.mouth_state = self.unspoken

    def foresee(self) -> Draw | None:
        if self.stage is Stage.PROMPT:
            return self.draws.text(self.setup.duplex, self.monologue)
        run = self.running
        if self.stage is not Stage.PREFILL or run is None or run.unit.overrides is None:
            return None
        if run.unit.rejection is not None or (run.unit.overrides is not NO_OVERRIDES and not run.decided_at):
            return None
        return None if self._is_silent else self.draws.text(run.settings, self.monologue)

    def draw(self) -> Draw | None:
        if self._is_silent:
            self._fall_silent()
            return None
        return self.draws.text(self._settings, self.monologue)

    @property
    def _settings(self) -> DuplexSettings:
        return self.running.settings if self.running is not None else self.setup.duplex

    def decide(self, token: int | None) -> int | None:
        if token is None:
            self.poisoned()
            return None
        self.draws.text_drawn()
        self._drawn_text = token
        self.monologue.drawn(token)
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
        return self.draws.codes(self._settings, codes)

    @property
    def is_audible(self) -> bool:
        """Whether the current frame becomes sound: with audio on, every frame except that of the prompt."""
        return self.running is not None and self.setup.duplex.generate_audio

    def spoken(self, codes: list[int], pcm: NDArray[np.float32] | None, spoken_at: float) -> None:
        """Take the codes of the frame, negative where numbers were not finite, and its sound [samples]."""
        run = self.running
        if run is not None:
            run.end_speech(spoken_at)
        if min(codes) < 0:
            self.poisoned()
            return
        self.draws.codes_drawn(len(codes))
        if run is None:
            self.said = OwnTokens(self._drawn_text, codes[0], self.said.late)
            self.events.append(Ready(self.context.prompt))
            self.stage = Stage.IDLE
            return
        run.codes += len(codes)
        if self.queue.is_cancelled(run.unit):
            self._fall_silent()
            return
        self.said = OwnTokens(self._drawn_text, codes[0], tuple(codes[1:]))
        self._say(run, pcm)
        self._frame_over()

    def _say(self, run: FrameRun, pcm: NDArray[np.float32] | None) -> None:
        """Send the text and sound [samples] of a frame; outside turns there is neither."""
        written = self.monologue.write(self._drawn_text)
        if not written.in_turn:
            return
        if pcm is not None:
            self.history.sent(run.samples, len(pcm))
        run.say(written, pcm)

    def _frame_over(self) -> None:
        """Go on to the next frame of the unit, or end the unit."""
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
            self.events += run.pieces()
        run.finish = Finish.EOS if run.sampled else None
        self.conclude(run, end)

    # ------------------------------------------------------------------------------------------------ ending

    def poisoned(self) -> None:
        """Fail the unit and remove its frame, so that the session can go on."""
        self.to_feed = self.last_hidden = None
        if self.stage is Stage.REWIND:
            self.fail(SessionFailed("INFERENCE_FAILED", "The model cannot hear the earlier frames again."))
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
        """Do nothing: the window of the context slides row by row, not unit by unit."""

    def finalize(self) -> None:
        self.events.append(Finalized(self._run.number, self.context.tokens, 0, self.usage))
        self.queue.close_first()
        self.running = self.draws.of_unit = None
        self.stage = Stage.IDLE

    # -------------------------------------------------------------------------------------------- going back

    @property
    def wants_rewind(self) -> bool:
        return self.queue.may_rewind and self.stage in (Stage.IDLE, Stage.HEARD)

    def rewind(self) -> None:
        """Replace unheard speech by silence, and feed the user's frames of that time again."""
        order = self.queue.rewinds[0]
        taken = self.history.take_back(order.unit, order.heard_samples)
        if isinstance(taken, Failure):
            self._answer_rewind(0, taken)
            return
        frames, units = taken
        late = self.said.late
        self.quieten()
        if not frames:
            self.said = replace(self.said, late=late)  # these codes belong to a frame that was heard
            self._answer_rewind(units)
            return
        self._going_back = units
        self.rolling.go_back(frames[0].position)
        self.to_feed = Rows.of(self.silent_rows(frames))
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
        """The context of the temporal transformer."""
        assert isinstance(self.context, RollingContext)
        return self.context

    @property
    def _run(self) -> FrameRun:
        assert self.running is not None
        return self.running
