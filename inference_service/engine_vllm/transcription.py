"""A transcription of the vLLM engine: one request of its streaming input for each utterance.

The model takes a token and its sound, and gives the next token, step by step. A cancel does not end the
request, because that would lose the utterance: the rest of the unit is heard without producing text.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon.contract import Reason
from inference_service.engine_vllm.generator import Generator, Request, Sampled
from inference_service.engine_vllm.session import VllmSession
from inference_service.interface.engine import (
    Deliver,
    End,
    Event,
    Failure,
    Finish,
    Piece,
    Ready,
    Sink,
)
from inference_service.interface.setups import (
    Content,
    Sampling,
    Tenant,
    TranscribeSetup,
)
from inference_service.media.pool import Priority
from inference_service.models.tekken import Tekken
from inference_service.models.voxtral import Pacing
from inference_service.session.base.session import Preprocessor, QueuedUnit, Run
from inference_service.session.kinds.text import Detokenizer
from inference_service.session.kinds.transcription import PaddedSound, chunk_of, priority_of

_LOOK_BACK: Final = 800
_LOOK_AHEAD: Final = 40
"""Samples around the sound of a token that its mel frames and their convolutions read.

vLLM's own server looks back 840 samples, which is no multiple of the 160 between two frames. So all frames
except the prompt's are 2.5 ms off those of the whole sound. With 800 they are the same.
"""
_FULL: Final = Failure(Reason.INPUT_TOO_LONG, "The context is full; begin a new utterance.")
_SEED: Final = Failure(
    Reason.PARAMS_INVALID,
    "sampling.seed cannot be set for a unit of a transcription with the engine vllm; set the session's.",
    "sampling.seed",
)

Sound = NDArray[np.float32]


@dataclass(frozen=True)
class HearingRules:
    """Tokens and pace of a model, and the limits of an utterance."""

    tekken: Tekken
    pacing: Pacing
    prompt: tuple[int, ...]
    """Ids that begin an utterance, fed with the sound of as many tokens."""
    pad: int
    """The id that is fed where none was decided."""
    limit: int
    """Limit of tokens of an utterance."""

    @property
    def silence(self) -> Sound:
        """Silence in place of the sound of the prompt, for an utterance that begins after skipped sound."""
        return np.zeros(len(self.prompt) * self.pacing.samples_per_token + _LOOK_AHEAD, np.float32)


@dataclass(frozen=True)
class Steps:
    """The sound of each of the model's steps that a chunk completes, float32 [samples]."""

    sounds: tuple[Sound, ...]
    begins: bool
    """Whether an utterance begins with the first of them."""
    ends: bool


class StepPreprocessor(Preprocessor[Steps]):
    """Cuts chunks of any length into the sound of whole tokens, with silence before and after an
    utterance.
    """

    def __init__(self, rules: HearingRules) -> None:
        self._rules = rules
        self._sound = PaddedSound(rules.pacing, 0, _LOOK_AHEAD)
        self._begin()

    def _begin(self) -> None:
        self._before, self._tokens = 0, self._rules.pacing.prompt_tokens

    def priority(self, content: Content | None) -> Priority:
        return priority_of(content)

    def prepare(self, content: Content) -> Steps:
        chunk, sound = chunk_of(content)
        begins = self._sound.add(chunk, sound)
        if begins:
            self._begin()
        return Steps(tuple(self._sounds()), begins, chunk.ends)

    def _sounds(self) -> Iterator[Sound]:
        size = self._rules.pacing.samples_per_token
        while len(self._sound.rest) >= (end := self._before + self._tokens * size + _LOOK_AHEAD):
            yield self._sound.rest[:end]
            self._sound.rest = self._sound.rest[end - _LOOK_AHEAD - _LOOK_BACK :]
            self._before, self._tokens = _LOOK_BACK, 1


class Utterance:
    """A request that grows by one step at a time."""

    def __init__(self, generator: Generator) -> None:
        self._steps: asyncio.Queue[Request] = asyncio.Queue()
        self._tokens = generator.listen(self._given())

    async def _given(self) -> AsyncGenerator[Request, None]:
        while True:
            yield await self._steps.get()

    async def hear(self, step: Request) -> Sampled:
        """Return the token that follows a step. Raises `GeneratorDead`."""
        self._steps.put_nowait(step)
        sampled = await anext(self._tokens, None)
        if sampled is None:
            raise RuntimeError("vLLM ended a transcription before its last token.")
        return sampled

    async def close(self) -> None:
        """Abort the request."""
        await self._tokens.aclose()


@dataclass
class HearingRun(Run[Steps]):
    """The unit that a session is transcribing."""

    _: KW_ONLY
    sampling: Sampling
    end: End
    sounds: tuple[Sound, ...] = ()


