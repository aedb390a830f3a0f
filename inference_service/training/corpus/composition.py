"""Conversations in the per-unit protocol, composed from spoken sentences, silence and noise.

A reply begins in the first unit that holds at least 0.3 s after the end of the question. Units that
the client forces to listen carry no lesson; a reply that falls into them begins in the first free one.
A reply to a question about the picture is about the newest one when the reply begins.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from inference_service.media.mel import BANDS, log_mel
from inference_service.models.pacing import chunks
from inference_service.training.corpus.augment import Augmenter, Power
from inference_service.training.corpus.camera import Camera, Pixels
from inference_service.training.corpus.domain import Exchange, Intent
from inference_service.training.corpus.pictures import Album
from inference_service.training.corpus.spoken import Utterance

FRAMES = 100
"""Mel frames of one unit."""
TAIL = 30
"""Frames of silence after a question before the model may answer."""
TAUGHT_FORCED_LISTENS = 3
FAVOURED = {Intent.LIGHT: 4.0, Intent.DIGITS: 1.5, Intent.COUNTING: 1.5, Intent.VISION: 3.5}
"""Intents whose sentences are hard to tell apart are asked this much more often than they are spoken."""

LISTEN = "<|listen|>"
SPEAK = "<|speak|>"
TURN_END = "<|turn_eos|>"
CHUNK_END = "<|chunk_eos|>"


@dataclass
class UnitPlan:
    """The model's decision in one unit; `taught` is False where the client decided for it."""

    tokens: list[str] = field(default_factory=lambda: [LISTEN])
    taught: bool = True
    pictures: list[Pixels] = field(default_factory=list)


@dataclass
class Conversation:
    """Log-mel [100 * units, 80] and the plan of each unit."""

    mel: NDArray[np.float32]
    units: list[UnitPlan]
    exchanges: list[Exchange]


def reply_plans(reply: str) -> list[UnitPlan]:
    """Return the speaking units of one whole reply."""
    words = chunks(reply)
    plans = []
    for i, chunk in enumerate(words):
        end = [TURN_END] if i == len(words) - 1 else []
        plans.append(UnitPlan([SPEAK, *(f" {word}" for word in chunk), *end, CHUNK_END]))
    return plans


class Composer:
    """Draws conversations from a corpus, and what the camera sees meanwhile from an album.

    The same augmenter seed gives the same conversations.
    """

    def __init__(
        self,
        corpus: list[Utterance],
        augmenter: Augmenter,
        album: Album | None = None,
        unfilmed: float = 1.0,
    ) -> None:
        self._corpus = corpus
        self._unfilmed = unfilmed
        self._album = album
        self._weights = list(accumulate(FAVOURED.get(u.exchange.intent, 1.0) for u in corpus))
        self._stops = [u for u in corpus if u.exchange.intent is Intent.STOP]
        self._a = augmenter

    def _gap(self) -> int:
        rng = self._a.rng
        kind = rng.random()
        if kind < 0.6:
            return rng.randint(0, 180)
        return rng.randint(180, 600) if kind < 0.88 else rng.randint(600, 2000)

    def conversation(self, target_units: int) -> Conversation:
        """Compose a session of about `target_units` seconds with its questions, pauses and interruptions."""
        rng = self._a.rng
        camera = Camera(self._a.noise_rng, self._album, self._unfilmed)
        forced = TAUGHT_FORCED_LISTENS if rng.random() < 0.35 else 0
        plans: dict[int, UnitPlan] = {i: UnitPlan(taught=False) for i in range(forced)}
        spoken: list[tuple[int, Power]] = []
        exchanges: list[Exchange] = []
        at = rng.randint(0, 500) if rng.random() < 0.8 else rng.randint(500, 2000)
        last = forced
        silent = rng.random() < 0.08
        while not silent and at < target_units * FRAMES:
            utterance = rng.choices(self._corpus, cum_weights=self._weights)[0]
            speech = self._a.speech(utterance.power)
            spoken.append((at, speech))
            camera.advance(at // FRAMES)
            unit = onset_unit(at + len(speech))
            while unit in plans:
                unit += 1
            if rng.random() < 0.04:
                plans[unit] = UnitPlan(taught=False)
                unit += 1
            camera.advance(unit + 1, still=rng.random() < 0.5)
            exchange = utterance.exchange
            if exchange.intent is Intent.VISION:
                exchange = replace(exchange, reply=camera.seen.reply)
            exchanges.append(exchange)
            last = self._answer(exchange.reply, unit, plans, spoken)
            camera.advance(last + 1, still=rng.random() < 0.85)
            at = (last + 1) * FRAMES + self._gap()
        units = max(last + 1 + rng.randint(0, 3), target_units)
        camera.advance(units)
        planned = [
            replace(plans.get(i, UnitPlan()), pictures=pictures) for i, pictures in enumerate(camera.units)
        ]
        return Conversation(self._mix(units * FRAMES, spoken), planned, exchanges)

    def _answer(
        self, reply: str, unit: int, plans: dict[int, UnitPlan], spoken: list[tuple[int, Power]]
    ) -> int:
        """Plan the reply from `unit` on, perhaps cut short, and return its last unit."""
        rng = self._a.rng
        speaking = reply_plans(reply)
        cut, forced = len(speaking), False
        if len(speaking) >= 3 and rng.random() < 0.35:
            stop = self._a.speech(rng.choice(self._stops).power)
            begin = (unit + 1) * FRAMES + rng.randint(-10, (len(speaking) - 2) * FRAMES)
            heard = max(1, onset_unit(begin + len(stop)) - unit)
            if heard < len(speaking):
                spoken.append((begin, stop))
                cut = heard
        elif len(speaking) >= 2 and rng.random() < 0.06:
            cut, forced = rng.randint(1, len(speaking) - 1), True
        for i, plan in enumerate(speaking[:cut]):
            plans[unit + i] = plan
        if cut < len(speaking):
            plans[unit + cut] = (
                UnitPlan([TURN_END, LISTEN], False) if forced else UnitPlan([SPEAK, TURN_END, CHUNK_END])
            )
            return unit + cut
        return unit + len(speaking) - 1

    def _mix(self, frames: int, spoken: list[tuple[int, Power]]) -> NDArray[np.float32]:
        rng = self._a.rng
        power = np.zeros((frames, BANDS), np.float32)
        for at, speech in spoken:
            length = max(0, min(len(speech), frames - at))
            power[at : at + length] += speech[:length]
        reference = float(np.mean([s.mean() for _, s in spoken])) if spoken else 10 ** rng.uniform(-4, 1)
        if rng.random() < 0.12:
            return log_mel(power)
        return log_mel(power + self._a.noise(frames, reference))


def onset_unit(end_frame: int) -> int:
    """Return the unit in which the reply to a question ending at `end_frame` begins."""
    return max(0, math.ceil((end_frame + TAIL) / FRAMES) - 1)
