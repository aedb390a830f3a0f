"""Fake parts of a model: they compute nothing, and advance a clock by their time on a GPU."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.crowd.scripted import script
from benchmarks.density.cost import Cost, Span
from inference_service.device.side_stream import Arrival
from inference_service.engine.batch.decoder import Segment
from inference_service.engine.batch.draw import Draw
from inference_service.engine.batch.pages import PagePool
from inference_service.engine.batch.speech import CODES_AT_ONCE, Speaker, SpeechJob, Step
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.session.kinds.components import DuplexComponents, Sound, SpeechCodes


class Clock:
    """A clock that only `spend` advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""
        self.now += seconds


@dataclass(frozen=True)
class Ear:
    """An audio encoder that takes the time of the real one and returns zeros."""

    clock: Clock
    cost: Cost
    unheard: Tensor
    """The embeddings of a second, zeros [n, hidden]."""

    def initial_state(self) -> None:
        pass

    def encode(self, heard: list[Tensor], states: list[Any]) -> tuple[list[Tensor], list[Any]]:
        self.clock.spend(self.cost.hear(len(heard)))
        return [self.unheard] * len(heard), states

    def listen(self, sound: Sound, state: Any) -> tuple[Tensor, Any]:
        raise NotImplementedError("The simulation has no sessions with their own voice.")

    def capture(self, streams: int) -> None:
        pass


@dataclass(frozen=True)
class Eye:
    """A vision encoder that takes the time of the real one and returns zeros."""

    clock: Clock
    cost: Cost
    unseen: Tensor
    """The embeddings of a slice, zeros [queries, hidden]."""

    def see(self, slices: list[Any]) -> list[Tensor]:
        self.clock.spend(self.cost.see(len(slices)))
        return [self.unseen] * len(slices)


class Voice:
    """The empty state of a session in the vocoder."""

    def reset(self) -> None:
        pass

    def mark(self) -> Callable[[], None]:
        return lambda: None


@dataclass(frozen=True)
class Mouth:
    """A vocoder that takes the time of the real one and returns silence."""

    clock: Clock
    cost: Cost
    second: Tensor

    def initial_state(self, voice: Any, seed: int) -> Voice:
        return Voice()

    def prepare(self, voice: Any) -> Iterator[None]:
        return iter(())

    def say(self, chunks: list[SpeechCodes]) -> list[Arrival]:
        self.clock.spend(self.cost.sound(len(chunks), ends_turn=any(chunk.is_last for chunk in chunks)))
        return [Arrival(self.second)] * len(chunks)

    def capture(self) -> None:
        pass


class TimedSpeaker(Speaker):
    """A speech head that generates a second of code 0 in each step, and reserves the pages for it."""

    clock: Clock
    cost: Cost

    def forward(self, jobs: list[SpeechJob]) -> list[Step]:
        rows = [len(job.state.unfed) + len(job.tokens) + 1 for job in jobs]
        spans = []
        for job, count in zip(jobs, rows, strict=True):
            if job.state.length + count + 2 * CODES_AT_ONCE > self.decoder.cache.capacity:
                job.state.end_turn()
            end = job.state.length + count + CODES_AT_ONCE - 1
            self.decoder.cache.reserve(job.state.slot, job.state.length, end)
            spans.append(Span(count, end))
        self.clock.spend(self.cost.codes(spans))
        return [Step(count, [0] * CODES_AT_ONCE) for count in rows]


class TimedRuntime(DuplexRuntime):
    """A runtime with real sessions and page pools, whose forwards only advance the clock."""

    def __init__(self, components: DuplexComponents, slots: int, clock: Clock, cost: Cost) -> None:
        """`components` are those of any small model on the CPU."""
        hidden = components.language.config.hidden_size
        unheard, unseen = (torch.zeros(n, hidden) for n in (components.unit_tokens, components.slice_tokens))
        assert components.speech is not None
        mouth = Mouth(clock, cost, torch.zeros(1))
        super().__init__(
            replace(
                components,
                ear=Ear(clock, cost, unheard),
                eye=Eye(clock, cost, unseen),
                speech=replace(components.speech, mouth=mouth),
            ),
            slots,
        )
        self._clock, self._cost = clock, cost
        self._nothing = torch.zeros(hidden)
        self._listen = components.tokenizer.special.listen
        self.most_waiting, self.by_rows = self.budget, False  # as on CUDA
        for decoder in self.decoders:
            decoder.cache.pool = PagePool(decoder.cache.pool.pages, clock)
        assert self.speaker is not None
        speaker: Any = self.speaker
        speaker.__class__, speaker.at_once = TimedSpeaker, CODES_AT_ONCE
        speaker.clock, speaker.cost = clock, cost
        script(self)

    def think(self, segments: list[Segment]) -> list[Tensor | None]:
        spans = []
        for segment in segments:
            end = segment.start + len(segment.rows)
            self.language.cache.reserve(segment.slot, segment.start, end)
            spans.append(Span(len(segment.rows), end))
        self._clock.spend(self._cost.forward(spans))
        return [self._nothing] * len(segments)

    def choose(self, hidden: list[Tensor], draws: list[Draw]) -> list[int | None]:
        return [self._listen] * len(draws)  # the script replaces these tokens
