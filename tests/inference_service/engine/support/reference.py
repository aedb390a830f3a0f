"""The recorded conversations, replayed through the real runtime from raw audio and pictures."""

import io
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint, load_minicpmo
from inference_service.device.side_stream import Arrival
from inference_service.engine.batch.decoder import Segment
from inference_service.engine.batch.draw import Draw
from inference_service.engine.batch.speech import SpeechJob
from inference_service.engine.tick import Tick
from inference_service.families import minicpmo
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Ready
from inference_service.interface.setups import (
    DuplexSettings,
    DuplexSetup,
    UnitInput,
    UnitOverrides,
    VoiceReference,
    Window,
    WindowMode,
)
from inference_service.models.token2wav.stream import StreamState
from inference_service.session.base.session import QueuedUnit, Stage
from inference_service.session.kinds.components import DuplexComponents, Pcm, SpeechCodes, SpeechComponents
from inference_service.session.kinds.duplex import DuplexRun, DuplexSession
from tests.inference_service.engine.support import golden
from tests.inference_service.engine.support.talk import Said

SECOND = 16_000
PROMPT = "Streaming Omni Conversation."


@cache
def checkpoint() -> MiniCPMOCheckpoint:
    """The recordings' own weights, in the published layout."""
    return load_minicpmo(golden.FOLDER, torch.device("cpu"), torch.float32)


class RecordingMouth:
    """A speech output that records the chunks of tokens for token2wav, and returns no audio."""

    @dataclass
    class State:
        stream: StreamState
        chunks: list[tuple[list[int], bool]] = field(default_factory=list)

        def reset(self) -> None:
            self.stream.reset()

        def mark(self) -> Callable[[], None]:
            go_back, chunks = self.stream.mark(), list(self.chunks)

            def both() -> None:
                go_back()
                self.chunks = chunks

            return both

    def initial_state(self, voice: Any, seed: int) -> "RecordingMouth.State":
        silent: Any = SimpleNamespace(flow=object())
        return RecordingMouth.State(StreamState(silent, silent.flow, silent, silent))

    def prepare(self, voice: Any) -> Iterator[None]:
        return iter(())

    def say(self, chunks: list[SpeechCodes]) -> list[Arrival]:
        for chunk in chunks:
            state = chunk.state
            state.stream.add(list(chunk.codes))
            while taken := state.stream.next_chunk(is_last=chunk.is_last):
                state.chunks.append((taken.tokens, taken.is_last))
            if chunk.is_last:
                state.reset()
        return [Arrival(torch.zeros(0))] * len(chunks)


class Watched(DuplexRuntime):
    """A runtime that records the rows fed to each slot, and their hidden states."""

    def __init__(self, parts: DuplexComponents, slots: int) -> None:
        super().__init__(parts, slots)
        self.fed: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    def think(self, segments: list[Segment]) -> list[Tensor | None]:
        thought = self.language.forward(segments)
        for segment, hidden in zip(segments, thought, strict=True):
            self.fed[segment.slot].append((self.language.embed(segment.rows), hidden))
        return [hidden[-1] for hidden in thought]


def runtime(slots: int, *, quirks: bool = False, limit: int = 512) -> Watched:
    """The recorded model with clean slots."""
    loaded = checkpoint()
    assert loaded.model.tts is not None
    voices = SpeechComponents(loaded.model.tts, RecordingMouth(), minicpmo.SPEECH_CAPACITY)
    components = minicpmo.components(loaded, voices, context_limit=limit, reference_quirks=quirks)
    return Watched(components, slots)


@cache
def wave(name: str) -> Pcm:
    """Recorded sound as float32."""
    return golden.tensors("audio")[name].numpy().astype(np.float32) / np.float32(32768)


def second(number: int) -> Pcm:
    """A recorded second of the stream that all conversations hear."""
    at = number % 12 * SECOND
    return wave("wave_i16")[at : at + SECOND]


@cache
def picture(name: str) -> bytes:
    """A recorded picture as a PNG."""
    data = io.BytesIO()
    Image.fromarray(golden.tensors("vision")[f"image_{name}_u8"].numpy()).save(data, "PNG")
    return data.getvalue()


def unit_input(recorded: dict[str, Any]) -> UnitInput:
    """Return the input of a recorded unit."""
    given = recorded["input"]
    pcm = None if given["audio_second"] is None else second(given["audio_second"])
    return UnitInput(pcm, tuple(map(picture, given["frames"])), given["max_slice_nums"] or 1)


class Observed:
    """A wrapper that records the scores of a session, and forces the decisions of any `script`."""

    def __init__(self, where: "Watched", talk: DuplexSession) -> None:
        self.scores: list[Tensor] = []
        self.decided: list[int] = []
        self.script: Iterator[int] | None = None
        self._where = where
        self._talk = talk
        self._draw, self._decide = talk.draw, talk.decide
        talk.draw, talk.decide = self._drawing, self._deciding  # type: ignore[method-assign]

    def begin(self, script: Sequence[int] | None) -> None:
        """Start to record a unit, with its scripted decisions."""
        self.scores, self.decided = [], []
        self.script = None if script is None else iter(script)

    def _drawing(self) -> Draw | None:
        assert self._talk.last_hidden is not None
        self.scores.append(self._where.scores(self._talk.last_hidden[None])[0])
        return self._draw()

    def _deciding(self, token: int | None) -> int | None:
        token = token if self.script is None else next(self.script)
        assert token is not None
        self.decided.append(token)
        return self._decide(token)


