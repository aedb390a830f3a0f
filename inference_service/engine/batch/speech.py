"""Speech generation: text tokens of a unit become speech codes, a few at a time for all speaking sessions.

Codes stay on the device between the forwards of a step, and come to the host once, at its end.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from inference_service.device.graph import SIZES, Graph, size_for
from inference_service.device.paged import AttentionBackend, Contexts
from inference_service.device.rows import Rows
from inference_service.device.side_stream import Arrival
from inference_service.device.transfer import download, upload
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.draw import COLDEST
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.sampler import penalise
from inference_service.models.config import SpeechConfig
from inference_service.models.speech_head import SpeechHead

CODES_AT_ONCE = 25
"""Codes of a step on a GPU: one second's worth, because each step ends with a synchronisation. On the CPU a
step has one code: it needs no synchronisation, and other sessions would wait for a long step (measured by
`benchmarks.sampling`).
"""
_POISONED, _NONE = -1, -1
"""Values in place of a code: the scores were not finite; no code was drawn."""


@dataclass
class SpeechState:
    """The speech head's state of one session's open turn."""

    slot: int
    noise: Noise
    length: int = 0
    unfed: list[int] = field(default_factory=list)
    """The last code of the previous unit, which the next forward takes."""

    def end_turn(self) -> None:
        """End the turn: the next one starts on a clean context."""
        self.length = 0
        self.unfed.clear()


@dataclass
class SpeechJob:
    """The speech of one running unit."""

    state: SpeechState
    tokens: list[int]
    """Text tokens of this unit, the end of the turn included."""
    hidden: Tensor
    """Their hidden states in the language model, [n, hidden]."""
    may_be_short: bool
    """Whether the unit may have less than a second of speech: only the first and last of a turn may."""
    temperature: float
    noise: Noise
    ends_turn: bool = False
    """Whether the turn ends with this unit."""
    recorded: tuple[int, ...] | None = None
    """Codes of a replayed unit; None if they are to be drawn."""
    codes: list[int] = field(default_factory=list)
    finished: bool = False
    poisoned: bool = False
    """Whether the job is finished because a score was not finite."""
    put_off: int = 0
    """Ticks after the job was finished in which its sound was not started."""
    sound: Arrival | None = None
    """Its sound as float32 samples, once it was requested."""
    spoken_at: float = 0.0
    """Time of that request in monotonic seconds."""


@dataclass(frozen=True)
class Step:
    """The result of a step for one job."""

    rows: int
    """Rows that were fed for the first code; each other code takes one."""
    codes: list[int]
    """Codes in order; those after an end are ignored."""


class Speaker:
    """Runs the speech head over all jobs; holds no state of any session but its KV slots."""

    def __init__(
        self,
        head: SpeechHead,
        slots: int,
        capacity: int,
        at_once: int | None = None,
        *,
        in_steps: bool | None = None,
        backend: AttentionBackend | None = None,
    ) -> None:
        """Create a speaker; `in_steps` and `backend` are those of its `PackedDecoder`."""
        self.head = head
        self.per_unit = head.config.codes_per_second
        self.at_once = at_once or (1 if self._device.type == "cpu" else CODES_AT_ONCE)
        """Codes of a step."""
        self._end_code = head.config.end_code
        self.decoder = PackedDecoder(head.model, slots, capacity, in_steps=in_steps, backend=backend)
        self._loops: dict[tuple[int, int], CodeLoop] = {}

    def step(self, jobs: list[SpeechJob]) -> None:
        """Compute the next codes of each job; mark finished jobs."""
        for job, step in zip(jobs, self.forward(jobs), strict=True):
            self.take(job, step)

    def forward(self, jobs: list[SpeechJob]) -> list[Step]:
        """Compute the next step of each job; no state changes before `take`."""
        segments = [self._rows(job) for job in jobs]
        rows = [len(segment.rows) for segment in segments]
        count = min(self.at_once, max(self.per_unit - len(job.codes) for job in jobs))
        draws = CodeDraws(self.head.config, jobs, count, self._device)
        for step in range(count):
            hidden, _ = self.decoder.last(segments)
            codes = draws.say(self.head.logits(hidden).float())
            if step == 0 and self._follows(count, len(jobs)):
                self._follow(segments, codes, draws, count - 1)
                break
            if step + 1 < count:
                embeds = self.head.embed_codes(codes).split(1)
                segments = [_after(segment, row) for segment, row in zip(segments, embeds, strict=True)]
        return [Step(fed, codes) for fed, codes in zip(rows, draws.said(), strict=True)]

    def _follows(self, count: int, jobs: int) -> bool:
        """Return whether all further codes of a step are computed in one captured region."""
        return self.decoder.backend is not None and count == self.at_once > 1 and jobs <= SIZES[-1]

    def _follow(self, segments: list[Segment], codes: Tensor, draws: "CodeDraws", count: int) -> None:
        """Draw `count` codes after the rows of these segments, whose own codes were `codes` [jobs]."""
        size = size_for(len(segments))
        assert size is not None
        ahead = self.decoder.rows_ahead(segments, count, size)
        places = upload(self._device, *ahead)
        draws.add(self._loop(size, count)(codes, draws, places)[: len(segments)])

    def _loop(self, size: int, count: int) -> "CodeLoop":
        loop = self._loops.get((size, count))
        if loop is None:
            loop = self._loops[size, count] = CodeLoop(self, size, count)
        return loop

    def capture(self) -> None:
        """Capture the loops of a step for each number of jobs once, so that no session waits for that."""
        if self.decoder.backend is None or self.at_once == 1:
            return
        for size in reversed([it for it in SIZES if it < 2 * self.decoder.cache.slots]):
            self._loop(size, self.at_once - 1).run()

    def take(self, job: SpeechJob, step: Step) -> None:
        """Apply the result of a step to the job."""
        job.state.unfed.clear()
        rows = step.rows
        for code in step.codes:
            job.state.length += rows
            rows = 1
            if code == _POISONED:
                job.finished = job.poisoned = True
                return
            job.noise.use(1)
            if code == self._end_code:
                job.finished = True
                return
            job.codes.append(code)
            if len(job.codes) == self.per_unit:
                job.finished = True
                job.state.unfed = [code]
                return

    def replay(self, jobs: list[SpeechJob]) -> None:
        """Feed recorded codes, all of a job in one forward; the jobs are then finished without a draw."""
        segments = [self._recorded_rows(job) for job in jobs]
        self.decoder.last(segments)
        for job, segment in zip(jobs, segments, strict=True):
            assert job.recorded is not None
            job.codes = list(job.recorded)
            is_full = len(job.codes) == self.per_unit
            job.state.length += len(segment.rows)
            job.state.unfed = job.codes[-1:] if is_full else []
            job.finished = True

    def _recorded_rows(self, job: SpeechJob) -> Segment:
        """Return the rows of a whole unit; the last code of a full one is fed with the next unit."""
        assert job.recorded is not None
        first, codes = self._rows(job), list(job.recorded[: self.per_unit - 1])
        rows = Rows.join([first.rows, Rows.of(self.head.embed_codes(self._ids(codes)))])
        return Segment(first.slot, first.start, first.position, rows)

    @property
    def _device(self) -> torch.device:
        return self.head.emb_text.weight.device

    def _rows(self, job: SpeechJob) -> Segment:
        state = job.state
        if job.codes:
            embeds = self.head.embed_codes(self._ids(job.codes[-1:]))
        else:
            condition = self.head.condition(self._ids(job.tokens), job.hidden)
            longest = len(condition) + self.per_unit + self.at_once
            if state.length + longest > self.decoder.cache.capacity:
                state.end_turn()
            embeds = torch.cat([self.head.embed_codes(self._ids(state.unfed)), condition])
        return Segment(state.slot, state.length, state.length, Rows.of(embeds))

    def _ids(self, ids: list[int]) -> Tensor:
        return upload(self._device, np.array(ids, np.int64))[0]


def _after(segment: Segment, embeds: Tensor) -> Segment:
    """Return the row [1, hidden] after a segment's rows."""
    rows = len(segment.rows)
    return Segment(segment.slot, segment.start + rows, segment.position + rows, Rows.of(embeds))


