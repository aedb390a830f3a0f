"""The common part of all transcription sessions."""

import time
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference_service.engine.batch.draw import UNIFORMS, Draw, drawn_by
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.scheduler import UNIT_S
from inference_service.interface.engine import (
    End,
    Failure,
    Finalized,
    Finish,
    ModelInfo,
    Piece,
    Ready,
)
from inference_service.interface.setups import (
    Content,
    DuplexSettings,
    Mode,
    Sampling,
    StreamInput,
    TranscribeSetup,
    Window,
)
from inference_service.media.pool import Priority
from inference_service.models.voxtral import Pacing
from inference_service.session.base.session import Run, Session, Stage
from inference_service.session.kinds.components import ROWS_PER_SECOND
from inference_service.session.kinds.text import Detokenizer

FRAME_S = 0.01
"""Seconds between two frames of log-mel."""
_LONG_SOUND = 160_000
"""Samples beyond which preparing a chunk takes long."""
_POISONED = Failure("INFERENCE_FAILED", "The model gave no usable numbers for this unit.", retryable=True)
_FULL = Failure("INPUT_TOO_LONG", "The context is full; begin a new utterance.")


def priority_of(content: Content | None) -> Priority:
    """Return the media pool's priority for a chunk; a long recording takes long."""
    chunk = content.chunk if isinstance(content, StreamInput) else None
    return Priority.REST if isinstance(chunk, np.ndarray) and len(chunk) > _LONG_SOUND else Priority.SOUND


def transcriber_info(name: str, pacing: Pacing, limit: int, vocabulary: int) -> ModelInfo:
    """Return the description of a model that only transcribes, in utterances of at most `limit` tokens."""
    return ModelInfo(
        name=name,
        context_limit=limit,
        input_sample_rate_hz=pacing.sample_rate_hz,
        output_sample_rate_hz=0,
        unit_seconds=pacing.samples_per_token / pacing.sample_rate_hz,
        duplex_defaults=DuplexSettings(),
        window=Window(),
        modes=frozenset({Mode.TRANSCRIBE}),
        sampling_defaults=Sampling(max_new_tokens=limit, temperature=0.0, top_p=1.0),
        speaks=False,
        vocabulary=vocabulary,
    )


def chunk_of(content: Content) -> tuple[StreamInput, NDArray[np.float32]]:
    """Return a unit's input and the sound in it, float32 [samples]."""
    if not isinstance(content, StreamInput):
        raise TypeError(f"A transcription takes StreamInput, not {type(content).__name__}.")
    if isinstance(content.chunk, tuple | str):
        raise TypeError("A transcription takes chunks of audio.")
    sound = np.zeros(0, np.float32) if content.chunk is None else content.chunk
    return content, sound


class PaddedSound:
    """Sound of successive utterances, float32 [samples], each between the silences that it needs."""

    def __init__(self, pacing: Pacing, before: int, behind: int) -> None:
        """Create an empty buffer; the features of a token reach `before` and `behind` samples beyond its
        sound.
        """
        self._pacing = pacing
        self._before, self._behind = before, behind
        self._begin()

    def _begin(self) -> None:
        lead_in = self._pacing.left_pad_tokens * self._pacing.samples_per_token
        self.rest = np.zeros(self._before + lead_in, np.float32)
        """Sound that no feature has used up; the reader cuts it."""
        self._samples = 0
        self._is_over = False

    def add(self, chunk: StreamInput, sound: NDArray[np.float32]) -> bool:
        """Add the sound of a chunk; return whether an utterance begins with it."""
        begins = chunk.begins or self._is_over
        if begins:
            self._begin()
        self._samples += len(sound)
        self._is_over = chunk.ends
        self.rest = np.concatenate([self.rest, sound])
        if chunk.ends and self._samples:
            size = self._pacing.samples_per_token
            silence = -self._samples % size + self._pacing.right_pad_tokens * size
            self.rest = np.pad(self.rest, (0, silence + self._behind))
        return begins


@dataclass(frozen=True)
class ChunkFeatures:
    """Features of a chunk of sound: log-mel [frames, bands] of the model's steps that it completes."""

    mel: Tensor
    begins: bool
    """Whether an utterance begins with it."""
    ends: bool