@dataclass
class Spoken(Said):
    """The outcome of a unit."""

    scores: list[Tensor] = field(default_factory=list)
    """The scores of each decision; for a forced listen, those after its input."""
    decided: list[int] = field(default_factory=list)
    running: DuplexRun | None = None
    chunks: list[tuple[list[int], bool]] = field(default_factory=list)
    pending_tokens: list[int] = field(default_factory=list)
    turn_open: bool = False
    memory: list[int] = field(default_factory=list)

    @property
    def job(self) -> SpeechJob | None:
        return self.running.job if self.running else None


class Visitor:
    """One recorded conversation, unit after unit, in a runtime that conversations may share."""

    def __init__(
        self,
        where: Watched,
        slot: int,
        name: str,
        *,
        scripted: bool = True,
        force_listen_count: int = 1,
        window: Window | None = None,
        speech_temperature: float = 0.0,
    ) -> None:
        self.runtime = where
        self.slot = slot
        self.name = name
        self.recorded = golden.units(name)
        self.scripted = scripted
        settings = DuplexSettings(
            greedy=True, force_listen_count=force_listen_count, tts_temperature=speech_temperature
        )
        voice = VoiceReference(wave("ref_wave_i16"))
        setup = DuplexSetup(PROMPT, settings, window or Window(), seed=0, sees=True, voice=voice)
        self.talk = cast(DuplexSession, where.open(name, slot, setup, lambda event: None))
        self.observed = Observed(where, self.talk)
        self.talk.preprocessor.begin()
        assert where.start(self.talk) is None
        self.spoken: list[Spoken] = []

    @classmethod
    def windowed(cls, where: Watched, slot: int) -> "Visitor":
        """The recording with the basic window, which is narrower than sessions are allowed to have."""
        visitor = cls(where, slot, "window_basic")
        visitor.talk.context.window = Window(WindowMode.BASIC, 150, 115)
        return visitor

    @property
    def is_idle(self) -> bool:
        return self.talk.stage is Stage.IDLE and self.talk.queue.first is None

    @property
    def is_over(self) -> bool:
        return self.is_idle and len(self.spoken) == len(self.recorded)

    def send(self) -> None:
        """Queue the next unit with its requests."""
        unit = self.recorded[len(self.spoken)]
        self.spoken.append(Spoken())
        self.observed.begin(unit["decided"] if self.scripted else None)
        heard = self.talk.preprocessor.prepare(unit_input(unit))
        self.talk.queue.prefill(
            QueuedUnit(
                len(self.spoken),
                heard,
                time.monotonic(),
                force_listen=unit["input"]["force_listen"],
                overrides=UnitOverrides(),
            )
        )

    def watch(self) -> None:
        """Record the state between two ticks, and finalize a unit that is done."""
        events = [event for event in self.talk.events if not isinstance(event, Ready)]
        self.talk.events.clear()
        if not self.spoken:
            return
        said, unit = self.spoken[-1], self.talk.queue.first
        said.events += events
        if self.talk.stage is Stage.DONE and unit is not None and not unit.finalize:
            said.running, said.turn_open = self.talk.running, self.talk.turn_open
            said.scores, said.decided = self.observed.scores, self.observed.decided
            if not said.scores:
                assert self.talk.last_hidden is not None
                said.scores = [self.runtime.scores(self.talk.last_hidden[None])[0]]
            mouth = self.talk.mouth
            assert isinstance(mouth, RecordingMouth.State)
            said.chunks, mouth.chunks = mouth.chunks, []
            said.pending_tokens = list(mouth.stream.pending)
            unit.finalize = True
        if self.is_idle and self.talk.context.memory is not None:
            said.memory = list(self.talk.context.memory.ids)


def play(visitors: list[Visitor], where: Watched, rng: random.Random | None = None) -> None:
    """Run conversations to their end; with `rng` each takes part in random ticks."""
    for _ in range(100_000):
        if all(visitor.is_over for visitor in visitors):
            return
        step(visitors, where, rng)
    raise TimeoutError("The conversations do not end.")


def step(visitors: list[Visitor], where: Watched, rng: random.Random | None) -> None:
    """Run one tick for all conversations, or with `rng` for random ones."""
    present = [v for v in visitors if rng is None or rng.random() < 0.7]
    for visitor in present:
        if visitor.is_idle and not visitor.is_over:
            visitor.send()
    Tick(where, rng and rng.randint(1, 80)).run([visitor.talk for visitor in present])
    for visitor in present:
        visitor.watch()


Enter = Callable[..., Visitor]
"""A function that opens a conversation in a slot of a runtime."""


def crowd(entering: Sequence[Enter], where: Watched, slots: int, rng: random.Random) -> list[Visitor]:
    """Run conversations in a few slots, and close about one in three early.

    Return those that ran to their end.
    """
    waiting, free, over = list(entering), list(range(slots)), []
    present: dict[Visitor, int] = {}
    for _ in range(100_000):
        if not waiting and not present:
            return over
        if waiting and free and rng.random() < 0.3:
            visitor = waiting.pop()(where, free.pop(rng.randrange(len(free))))
            present[visitor] = rng.randint(1, 6) if rng.random() < 0.3 else 1000
        step(list(present), where, rng)
        for visitor, stays in list(present.items()):
            if visitor.is_over or len(visitor.spoken) > stays:
                del present[visitor]
                where.clear(visitor.slot)
                where.fed.pop(visitor.slot, None)
                free.append(visitor.slot)
                over += [visitor] if visitor.is_over else []
    raise TimeoutError("The conversations do not end.")
