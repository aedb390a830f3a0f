"""The results of an evaluation as tables, and their goals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from antiphon_training.domains.mini import Intent
from benchmarks.quality.chat import ChatCondition
from benchmarks.quality.dictation import DictationCondition, Written
from benchmarks.quality.scoring import Score, Tally
from benchmarks.quality.script import Condition
from benchmarks.report import table

GOALS: dict[str, float] = {"right": 0.75, "onset": 0.95, "false speech": 0.03, "understood": 0.8}
"""The goals: the least share, for false speech the largest."""
_RIGHT_OF_VISION = 0.8
CHAT_GOALS = {
    ChatCondition.TEXT: 0.9,
    ChatCondition.PICTURE: 0.8,
    ChatCondition.CLIP: 0.75,
    ChatCondition.TOOL: 0.9,
    ChatCondition.SPOKEN_TOOL: 0.75,
}
"""The least share of right answers."""
WORD_ERROR_GOAL = 0.3
"""The largest word error rate in the domain, for unseen voices."""
_JUDGED = (Condition.PLAIN, Condition.PAUSES, Condition.THIRD_MINUTE, Condition.CAMERA, Condition.VISION)


class Measured(Protocol):
    """A row of one of the tables."""

    @property
    def name(self) -> str:
        """The name of its condition."""

    def missed(self) -> list[str]:
        """Return a message for each missed goal."""

    def figures(self) -> dict[str, Any]:
        """Return the row for a JSON file."""


@dataclass(frozen=True)
class Row:
    """One condition of full-duplex sessions and its score."""

    condition: Condition
    score: Score

    @property
    def name(self) -> str:
        return str(self.condition)

    @property
    def right(self) -> float:
        """Share of questions answered exactly right."""
        return self.score.right

    @property
    def onset(self) -> float:
        """Share of questions whose reply began in the right unit."""
        return self.score.total.on_time / max(1, self.score.total.asked)

    @property
    def false_speech(self) -> float:
        """Share of listening units in which the model spoke."""
        return self.score.false_units / max(1, self.score.listening_units)

    @property
    def understood(self) -> float | None:
        """Share of right replies that an independent recogniser transcribed exactly."""
        return self.score.understood

    def missed(self) -> list[str]:
        if self.condition not in _JUDGED:
            return []
        goals = GOALS | ({"right": _RIGHT_OF_VISION} if self.condition is Condition.VISION else {})
        found = {"right": self.right, "onset": self.onset}
        texts = [
            f"{name} {value:.3f} is below {goals[name]}"
            for name, value in found.items()
            if value < goals[name]
        ]
        if self.false_speech > GOALS["false speech"]:
            texts.append(f"false speech {self.false_speech:.3f} is above {GOALS['false speech']}")
        if self.understood is not None and self.understood < GOALS["understood"]:
            texts.append(f"understood {self.understood:.3f} is below {GOALS['understood']}")
        return [f"MISSED ({self.condition}): {text}" for text in texts]

    def figures(self) -> dict[str, Any]:
        return {
            "condition": self.name,
            "questions": self.score.total.asked,
            "right": round(self.right, 4),
            "onset": round(self.onset, 4),
            "false_speech": round(self.false_speech, 4),
            "listening_units": self.score.listening_units,
            "understood": None if self.understood is None else round(self.understood, 4),
            "right_by_intent": right_by_intent(self.score),
        }


@dataclass(frozen=True)
class ChatRow:
    """One condition of chat and its score."""

    condition: ChatCondition
    score: Score

    @property
    def name(self) -> str:
        return str(self.condition)

    def missed(self) -> list[str]:
        goal, found = CHAT_GOALS[self.condition], []
        if self.score.right < goal:
            found.append(f"MISSED ({self.name}): right {self.score.right:.3f} is below {goal}")
        if self.score.understood is not None and self.score.understood < GOALS["understood"]:
            found.append(
                f"MISSED ({self.name}): understood {self.score.understood:.3f} is below {GOALS['understood']}"
            )
        return found

    def figures(self) -> dict[str, Any]:
        understood = self.score.understood
        return {
            "condition": self.name,
            "questions": self.score.total.asked,
            "right": round(self.score.right, 4),
            "understood": None if understood is None else round(understood, 4),
            "right_by_intent": right_by_intent(self.score),
        }


@dataclass(frozen=True)
class DictationRow:
    """One condition of transcription and its errors."""

    condition: DictationCondition
    written: Written

    @property
    def name(self) -> str:
        return str(self.condition)

    def missed(self) -> list[str]:
        rate = self.written.total(in_domain=True).rate
        if self.condition is not DictationCondition.UNSEEN or rate <= WORD_ERROR_GOAL:
            return []
        return [f"MISSED ({self.name}): word error rate {rate:.3f} is above {WORD_ERROR_GOAL}"]

    def figures(self) -> dict[str, Any]:
        return {
            "condition": self.name,
            "utterances": self.written.utterances,
            "words": self.written.total(in_domain=True).words,
            "word_error_rate": round(self.written.total(in_domain=True).rate, 4),
            "word_error_rate_out_of_domain": round(self.written.total(in_domain=False).rate, 4),
            "word_error_rate_by_intent": {
                str(intent): round(errors.rate, 3)
                for intent, errors in sorted(self.written.by_intent.items())
            },
        }


def right_by_intent(score: Score) -> dict[str, float]:
    """Return the share of right answers to each intent."""
    return {
        str(intent): round(tally.right / max(1, tally.asked), 3)
        for intent, tally in sorted(score.by_intent.items())
    }


def tables(rows: Sequence[Measured]) -> str:
    """Return the tables of all kinds of rows, in Markdown."""
    spoken = [row for row in rows if isinstance(row, Row)]
    chats = [row for row in rows if isinstance(row, ChatRow)]
    dictations = [row for row in rows if isinstance(row, DictationRow)]
    parts = [
        *([spoken_tables(spoken)] if spoken else []),
        *([chat_table(chats)] if chats else []),
        *([dictation_table(dictations)] if dictations else []),
    ]
    return "\n\n".join(parts)


def chat_table(rows: list[ChatRow]) -> str:
    """Return a Markdown table of chats."""
    return table(
        ("condition", "questions", "exactly right", "understood"),
        [
            (it.condition, it.score.total.asked, f"{it.score.right:.3f}", _share(it.score.understood))
            for it in rows
        ],
    )


def dictation_table(rows: list[DictationRow]) -> str:
    """Return a Markdown table of transcriptions."""
    lines = []
    for row in rows:
        inside, outside = (row.written.total(in_domain=inside) for inside in (True, False))
        words = (row.written.utterances, inside.words)
        lines.append((row.condition, *words, f"{inside.rate:.3f}", f"{outside.rate:.3f}"))
    columns = ("utterances", "words of the domain", "word error rate", "outside the domain")
    return table(("condition", *columns), lines)


def spoken_tables(rows: list[Row]) -> str:
    """Return two Markdown tables: the figures of each condition, and the right replies by intent."""
    figures = table(
        ("condition", "questions", "exactly right", "onset in the right unit", "false speech", "understood"),
        [
            (
                *(row.condition, row.score.total.asked, f"{row.right:.3f}", f"{row.onset:.3f}"),
                *(f"{row.false_speech:.4f}", _share(row.understood)),
            )
            for row in rows
        ],
    )
    lines = []
    for intent in Intent:
        tallies = [row.score.by_intent.get(intent, Tally()) for row in rows]
        lines.append((intent, *(f"{it.right / it.asked:.2f}" if it.asked else "" for it in tallies)))
    return f"{figures}\n\n" + table(("exactly right", *(str(row.condition) for row in rows)), lines)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
