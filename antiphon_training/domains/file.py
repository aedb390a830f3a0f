"""Domain files: YAML with the intents, phrases and answers of a model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from antiphon_training.domains.answer import Answer
from antiphon_training.domains.document import Value, read
from antiphon_training.domains.domain import (
    FEWEST_UTTERANCES,
    PROMPTS,
    VOICES,
    Domain,
    Exchange,
    spell,
)
from antiphon_training.domains.pattern import Pattern, PatternError, Slot
from antiphon_training.domains.table import TableDomain
from inference_service.models.pacing import chunks

OUT_OF_DOMAIN: Final = "out_of_domain"
FEWEST_SENTENCES: Final = 8
"""The smallest number of sentences of an intent; with fewer there is too little to train and to hold out."""
MOST_SENTENCES: Final = 50_000
"""The largest number of sentences of all intents together."""
MOST_UNITS: Final = 8
"""The largest number of units (seconds) of an answer."""
MOST_LETTERS: Final = 20
"""The largest number of characters of a word in an answer: a word must fit into a second."""
MOST_WORDS: Final = 20
"""The largest number of words of a sentence."""
MINUTES: Final = 120.0
UTTERANCES: Final = 10_000

_RANGE: Final = re.compile(r"(-?\d{1,3})\.\.(-?\d{1,3})")
_WORDS: Final = re.compile(r"[a-z']+(?: [a-z']+)*")


@dataclass(frozen=True)
class Key:
    """One key of a domain file, as in the tables of `reference`."""

    name: str
    kind: str
    meaning: str
    required: bool = False


KEYS: Final[Mapping[str, tuple[Key, ...]]] = {
    "the file": (
        Key("name", "text", "Name of the model: letters, digits and dashes.", True),
        Key("intents", "keys", "The intents of people, each with a name of its own.", True),
        Key(OUT_OF_DOMAIN, "keys", "The answers to sentences that the model does not understand.", True),
        Key("slots", "keys", "Each with a name of its own: a list of texts, a range of numbers such as "
            "`0..20`, or keys, which are texts that people say, with their wording in the answer."),
        Key("prompts", "list", "Typical system prompts of sessions; some usual ones are added."),
        Key("voice", "text", f"Voice of flite with which the model learns to speak: {', '.join(VOICES)} "
            "(default slt)."),
        Key("training", "keys", "Amount of training data, and training time."),
    ),
    "an intent": (
        Key("phrases", "list", f"Patterns of sentences that people say, at least {FEWEST_SENTENCES} "
            "sentences in all.", True),
        Key("answer", "text", "The answer of the model, with slots; a sum of two numbers is `<a + b>`, with "
            "`+`, `-` or `*`.", True),
        Key("weight", "number", "Frequency in training, relative to the other intents (default 1)."),
        Key("interrupts", "flag", "`true` for the one intent that interrupts an answer (barge-in)."),
    ),
    OUT_OF_DOMAIN: (
        Key("answer", "text", "The answer of the model to such sentences, without slots.", True),
        Key("phrases", "list", "Patterns of such sentences, in addition to general everyday ones. Choose "
            "sentences that are close to the domain but not in it."),
        Key("weight", "number", "As for an intent (default: one eighth of all sentences)."),
    ),
    "training": (
        Key("minutes", "number", f"Wall time of all trained stages, on one core (default {MINUTES:g})."),
        Key("utterances", "number", "Number of sentences that are synthesised for the training (default "
            f"{UTTERANCES})."),
    ),
}  # fmt: skip
"""The keys of each part of a domain file."""


def reference() -> str:
    """Return the keys as Markdown tables."""
    lines = []
    for part, keys in KEYS.items():
        title = part if " " in part else f"`{part}`"
        lines += [f"Keys of {title}:", "", "| key | kind | meaning |", "|---|---|---|"]
        for key in keys:
            needed = " **Required.**" if key.required else ""
            lines.append(f"| `{key.name}` | {key.kind} | {key.meaning}{needed} |")
        lines.append("")
    return "\n".join(lines)


def read_domain(path: Path) -> Domain:
    """Return the domain that a file describes.

    Raises DomainFileError, whose message names the line, or OSError if the file cannot be opened.
    """
    return _Reader(_keys(read(path), "the file")).domain()


def _keys(value: Value, part: str) -> dict[str, Value]:
    keys = KEYS[part]
    required = {key.name for key in keys if key.required}
    return value.keys(required, {key.name for key in keys} - required)


def _number(keys: Mapping[str, Value], key: str, low: float, high: float, default: float) -> float:
    return keys[key].number(low, high) if key in keys else default


@dataclass
class _Reader:
    """A reader that collects the exchanges of a file; any method may raise DomainFileError."""

    given: Mapping[str, Value]
    slots: dict[str, Slot] = field(default_factory=dict)
    table: dict[str, tuple[tuple[Exchange, ...], ...]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    standing: set[str] = field(default_factory=set)
    rules: dict[str, str] = field(default_factory=dict)
    interruption: str | None = None
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Intent and line of each question."""

    def domain(self) -> Domain:
        """Return the domain of the file."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}", self.given["name"].text()):
            self.given["name"].fail("name is up to 40 letters, digits and dashes")
        if "slots" in self.given:
            self.slots = {name: self._slot(name, value) for name, value in self.given["slots"].names()}
        for name, value in self.given["intents"].names():
            if name == OUT_OF_DOMAIN:
                value.fail(f"{name} is no intent: write it beside intents, at the start of a line")
            self._intent(name, value)
        outside = _keys(self.given[OUT_OF_DOMAIN], OUT_OF_DOMAIN)
        answer = self._outside(outside)
        training = _keys(self.given["training"], "training") if "training" in self.given else {}
        return TableDomain(
            name=self.given["name"].text(),
            intents=(*(name for name in self.table if name != OUT_OF_DOMAIN), OUT_OF_DOMAIN),
            out_of_domain=OUT_OF_DOMAIN,
            interruption=self.interruption,
            voice=self._voice(),
            prompts=self._prompts(),
            utterances=round(_number(training, "utterances", FEWEST_UTTERANCES, 200_000, UTTERANCES)),
            minutes=_number(training, "minutes", 0.01, 100_000, MINUTES),
            typed=dict(self.weights),
            table=self.table,
            weights=self.weights,
            not_understood=answer,
            standing=tuple(sorted(self.standing)),
            rules=self.rules,
        )

    def _voice(self) -> str:
        if "voice" not in self.given:
            return VOICES[0]
        value = self.given["voice"]
        if value.text() not in VOICES:
            value.fail(f"there is no voice {value.text()}: choose {', '.join(VOICES)}")
        return value.text()

    def _prompts(self) -> tuple[str, ...]:
        own = [value.text() for value in self.given["prompts"].items()] if "prompts" in self.given else []
        return (*own, *PROMPTS)

    def _slot(self, name: str, value: Value) -> Slot:
        """Read a slot: a range, a list, or texts that people say with their wording in answers."""
        if value.is_list or value.is_mapping:
            pairs = (
                [(item, item.text(), item.text()) for item in value.items()]
                if value.is_list
                else [(item, said, item.text()) for said, item in value.pairs().items()]
            )
            for item, *texts in pairs:
                for text in texts:
                    if not _WORDS.fullmatch(text.lower()):
                        item.fail(f"{text!r} of slot {name} is no words: use letters and apostrophes alone")
            return Slot(tuple(p[1].lower() for p in pairs), tuple(p[2].lower() for p in pairs))
        found = _RANGE.fullmatch(value.text().strip())
        if found is None:
            value.fail(f"slot {name} is a list, keys, or a range such as 0..20")
        first, last = int(found[1]), int(found[2])
        if first > last:
            value.fail(f"slot {name} ends before it begins: write {last}..{first}")
        numbers = tuple(range(first, last + 1))
        spelled = tuple(map(spell, numbers))
        return Slot(spelled, spelled, numbers)

    def _intent(self, name: str, value: Value) -> None:
        """Read an intent into the table."""
        keys = _keys(value, "an intent")
        patterns = [(item, self._pattern(item)) for item in keys["phrases"].items()]
        given = frozenset.intersection(*(pattern.slots for _, pattern in patterns))
        try:
            answer = Answer(keys["answer"].text(), self.slots, given)
        except PatternError as error:
            keys["answer"].fail(str(error))
        self._add(name, keys["phrases"], patterns, answer, keys["answer"])
        self.weights[name] = _number(keys, "weight", 0.01, 1000, 1.0)
        if "interrupts" in keys and keys["interrupts"].flag():
            if self.interruption:
                keys["interrupts"].fail(f"only one intent interrupts, and {self.interruption} does already")
            self.interruption = name

    def _outside(self, keys: Mapping[str, Value]) -> str:
        """Read the sentences outside the domain; return the answer to them."""
        try:
            answer = Answer(keys["answer"].text(), {}, frozenset())
        except PatternError as error:
            keys["answer"].fail(str(error))
        reply = self._reply(answer, {}, keys["answer"])
        if "phrases" in keys:
            patterns = [(item, self._pattern(item)) for item in keys["phrases"].items()]
            self._add(OUT_OF_DOMAIN, keys["phrases"], patterns, answer, keys["answer"])
        self.weights[OUT_OF_DOMAIN] = _number(keys, "weight", 0.01, 1000, sum(self.weights.values()) / 7)
        return reply

    def _pattern(self, item: Value) -> Pattern:
        try:
            pattern = Pattern(item.text(), self.slots)
        except PatternError as error:
            item.fail(str(error))
        if pattern.count + len(self.places) > MOST_SENTENCES:
            item.fail(
                f"more than {MOST_SENTENCES} sentences in the file: use fewer alternatives, or smaller ranges"
            )
        return pattern

    def _add(
        self, intent: str, phrases: Value, patterns: list[tuple[Value, Pattern]], answer: Answer, place: Value
    ) -> None:
        """Add the sentences of an intent's patterns to the table; `place` is the line of the answer."""
        table = []
        for item, pattern in patterns:
            exchanges = []
            if pattern.count + len(self.places) > MOST_SENTENCES:
                self._pattern(item)
            for question, values in pattern.sentences():
                there, line = self.places.get(question, (intent, item.line))
                if there != intent:
                    item.fail(f'"{question}" is in intent {there} too, line {line}: remove it from one')
                if not 0 < len(question.split()) <= MOST_WORDS:
                    item.fail(f'"{question}" is not one to {MOST_WORDS} words long: change the pattern')
                if question not in self.places:
                    self.places[question] = intent, item.line
                    exchanges.append(Exchange(intent, question, self._reply(answer, values, place)))
            if exchanges:
                table.append(tuple(exchanges))
        count = sum(map(len, table))
        if count < FEWEST_SENTENCES:
            phrases.fail(
                f"{intent} has {count} sentences, and needs {FEWEST_SENTENCES}: add phrases, alternatives "
                "(a|b), or optional words such as (please)?"
            )
        self.table[intent] = tuple(table)
        self.rules[intent] = " | ".join(pattern.jsgf for _, pattern in patterns)

    def _reply(self, answer: Answer, values: Mapping[str, int], place: Value) -> str:
        """Return the words of an answer; fail at `place` if they take too long to say."""
        try:
            reply = answer.reply(values)
        except PatternError as error:
            place.fail(str(error))
        if answer.is_standing and reply in self.standing:
            return reply
        for word in reply.split():
            if len(word) > MOST_LETTERS:
                place.fail(f"{word!r} has more than {MOST_LETTERS} letters: an answer needs shorter words")
        if len(chunks(reply)) > MOST_UNITS:
            place.fail(f'"{reply}" takes more than {MOST_UNITS} seconds to say: make it shorter')
        if answer.is_standing:
            self.standing.add(reply)
        return reply
