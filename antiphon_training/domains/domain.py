"""The interface between a domain and the stages of the recipe.

Every sentence belongs to exactly one side of a split: the sentences of `Split.HELD_OUT` are never used in
training, only to measure.
"""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from antiphon_training.domains.tool import Tool

HELD_OUT_PERCENT = 12
FEWEST_UTTERANCES = 40
"""The smallest number of utterances in a training corpus, enough for the smallest batches."""
VOICES = ("slt", "awb", "rms", "kal16")
"""The voices of flite that a model may speak with."""
PROMPTS = (
    "You are a helpful assistant.", "Answer briefly.", "", "You are a friendly voice assistant.",
    "Be brief and clear.", "You help people with numbers.", "Speak with the user.",
    "Today is a good day. Answer in one sentence.",
)  # fmt: skip
"""System prompts of training sessions; no answer depends on them, so a model learns to ignore prompts."""

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


class Split(StrEnum):
    """The side of the train / held-out split that a sentence is on."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Exchange:
    """One question and its only right answer, both in lower-case words without punctuation."""

    intent: str
    question: str
    reply: str


@dataclass(frozen=True, kw_only=True)
class Domain(ABC):
    """A domain: its intents, and how training draws questions and answers."""

    name: str
    """The name of the model."""
    intents: tuple[str, ...]
    """The intents whose answer depends on the words alone, `out_of_domain` among them."""
    out_of_domain: str
    """The intent of sentences that the model does not understand."""
    interruption: str | None = None
    """The intent that interrupts an answer (barge-in)."""
    looking: str | None = None
    """The intent of questions about camera pictures; without one the model has no vision encoder."""
    tool: Tool | None = None
    """The function that the model can call; without one its chats take no tools."""
    voice: str = "slt"
    """The voice of flite that the model speaks with."""
    prompts: tuple[str, ...] = PROMPTS
    utterances: int
    """The number of spoken questions in the training corpus."""
    minutes: float
    """The wall time of all trained stages in minutes, on one core."""
    asked: Mapping[str, float] = field(default_factory=dict)
    """The factor by which spoken sessions contain an intent more often than the corpus; 1 if absent."""
    dictated: Mapping[str, float] = field(default_factory=dict)
    """The same factor for transcription sessions; 1 if absent."""
    typed: Mapping[str, float] = field(default_factory=dict)
    """The relative frequency of each intent in chats; 1 if absent."""

    @abstractmethod
    def draw(self, rng: random.Random, split: Split, intent: str | None = None) -> Exchange:
        """Draw one exchange from one side of the split, of any intent but `looking` if none is named."""

    @abstractmethod
    def words(self) -> list[str]:
        """Return the words that become tokens of their own, sorted."""

    @abstractmethod
    def replies(self) -> list[str]:
        """Return the replies that the voice learns from, sorted."""

    @abstractmethod
    def standing_replies(self) -> list[str]:
        """Return the replies without slots, sorted: there are few of them, and they are said often."""

    def written(self, rng: random.Random) -> Exchange:
        """Draw an exchange for training on text, where facts are cheap to learn."""
        return self.draw(rng, Split.TRAIN)

    @abstractmethod
    def grammar(self) -> str:
        """Return a JSGF grammar of the sentences that people say, for the recogniser."""

    def recognised(self, exchange: Exchange, rng: random.Random) -> Exchange:
        """Return the exchange in the words of the recogniser; a domain may replace it by another exchange."""
        return exchange

    def fingerprint(self) -> str:
        """Return a digest of the definition; a work folder stores it to detect another domain."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def spell(number: int) -> str:
    """Spell a whole number from -999 to 999 in words: 42 is "forty two", -3 is "minus three"."""
    if number < 0:
        return "minus " + spell(-number)
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f" {ONES[number % 10]}" if number % 10 else "")
    rest = number % 100
    return f"{ONES[number // 100]} hundred" + (f" {spell(rest)}" if rest else "")


def jsgf(rules: Mapping[str, str]) -> str:
    """Return a JSGF grammar of rules by name, each of which is a sentence of its own."""
    lines = [f"<{name}> = {rule};" for name, rule in rules.items()]
    sentences = " | ".join(f"<{name}>" for name in rules)
    return "\n".join(["#JSGF V1.0;", "grammar sentences;", *lines, f"public <sentence> = {sentences};", ""])


def bucket_of(question: str) -> int:
    """Return a number from 0 to 99, a hash of the words of a sentence."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:4], "big") % 100


def join(*parts: str) -> str:
    """Join the non-empty parts with spaces."""
    return " ".join(part for part in parts if part)
