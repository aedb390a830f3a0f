"""CPU time of sampling a token and a speech code, and of a step of the speech head."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.sampling.one_by_one import SequentialSampler
from inference_service.engine.batch.draw import TextSampler, drawn_by
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.sampler import choose_by_rows, choose_together, goes_by_rows
from inference_service.engine.batch.speech import CodeDraws, Speaker, SpeechJob, SpeechState
from inference_service.interface.setups import DuplexSettings, Sampling
from inference_service.models.speech_head import SpeechHead

SPREAD = 3.0
"""The standard deviation of the scores. A trained model's scores are less flat: few ids hold most of the
probability."""
_SAID = 300
_CODES = 5
"""The number of speech codes of a step."""
_TOKENS = 5
"""The number of text tokens of a unit."""
_SPECIAL: Any = SimpleNamespace(chunk_eos=5, turn_eos=6, listen=7, im_end=8)
_LEAST_S = 0.004
"""The least CPU time of a round in seconds: the clock is too coarse for one call."""
Work = Callable[[Tensor], object]


@dataclass(frozen=True)
class Row:
    """One kind of draw: CPU-microseconds per session, batched (`ours`) and one by one (`theirs`)."""

    kind: str
    vocabulary: int
    sessions: int
    ours: float
    theirs: float

    @property
    def times(self) -> float:
        """The time of one-by-one draws over that of batched ones."""
        return self.theirs / self.ours


@dataclass(frozen=True)
class Step:
    """The cost of the speech head with `at_once` codes per step and `sessions` sessions."""

    at_once: int
    sessions: int
    code_us: float
    """CPU time per code of one session."""
    step_ms: float
    """CPU time of a step, which delays all other sessions."""


def decisions(vocabulary: int, sessions: int, rounds: int) -> Iterator[Row]:
    """Measure draws of text tokens of each kind, with the same scores."""
    scores = torch.randn(sessions, vocabulary, generator=torch.Generator().manual_seed(1)) * SPREAD
    said = np.random.default_rng(1).integers(10, vocabulary, _SAID)
    forbidden = torch.tensor([5, 9])
    alone = [SequentialSampler(seed, said.tolist()) for seed in range(sessions)]
    noises = [Noise(seed) for seed in range(sessions)]
    choose = choose_by_rows if goes_by_rows(scores.device, vocabulary) else choose_together
    samplers = [TextSampler(_SPECIAL, forbidden, noise, said.astype(np.int32)) for noise in noises]

    def together(settings: DuplexSettings) -> Work:
        def work(scores: Tensor) -> object:
            tokens = choose(scores, [sampler.draw(settings) for sampler in samplers])
            for noise in noises:
                noise.use(2)
            return tokens

        return work

    words = said.tolist()

    def chatting(scores: Tensor) -> object:
        tokens = choose(scores, [drawn_by(Sampling(), noise, words, (6,)) for noise in noises])
        for noise in noises:
            noise.use(2)
        return tokens

    for kind, settings in (("duplex", DuplexSettings()), ("duplex, greedy", DuplexSettings(greedy=True))):
        theirs = _each(alone, lambda one, row, by=settings: one.duplex(row, by))  # type: ignore[misc]
        yield Row(kind, vocabulary, sessions, *_cost((together(settings), theirs), scores, sessions, rounds))
    theirs = _each(alone, lambda one, row: one.chat(row, Sampling()))
    yield Row("chat", vocabulary, sessions, *_cost((chatting, theirs), scores, sessions, rounds))


def codes(head: SpeechHead, sessions: int, rounds: int) -> Row:
    """Measure draws of speech codes from given scores, in the middle of a unit."""
    config = head.config
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(_CODES, sessions, config.codes + 1, generator=generator) * SPREAD
    said = list(range(10))
    alone = [SequentialSampler(seed) for seed in range(sessions)]
    jobs = [_job(head, slot, said) for slot in range(sessions)]

    def together(scores: Tensor) -> object:
        draws = CodeDraws(config, jobs, _CODES, scores.device)
        for code in scores:
            draws.say(code)
        return draws.said()

    def one_by_one(scores: Tensor) -> object:
        penalty, top_k = config.repetition_penalty, config.top_k
        both = [(one, row) for code in scores for one, row in zip(alone, code, strict=True)]
        return [one.code(row, said, penalty, top_k) for one, row in both]

    ours, theirs = _cost((together, one_by_one), scores, sessions * _CODES, rounds)
    return Row("speech code", config.codes + 1, sessions, ours, theirs)


def steps(head: SpeechHead, sessions: int, rounds: int, capacity: int = 512) -> list[Step]:
    """Measure whole units of the speech head, with 1, 5 and 25 codes per step."""
    speaker, options = Speaker(head, sessions, capacity), (1, 5, 25)
    took: dict[int, list[float]] = {at_once: [] for at_once in options}
    for _ in range(rounds):
        for at_once in options:
            speaker.at_once = at_once
            jobs = [_job(head, slot, []) for slot in range(sessions)]
            began = time.thread_time()
            while not all(job.finished for job in jobs):
                speaker.step(jobs)
            took[at_once].append(time.thread_time() - began)
    per_second = head.config.codes_per_second
    units = {at_once: median(seconds) for at_once, seconds in took.items()}
    return [
        Step(at_once, sessions, unit / per_second / sessions * 1e6, unit * at_once / per_second * 1e3)
        for at_once, unit in units.items()
    ]


def _job(head: SpeechHead, slot: int, said: list[int]) -> SpeechJob:
    hidden = torch.zeros(_TOKENS, head.projector_semantic.linear1.in_features)
    noise = Noise(slot)
    job = SpeechJob(
        SpeechState(slot, noise), [0] * _TOKENS, hidden, may_be_short=False, temperature=0.8, noise=noise
    )
    job.codes = list(said)
    return job


def _each(alone: list[SequentialSampler], draw: Callable[[SequentialSampler, Tensor], int]) -> Work:
    return lambda scores: [draw(one, row) for one, row in zip(alone, scores, strict=True)]


def _cost(works: tuple[Work, Work], scores: Tensor, parts: int, rounds: int) -> tuple[float, float]:
    """Return the CPU-microseconds of both works, divided by `parts`: medians of rounds in turn."""
    took: tuple[list[float], list[float]] = ([], [])
    own = scores.clone()
    for _ in range(rounds + 1):
        for work, times in zip(works, took, strict=True):
            spent, runs = 0.0, 0
            while spent < _LEAST_S:
                own.copy_(scores)
                began = time.thread_time()
                work(own)
                spent, runs = spent + time.thread_time() - began, runs + 1
            times.append(spent / runs / parts * 1e6)
    return median(took[0][1:]), median(took[1][1:])
