"""The figures of an evaluation as tables."""

from dataclasses import dataclass
from typing import Any

from benchmarks.quality.scoring import Score, Tally
from benchmarks.quality.script import Condition
from inference_service.training.domain import Intent

BARS: dict[str, float] = {"right": 0.75, "onset": 0.95, "false speech": 0.03, "understood": 0.8}
"""At least these, and for false speech at most."""
_RIGHT_OF_VISION = 0.8
_JUDGED = (Condition.PLAIN, Condition.PAUSES, Condition.THIRD_MINUTE, Condition.CAMERA, Condition.VISION)


@dataclass(frozen=True)
class Row:
    """One condition and its score."""

    condition: Condition
    score: Score

    @property
    def right(self) -> float:
        """Share of questions answered exactly right."""
        return self.score.total.right / max(1, self.score.total.asked)

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
        """Share of right replies whose sound an independent recogniser understood exactly."""
        total = self.score.total
        return total.understood / total.spoken if total.spoken else None

    def missed(self) -> list[str]:
        """The bars that this row misses, in words."""
        if self.condition not in _JUDGED:
            return []
        bars = BARS | ({"right": _RIGHT_OF_VISION} if self.condition is Condition.VISION else {})
        found = {"right": self.right, "onset": self.onset}
        texts = [
            f"{name} {value:.3f} is below {bars[name]}" for name, value in found.items() if value < bars[name]
        ]
        if self.false_speech > BARS["false speech"]:
            texts.append(f"false speech {self.false_speech:.3f} is above {BARS['false speech']}")
        if self.understood is not None and self.understood < BARS["understood"]:
            texts.append(f"understood {self.understood:.3f} is below {BARS['understood']}")
        return [f"MISSED ({self.condition}): {text}" for text in texts]

    def figures(self) -> dict[str, Any]:
        """The row for a JSON file."""
        return {
            "condition": str(self.condition),
            "questions": self.score.total.asked,
            "right": round(self.right, 4),
            "onset": round(self.onset, 4),
            "false_speech": round(self.false_speech, 4),
            "listening_units": self.score.listening_units,
            "understood": None if self.understood is None else round(self.understood, 4),
            "right_by_intent": {
                str(intent): round(tally.right / max(1, tally.asked), 3)
                for intent, tally in sorted(self.score.by_intent.items())
            },
        }


def table(rows: list[Row]) -> str:
    """Two Markdown tables: the figures of each condition, then the share of right replies per intent."""
    lines = [
        "| condition | questions | exactly right | onset in the right unit | false speech | understood |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        understood = "" if row.understood is None else f"{row.understood:.3f}"
        lines.append(
            f"| {row.condition} | {row.score.total.asked} | {row.right:.3f} | {row.onset:.3f} "
            f"| {row.false_speech:.4f} | {understood} |"
        )
    lines += ["", "| exactly right | " + " | ".join(str(row.condition) for row in rows) + " |"]
    lines.append("|---" + "|---:" * len(rows) + "|")
    for intent in Intent:
        tallies = [row.score.by_intent.get(intent, Tally()) for row in rows]
        shares = " | ".join(f"{t.right / t.asked:.2f}" if t.asked else "" for t in tallies)
        lines.append(f"| {intent} | {shares} |")
    return "\n".join(lines)
