"""Speaking: text tokens of a unit become speech codes, one step for all speaking sessions at a time."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.sampler import COLDEST, draw, keep_likely, penalise
from inference_service.models.speech_head import SpeechHead


@dataclass
class SpeechState:
    """What the speech head remembers of one session's open turn."""

    slot: int
    generator: torch.Generator
    length: int = 0
    unfed: list[int] = field(default_factory=list)
    """The last code of the unit before, which the next forward carries."""

    def end_turn(self) -> None:
        """The next turn starts on a clean context."""
        self.length = 0
        self.unfed.clear()


@dataclass
class SpeechJob:
    """The speech of one unit under way."""

    state: SpeechState
    tokens: list[int]
    """Text tokens said in this unit, the end of the turn included."""
    hidden: Tensor
    """Their hidden states in the language model, [n, hidden]."""
    may_be_short: bool
    """True in the first and the last unit of a turn; a unit between always fills its second."""
    temperature: float
    generator: torch.Generator
    ends_turn: bool = False
    """Whether nothing more is said in the turn."""
    codes: list[int] = field(default_factory=list)
    finished: bool = False
    poisoned: bool = False
    """Finished because a score was not a number."""
    sound: Tensor | None = None
    """Its codes as float32 samples, once they are."""


@dataclass(frozen=True)
class Step:
    """What a forward gave for one job."""

    rows: int
    """Fed to it."""
    scores: Tensor
    """Float32 [codes + 1] on the CPU."""


def penalise_repeats(scores: Tensor, recent: list[int], penalty: float) -> None:
    """Makes codes said lately less likely in place, once for each time."""
    if recent:
        codes, counts = torch.tensor(recent).unique(return_counts=True)
        penalise(scores, codes, penalty**counts)


class Speaker:
    """Runs the speech head over all jobs; holds no state of any session but its KV slots."""

    def __init__(self, head: SpeechHead, slots: int, capacity: int) -> None:
        self.head = head
        self.per_unit = head.config.codes_per_second
        self._end_code = head.config.end_code
        self.decoder = PackedDecoder(head.model, slots, capacity)

    def step(self, jobs: list[SpeechJob]) -> None:
        """One forward for all jobs and one code for each; finished jobs are marked."""
        for job, step in zip(jobs, self.forward(jobs), strict=True):
            self.take(job, step)

    def forward(self, jobs: list[SpeechJob]) -> list[Step]:
        """The next step of each job; nothing has moved before `take`."""
        rows = [self._rows(job) for job in jobs]
        hidden = self.decoder.forward(rows)
        logits = self.head.logits(torch.stack([h[-1] for h in hidden])).float().cpu()
        return [Step(len(fed.embeds), scores) for fed, scores in zip(rows, logits, strict=True)]

    def take(self, job: SpeechJob, step: Step) -> None:
        """The job goes on by this step."""
        job.state.length += step.rows
        job.state.unfed.clear()
        self._draw(job, step.scores)

    def _rows(self, job: SpeechJob) -> Segment:
        state = job.state
        if job.codes:
            embeds = self.head.embed_codes(self._ids(job.codes[-1:]))
        else:
            condition = self.head.condition(self._ids(job.tokens), job.hidden)
            if state.length + len(condition) + self.per_unit + 1 > self.decoder.cache.capacity:
                state.end_turn()
            embeds = torch.cat([self.head.embed_codes(self._ids(state.unfed)), condition])
        return Segment(state.slot, state.length, state.length, embeds)

    def _ids(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.head.emb_text.weight.device)

    def _draw(self, job: SpeechJob, scores: Tensor) -> None:
        config = self.head.config
        if not bool(torch.isfinite(scores).all()):
            job.finished = job.poisoned = True
            return
        penalise_repeats(scores, job.codes[-config.repetition_window :], config.repetition_penalty)
        if not job.may_be_short:
            scores[self._end_code] = -torch.inf
        if job.temperature < COLDEST:
            code = int(scores.argmax())
        else:
            code = draw(keep_likely(scores, job.temperature, config.top_k, 1.0), job.generator)
        if code == self._end_code:
            job.finished = True
            return
        job.codes.append(code)
        if len(job.codes) == self.per_unit:
            job.finished = True
            job.state.unfed = [code]