class VllmTranscription(VllmSession[Steps]):
    """One TRANSCRIBE session."""

    def __init__(
        self,
        session_id: str,
        sink: Sink,
        setup: TranscribeSetup,
        rules: HearingRules,
        generator: Generator,
        deliver: Deliver,
    ) -> None:
        super().__init__(session_id, sink, StepPreprocessor(rules), generator, deliver)
        self._setup = setup
        self._rules = rules
        self._utterance: Utterance | None = None
        self._fed = 0
        self._token: int | None = None
        """The id that is fed with the next sound; None before the prompt."""
        self._is_lost = False
        """Whether sound was skipped, so that the next sound begins an utterance."""
        self._text = Detokenizer(rules.tekken.decode)
        self._unshown: list[int] = []
        """Ids without any text sent for them yet."""
        self._run: HearingRun | None = None

    @property
    def run(self) -> HearingRun:
        assert self._run is not None
        return self._run

    @property
    def context_tokens(self) -> int:
        return self._fed

    def begin(self) -> Event:
        return Ready(len(self._rules.prompt))

    async def live(self) -> None:
        try:
            await super().live()
        finally:
            await self._end_utterance()

    async def _take(self, unit: QueuedUnit[Steps]) -> None:
        if self._is_lost or (unit.input is not None and unit.input.begins):
            await self._restart()
        await super()._take(unit)

    async def _restart(self) -> None:
        await self._end_utterance()
        self._text.flush()
        self._fed, self._token, self._unshown = 0, None, []

    async def _end_utterance(self) -> None:
        utterance, self._utterance = self._utterance, None
        if utterance is not None:
            await utterance.close()

    def read(self, unit: QueuedUnit[Steps]) -> None:
        steps = unit.input
        ends = steps is not None and steps.ends
        self._run = run = HearingRun(
            unit, sampling=self._setup.sampling, end=End.TURN if ends else End.CHUNK, cached=self._fed
        )
        run.failure = unit.failure
        if steps is None or run.failure is not None:
            return
        run.sounds = steps.sounds
        if self._is_lost and not steps.begins and run.sounds:
            run.sounds = (self._rules.silence, *run.sounds)
        self._is_lost = self._is_lost and not run.sounds and not steps.begins
        if run.sounds and not self._has_room:
            run.end, run.failure = End.CONTEXT_FULL, _FULL

    @property
    def _next_ids(self) -> tuple[int, ...]:
        return self._rules.prompt if self._token is None else (self._token,)

    @property
    def _has_room(self) -> bool:
        return self._fed + len(self._next_ids) <= self._rules.limit

    def refused(self) -> End | None:
        run = self.run
        overrides = run.unit.overrides
        assert overrides is not None
        if run.failure is not None:
            return run.end if run.end is End.CONTEXT_FULL else End.FAILED
        run.failure = run.unit.rejection or (_SEED if overrides.seed is not None else None)
        if run.failure is not None:
            self._is_lost = self._is_lost or bool(run.sounds)
            return End.FAILED
        if not run.sounds:
            return End.CANCELLED if self.is_cancelled else self._ended()
        run.sampling = overrides.sampling(self._setup.sampling)
        return None

    def interrupt(self) -> None:
        """Do not end the request: the rest of the unit is heard without producing text."""

    def request(self) -> Request:
        raise AssertionError("A unit has a request for each step.")

    async def _sample(self) -> End:
        run = self.run
        self._utterance = self._utterance or Utterance(self._generator)
        for sound in run.sounds:
            if not self._has_room:
                return End.CONTEXT_FULL
            ids = self._next_ids
            step = Request(ids, 1, run.sampling, frozenset(), self._setup.seed, self._setup.tenant, sound)
            sampled = await self._utterance.hear(step)
            self.note_heard()
            self._fed += len(ids)
            run.audio_rows += len(ids)
            self._token = self._rules.pad if self._stops_writing() else self._decided(sampled.ids[-1])
        return self._ended()

    def _stops_writing(self) -> bool:
        """Note why the rest of the unit produces no text; return whether that is so."""
        run = self.run
        if self.is_cancelled:
            run.end = End.CANCELLED
        elif run.finish is None and run.sampled >= run.sampling.max_new_tokens:
            run.finish = Finish.LENGTH
        return run.end is End.CANCELLED or run.finish is not None

    def _decided(self, token: int) -> int:
        """Write a token; return the id to feed with the next sound."""
        end = self._decide_all([token])
        assert end is None
        return self._rules.pad if self.run.finish is not None else token

    def decide(self, token: int, tell: Callable[[Event], None]) -> End | None:
        run = self.run
        if token in run.sampling.stop_token_ids:
            run.finish = Finish.STOP
        elif self._rules.tekken.spelling(token):
            self._unshown.append(token)
            self._show(self._text.add(token), tell)
        return None

    def _show(self, text: str, tell: Callable[[Event], None]) -> None:
        if text:
            tell(Piece(self.run.number, text, tuple(self._unshown)))
            self._unshown = []

    def _ended(self) -> End:
        run = self.run
        if run.end is End.TURN:
            self._show(self._text.flush(), self.tell)
        elif run.end is End.CHUNK and not self._has_room:
            run.end = End.CONTEXT_FULL
        if run.finish is None and run.sampled and run.end in (End.CHUNK, End.TURN):
            run.finish = Finish.EOS
        return run.end

    def close_unit(self) -> int:
        self._run = None
        return 0


async def hear_silence(generator: Generator, rules: HearingRules) -> None:
    """Take the first step of an utterance without sound. Raises `GeneratorDead`."""
    utterance = Utterance(generator)
    greedy = Sampling(temperature=0.0)
    try:
        await utterance.hear(Request(rules.prompt, 1, greedy, frozenset(), 0, Tenant(), rules.silence))
    finally:
        await utterance.close()