class CodeDraws:
    """Draws the codes of one step for all jobs, each by its own rules, on the device."""

    def __init__(self, config: SpeechConfig, jobs: list[SpeechJob], count: int, device: torch.device) -> None:
        self._config = config
        window = config.repetition_window
        numbers = np.zeros((len(jobs), 3 + count + window + count), np.float32)
        said = numbers[:, 3 + count :]
        said[:] = _NONE
        for row, ahead, job in zip(numbers, said, jobs, strict=True):
            is_greedy = job.temperature < COLDEST
            row[:3] = 1.0 if is_greedy else job.temperature, is_greedy, 0.0 if job.may_be_short else -np.inf
            if not is_greedy:
                row[3 : 3 + count] = job.noise.ahead(count)
            recent = job.codes[-window:]
            ahead[window - len(recent) : window] = recent
        (uploaded,) = upload(device, numbers)
        self._take(uploaded[:, : 3 + count], uploaded[:, 3 + count :].long(), 0)

    @classmethod
    def resumed(cls, config: SpeechConfig, numbers: Tensor, said: Tensor, drawn: int) -> "CodeDraws":
        """Continue after `drawn` codes of earlier draws with these `numbers` and `said`."""
        draws = cls.__new__(cls)
        draws._config = config
        draws._take(numbers, said, drawn)
        return draws

    def _take(self, numbers: Tensor, said: Tensor, drawn: int) -> None:
        self.numbers = numbers
        """By job: temperature, whether it is greedy, the bias of the end's score, and a uniform number for
        each code.
        """
        self.codes_said = said
        """By job: the latest codes and then those of this step; negative for none."""
        self._temperature, self._greedy, self._end = numbers[:, :3].split(1, dim=1)
        self._uniforms = numbers[:, 3:]
        self._drawn = drawn
        self._chosen: list[Tensor] = []

    def say(self, scores: Tensor) -> Tensor:
        """Return the next code [n] for float32 scores [n, codes + 1], which are modified; arbitrary for
        scores that are not finite.
        """
        at, window = self._drawn + len(self._chosen), self._config.repetition_window
        is_sound = scores.isfinite().all(1)
        penalise_repeats(scores, self.codes_said[:, at : at + window], self._config.repetition_penalty)
        scores[:, self._config.end_code :] += self._end
        weights = self.weigh(scores)
        mass = weights.cumsum(1)
        codes = (mass <= self._uniforms[:, at : at + 1] * mass[:, -1:]).sum(1)
        codes = codes.clamp(max=scores.shape[1] - 1)
        self.codes_said[:, window + at] = codes
        self._chosen.append(torch.where(is_sound, codes, _POISONED))
        return codes

    def weigh(self, scores: Tensor) -> Tensor:
        """Return unnormalised probabilities [n, codes + 1]; tied scores are all kept, or none."""
        best = scores.topk(min(self._config.top_k, scores.shape[1]), dim=1).values
        least = torch.where(self._greedy > 0, best[:, :1], best[:, -1:])
        weights: Tensor = ((scores - best[:, :1]) / self._temperature).exp()
        return weights.masked_fill_(scores < least, 0.0)

    def add(self, codes: Tensor) -> None:
        """Append codes [jobs, n] that were drawn elsewhere."""
        self._chosen += codes.unbind(1)

    @property
    def chosen(self) -> Tensor:
        """Return the codes of this step, int64 [jobs, n]."""
        return torch.stack(self._chosen, dim=1)

    def said(self) -> list[list[int]]:
        """Return all codes of the step."""
        (codes,) = download(self.chosen.to(torch.int32))
        said: list[list[int]] = codes.tolist()
        return said