@dataclass
class TranscriptionRun(Run[ChunkFeatures]):
    """The unit that a session is transcribing."""

    end: End = End.CHUNK
    noise: Noise | None = None
    """The unit's own source of randomness, if it does not use the session's."""
    written_s: float = 0.0
    """Seconds of the unit that are transcribed."""


@dataclass(eq=False)
class TranscriptionSession(Session[ChunkFeatures]):
    """One transcription session, whose units are heard and transcribed in the model's steps.

    Between two steps of a unit the stage is PREFILL with nothing to feed: it waits for the next step. A
    cancelled unit is heard to its end without producing text.
    """

    setup: TranscribeSetup
    noise: Noise
    text: Detokenizer
    _: KW_ONLY
    running: TranscriptionRun | None = None
    mel: Tensor | None = None
    """Frames of the running unit that wait to be encoded."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling settings of the running unit."""
    is_silent: bool = False
    """Whether the rest of the running unit produces no text."""
    dropped_units: int = 0
    """Steps that the window has dropped during the running unit."""
    _said: list[int] = field(default_factory=list)
    """Text ids of the running unit, for the repetition penalty."""
    _unshown: list[int] = field(default_factory=list)
    """Text ids without any text sent for them yet."""

    @property
    def is_background(self) -> bool:
        return self.setup.is_background

    @property
    def due(self) -> float | None:
        """The deadline in monotonic seconds: each second of a chunk that came faster than real time has its
        own.
        """
        if self.setup.is_background or self.queue.first is None or self.stage is Stage.OPENING:
            return None
        return self.queue.first.arrival + UNIT_S + (self.running.written_s if self.running else 0.0)

    @property
    def clip_rows(self) -> int:
        return ROWS_PER_SECOND

    @abstractmethod
    def restart(self) -> None:
        """Begin a new utterance without the context of the previous one."""

    @abstractmethod
    def decided(self, token: int) -> int | None:
        """Return the token to feed after a decision, or None."""

    @abstractmethod
    def pass_over(self) -> None:
        """Go on in the unit without a decision."""

    @abstractmethod
    def undo(self) -> None:
        """Undo the current step, as far as the model allows."""

    @property
    def forbidden_tokens(self) -> Tensor | None:
        """The ids, on the device, that are never sampled."""
        return None

    @property
    def ending_tokens(self) -> tuple[int, ...]:
        """The ids that the length penalty makes less likely."""
        return ()

    @property
    def has_room(self) -> bool:
        """Whether the next step fits the context."""
        return True

    @property
    def is_cancelled(self) -> bool:
        """Whether the running unit must end without further words."""
        return self.queue.is_cancelled(self.run.unit)

    @property
    def run(self) -> TranscriptionRun:
        """The running unit."""
        assert self.running is not None
        return self.running

    def ready(self, prompt_tokens: int) -> None:
        """Accept units; each utterance will begin with a prompt of `prompt_tokens` tokens."""
        self.events.append(Ready(prompt_tokens))
        self.stage = Stage.IDLE

    def refuse_unit(self) -> bool:
        if self.stage is Stage.IDLE and not self.open_unit():
            return True
        if self.has_room:
            return False
        self._fail(End.CONTEXT_FULL, _FULL)
        return True

    def open_unit(self) -> bool:
        """Start the next unit; return False if nothing of it is to be heard."""
        assert self.queue.first is not None
        unit = self.queue.first
        if unit.input is not None and unit.input.begins:
            self.text.flush()
            self._unshown = []
            self.restart()
        self.running = TranscriptionRun(unit, cached=self.context.length)
        self.last_hidden, self.is_silent, self.dropped_units, self._said = None, False, 0, []
        if unit.input is None:
            assert unit.failure is not None
            self._fail(End.FAILED, unit.failure)
            return False
        self.run.end = End.TURN if unit.input.ends else End.CHUNK
        self.mel = unit.input.mel
        if not len(self.mel):
            self.heard()
        return len(self.mel) > 0

    def taken(self) -> None:
        if self.stage is Stage.PREFILL:
            self.heard()

    def heard(self) -> None:
        """Note that a step is in the context, or the whole input of a unit that completes no step."""
        if self.run.heard_at:
            self._go_on()
        else:
            if self.run.failure is None:
                self.run.heard_at = time.monotonic()
            self.events.append(self.run.prefilled(self.context.tokens))
            self.stage = Stage.HEARD

    def _go_on(self) -> None:
        self.stage = Stage.DECODE
        if self.is_cancelled:
            self.run.end = End.CANCELLED
        if self.is_cancelled or self.is_silent:
            self.is_silent = True
            self.pass_over()

    def begin_generate(self) -> bool:
        run = self.run
        assert run.unit.overrides is not None
        run.decided_at = time.monotonic()
        self.sampling = run.unit.overrides.sampling(self.setup.sampling)
        if run.unit.overrides.seed is not None:
            run.noise = Noise(run.unit.overrides.seed)
        if run.unit.rejection is not None and run.failure is None:
            if self.last_hidden is not None:
                self.undo()
            self._fail(End.FAILED, run.unit.rejection)
        elif run.failure is not None:
            self.finish()
        elif self.last_hidden is None:
            if self.is_cancelled:
                run.end = End.CANCELLED
            self.finish()
        else:
            self._go_on()
        return self.wants_decision

    def draw(self) -> Draw | None:
        if self.run.sampled >= self.sampling.max_new_tokens:
            self._fall_silent(Finish.LENGTH)
        if self.is_cancelled or self.is_silent:
            self._go_on()
            return None
        return drawn_by(self.sampling, self._noise, self._said, self.ending_tokens, self.forbidden_tokens)

    @property
    def _noise(self) -> Noise:
        return self.run.noise or self.noise

    def decide(self, token: int | None) -> int | None:
        if token is None:
            self.poisoned()
            return None
        self._noise.use(UNIFORMS)
        self.run.sampled += 1
        if token in self.sampling.stop_token_ids:
            self._fall_silent(Finish.STOP)
            self._go_on()
            return None
        return self.decided(token)

    def _fall_silent(self, finish: Finish) -> None:
        """Hear the rest of the unit without producing text."""
        self.run.finish, self.is_silent = finish, True

    def say(self, token: int) -> None:
        """Take a decided text token, and send the text that is complete now."""
        self._said.append(token)
        self._unshown.append(token)
        self._show(self.text.add(token))

    def _show(self, text: str) -> None:
        if text:
            self.events.append(Piece(self.run.number, text, tuple(self._unshown)))
            self._unshown = []

    def step_over(self) -> None:
        """Go on to the next step of the unit, if it has one."""
        assert self.mel is not None
        assert self.run.unit.input is not None
        self.to_feed = None
        self.run.written_s = (len(self.run.unit.input.mel) - len(self.mel)) * FRAME_S
        if len(self.mel):
            self.stage = Stage.PREFILL
        else:
            self.finish()

    def finish(self) -> None:
        """Report the end of the unit."""
        run = self.run
        if run.end is End.TURN:
            self._show(self.text.flush())
        if run.end is End.CHUNK and not self.has_room:
            run.end = End.CONTEXT_FULL
        if run.finish is None and run.sampled and run.end in (End.CHUNK, End.TURN):
            run.finish = Finish.EOS
        self.conclude(run, run.end)

    def poisoned(self) -> None:
        self.undo()
        self._fail(End.FAILED, _POISONED)

    def _fail(self, end: End, failure: Failure) -> None:
        """Fail the unit and skip the rest of it; the failure is sent with the next answer of the unit."""
        self.run.end, self.run.failure = end, failure
        self.to_feed = self.last_hidden = self.mel = None
        if self.run.heard_at:
            self.finish()
        else:
            self.heard()

    def end_unit(self) -> None:
        """Do nothing: each step was closed in the context when it was transcribed."""

    def finalize(self) -> None:
        self.dropped_units += self.context.slide()
        self.events.append(Finalized(self.run.number, self.context.tokens, self.dropped_units, self.usage))
        self.queue.close_first()
        self.running = self.mel = None
        self.stage = Stage.IDLE
