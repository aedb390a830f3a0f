"""Conversations in the per-unit protocol, composed from spoken sentences, silence and noise.

A reply begins in the first unit that holds at least 0.3 s after the end of the question. Units in which the
client forces the model to listen are no training targets; a reply that would begin there begins in the next
free unit. A reply about a picture describes the newest picture when the reply begins.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from antiphon_training.corpus.augment import Augmenter, Power, resample
from antiphon_training.corpus.camera import Camera, Pixels
from antiphon_training.corpus.pictures import PictureSet
from antiphon_training.corpus.spoken import Utterance
from antiphon_training.domains.domain import Domain, Exchange
from inference_service.media.mel import BANDS, log_mel
from inference_service.models.pacing import chunks

FRAMES = 100
"""The number of mel frames in one unit."""
TAIL = 30
"""Frames of silence after a question before the model may answer."""
FORCED_LISTENS = 3
"""The number of units at the beginning of a session in which the client may force the model to listen."""

RECOGNISED_SHARES = (0.0, 0.0, 0.75, 0.95)
"""The shares of utterances, drawn for a session, whose words the recogniser adds to the context.

0 stands for a model without a recogniser.
"""

LISTEN = "<|listen|>"
SPEAK = "<|speak|>"
TURN_END = "<|turn_eos|>"
CHUNK_END = "<|chunk_eos|>"


@dataclass
class UnitPlan:
    """The model's decision in one unit; `taught` is False for a unit in which the client decides."""

    tokens: list[str] = field(default_factory=lambda: [LISTEN])
    taught: bool = True
    pictures: list[Pixels] = field(default_factory=list)
    words: str = ""
    """Recognised words of an utterance that ended in this unit."""


@dataclass
class Conversation:
    """A spoken session: log-mel [100 * units, 80], the plan of each unit, and the exchanges in it."""

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
    """A composer of conversations from a corpus, with camera pictures from the set `album`.

    The same augmenter seed gives the same conversations.
    """

    def __init__(
        self,
        domain: Domain,
        corpus: list[Utterance],
        augmenter: Augmenter,
        album: PictureSet | None = None,
        unfilmed: float = 1.0,
    ) -> None:
        self._domain = domain
        self._corpus = corpus
        self._unfilmed = unfilmed
        self._album = album
        self._weights = list(accumulate(domain.asked.get(u.exchange.intent, 1.0) for u in corpus))
        self._stops = [u for u in corpus if u.exchange.intent == domain.interruption]
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
        forced = FORCED_LISTENS if rng.random() < 0.35 else 0
        plans: dict[int, UnitPlan] = {i: UnitPlan(taught=False) for i in range(forced)}
        spoken: list[tuple[int, Power]] = []
        exchanges: list[Exchange] = []
        at = rng.randint(0, 500) if rng.random() < 0.8 else rng.randint(500, 2000)
        last = forced
        silent = rng.random() < 0.08
        recognised: dict[int, list[str]] = {}
        recognised_share = rng.choice(RECOGNISED_SHARES)
        while not silent and at < target_units * FRAMES:
            utterance = rng.choices(self._corpus, cum_weights=self._weights)[0]
            is_recognised = self._is_recognised(utterance, recognised_share)
            exchange = utterance.exchange
            if is_recognised:
                exchange = self._domain.recognised(exchange, rng)
            speech = self._heard(utterance, is_recognised)
            spoken.append((at, speech))
            camera.advance(at // FRAMES)
            unit = onset_unit(at + len(speech))
            if is_recognised:
                recognised.setdefault(unit, []).append(exchange.question)
            while unit in plans:
                unit += 1
            if rng.random() < 0.04:
                plans[unit] = UnitPlan(taught=False)
                unit += 1
            camera.advance(unit + 1, still=rng.random() < 0.5)
            if exchange.intent == self._domain.looking:
                exchange = replace(exchange, reply=camera.seen.reply)
            exchanges.append(exchange)
            words = recognised if rng.random() < recognised_share else None
            last = self._answer(exchange.reply, unit, plans, spoken, words)
            camera.advance(last + 1, still=rng.random() < 0.85)
            at = (last + 1) * FRAMES + self._gap()
        units = max(last + 1 + rng.randint(0, 3), target_units)
        camera.advance(units)
        planned = [
            replace(plans.get(i, UnitPlan()), pictures=pictures, words=" ".join(recognised.get(i, ())))
            for i, pictures in enumerate(camera.units)
        ]
        return Conversation(self._mix(units * FRAMES, spoken), planned, exchanges)

    def _is_recognised(self, utterance: Utterance, recognised_share: float) -> bool:
        """Draw whether the recogniser finds the words of an utterance; it finds none outside the domain."""
        outside = utterance.exchange.intent == self._domain.out_of_domain
        return not outside and self._a.rng.random() < recognised_share

    def _heard(self, utterance: Utterance, is_recognised: bool) -> Power:
        """Return the mel power of an utterance as the model receives it.

        For a recognised utterance it may be distorted beyond recognition, or be that of another utterance. So
        the model learns to trust the recognised words, as it must for real voices.
        """
        rng = self._a.rng
        speech = self._a.speech(utterance.power)
        kind = rng.random()
        if not is_recognised or kind < 0.4:
            return speech
        if kind < 0.7:
            return self._a.strange(speech)
        other = rng.choice(self._corpus).power
        return resample(self._a.speech(other), np.linspace(0, 1, len(speech)))

    def _answer(
        self, reply: str, unit: int, plans: dict[int, UnitPlan], spoken: list[tuple[int, Power]],
        recognised: dict[int, list[str]] | None,
    ) -> int:  # fmt: skip
        """Plan the reply from `unit` on, perhaps with an interruption, and return its last unit.

        The words of an interruption are added to `recognised`, if it is given.
        """
        rng = self._a.rng
        speaking = reply_plans(reply)
        cut, forced = len(speaking), False
        if self._stops and len(speaking) >= 3 and rng.random() < 0.35:
            said = rng.choice(self._stops)
            stop = self._heard(said, recognised is not None)
            begin = (unit + 1) * FRAMES + rng.randint(-10, (len(speaking) - 2) * FRAMES)
            heard = max(1, onset_unit(begin + len(stop)) - unit)
            if heard < len(speaking):
                spoken.append((begin, stop))
                cut = heard
                if recognised is not None:
                    recognised.setdefault(unit + cut, []).append(said.exchange.question)
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