class CodeLoop:
    """A captured loop of codes, each drawn after the previous ones: see `Graph`."""

    def __init__(self, speaker: Speaker, size: int, count: int) -> None:
        head, decoder = speaker.head, speaker.decoder
        device, config = decoder.cache.device, head.config
        self._head, self._decoder, self._count = head, decoder, count
        self._codes = torch.zeros(size, dtype=torch.int64, device=device)
        self._numbers = torch.ones(size, 3 + count + 1, device=device)
        window = config.repetition_window
        self._said = torch.full((size, window + count + 1), _NONE, dtype=torch.int64, device=device)
        self._places = upload(device, *decoder.rows_ahead([], count, size))
        self._graph: Graph[Tensor] = Graph(device, self._compute, decoder.pool)

    def __call__(self, codes: Tensor, draws: CodeDraws, places: list[Tensor]) -> Tensor:
        """Return codes [size, count] after `codes` [jobs], the first ones, which `draws` has drawn.

        `places` are those of `PackedDecoder.rows_ahead`.
        """
        jobs = len(codes)
        own = [self._codes[:jobs], self._numbers[:jobs], self._said[:jobs], *self._places]
        torch._foreach_copy_(own, [codes, draws.numbers, draws.codes_said, *places])
        return self.run()

    def run(self) -> Tensor:
        """Run the loop on the inputs that were copied before."""
        return self._graph()

    def _compute(self) -> Tensor:
        positions, cells, table, begins, ends = self._places
        draws = CodeDraws.resumed(self._head.config, self._numbers, self._said, 1)
        codes = self._codes
        for step in range(self._count):
            layout = self._decoder.together(Contexts(table, ends + step, begins), cells[step])
            embeds = self._head.embed_codes(codes)
            hidden = self._decoder.backbone_over(embeds, positions + step, layout)
            codes = draws.say(self._head.logits(hidden).float())
        return draws.chosen


def penalise_repeats(scores: Tensor, recent: Tensor, penalty: float) -> None:
    """Penalise recent codes in place, once for each occurrence.

    `scores` are [n, codes], `recent` int64 [n, window], negative for none.
    """
    ids = recent.clamp(min=0)
    times = (ids[:, :, None] == recent[:, None, :]).sum(2)
    penalise(scores, ids, penalty**times)
