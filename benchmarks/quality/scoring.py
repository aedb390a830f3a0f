"""Scores of the answers of full-duplex sessions."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphon.v1 import inference_service_pb2 as pb
from antiphon_training.domains.mini import Intent
from benchmarks.quality.script import Question, Script


@dataclass
class Turn:
    """One turn of the model: first unit, text, audio (float32 at 24 kHz), number of units and tool calls."""

    first_unit: int
    text: str = ""
    audio: list[NDArray[np.float32]] = field(default_factory=list)
    units: int = 0
    calls: list[pb.ToolCall] = field(default_factory=list)


@dataclass
class Tally:
    """The number of questions, of right and timely replies, and of judged and understood ones."""

    asked: int = 0
    right: int = 0
    on_time: int = 0
    spoken: int = 0
    understood: int = 0

    def __iadd__(self, other: "Tally") -> "Tally":
        self.asked += other.asked
        self.right += other.right
        self.on_time += other.on_time
        self.spoken += other.spoken
        self.understood += other.understood
        return self


@dataclass
class Score:
    """Counts by intent, and the listening units in which the model spoke."""

    by_intent: dict[Intent, Tally] = field(default_factory=lambda: defaultdict(Tally))
    listening_units: int = 0
    false_units: int = 0
    wrong: list[tuple[str, str, str]] = field(default_factory=list)
    """Triples of question, right reply and actual reply."""
    misheard: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of the spoken text and the recogniser's different result."""

    @property
    def total(self) -> Tally:
        """The sum over all intents."""
        total = Tally()
        for tally in self.by_intent.values():
            total += tally
        return total

    @property
    def right(self) -> float:
        """Share of questions answered exactly right."""
        return self.total.right / max(1, self.total.asked)

    @property
    def understood(self) -> float | None:
        """Share of judged replies that were transcribed exactly; None if none was judged."""
        total = self.total
        return total.understood / total.spoken if total.spoken else None


def replies(script: Script, turns: list[Turn]) -> Iterable[tuple[Question, list[Turn]]]:
    """Yield each measured question with the turns that began between its start and the next question's.

    A turn that begins within the first unit of the next question belongs to the older one.
    """
    for i, question in enumerate(script.questions):
        last = i == len(script.questions) - 1
        until = script.units if last else script.questions[i + 1].first_unit + 1
        if question.measured:
            yield question, [t for t in turns if question.first_unit < t.first_unit < until]


def listening_units(script: Script, first: int) -> set[int]:
    """Return the units from `first` on in which a perfect model listens."""
    speaking = {q.onset + i for q in script.questions for i in range(q.reply_units)}
    return {unit for unit in range(first, script.units) if unit not in speaking}


def add(score: Score, script: Script, turns: list[Turn]) -> list[tuple[Question, Turn]]:
    """Count one session; return the exactly right replies, whose audio is not yet judged."""
    right = []
    for question, begun in replies(script, turns):
        tally = score.by_intent[question.exchange.intent]
        tally.asked += 1
        if any(turn.first_unit == question.onset for turn in begun):
            tally.on_time += 1
        if len(begun) == 1 and begun[0].text == question.exchange.reply:
            tally.right += 1
            right.append((question, begun[0]))
        else:
            said = " / ".join(turn.text for turn in begun)
            score.wrong.append((question.exchange.question, question.exchange.reply, said))
    first = min(q.first_unit for q in script.questions if q.measured)
    listening = listening_units(script, first)
    spoken = {turn.first_unit + i for turn in turns for i in range(turn.units)}
    score.listening_units += len(listening)
    score.false_units += len(listening & spoken)
    return right
