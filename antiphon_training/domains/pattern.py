"""Patterns of sentences: `please? (take me|go) to floor <floor>`.

`(a|b)` is a choice, `?` behind a word or a group makes it optional, `<name>` is a slot. All other text is
words of letters and apostrophes, which are lower-cased.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

_TOKEN: Final = re.compile(r"\s*(?:(?P<word>[a-z]+(?:'[a-z]+)*)|<(?P<slot>[^<>]*)>|(?P<mark>[()|?]))")
_DEEPEST: Final = 8
"""The largest depth of nested groups."""


class PatternError(ValueError):
    """The error for a malformed pattern or answer; the message says what to do."""


@dataclass(frozen=True)
class Slot:
    """A slot of a sentence: its values as people say them and, in the same order, as answers say them."""

    said: tuple[str, ...]
    answered: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    """The values of a slot of numbers; empty for other slots."""


@dataclass(frozen=True)
class _Word:
    text: str


@dataclass(frozen=True)
class _Value:
    slot: str


@dataclass(frozen=True)
class _Choice:
    options: "tuple[_Sequence, ...]"


_Sequence = tuple["_Word | _Value | _Choice", ...]
Sentence = tuple[str, Mapping[str, int]]
"""The words of a sentence, and the index of the value of each slot."""


class Pattern:
    """A parsed pattern; `slots` are the names of the slots in it."""

    def __init__(self, text: str, slots: Mapping[str, Slot]) -> None:
        """Read the text; raises PatternError."""
        self._slots = slots
        self._text = text.lower()
        self._at = 0
        self._sequence = self._alternatives(0).options
        if len(self._sequence) > 1:
            raise PatternError("put alternatives in parentheses: (a|b)")
        if self._at < len(self._text):
            raise PatternError("a ) has no ( before it")
        names = list(_slots_of(self._sequence[0]))
        for name in names:
            if names.count(name) > 1:
                raise PatternError(f"slot <{name}> is there twice: define two slots with the same values")
        self.slots = frozenset(names)

    @property
    def count(self) -> int:
        """The number of sentences of the pattern, including repetitions."""
        return self._count(self._sequence[0])

    def sentences(self) -> Iterator[Sentence]:
        """Yield every sentence in a fixed order; the first has the first option of each choice."""
        for words, values in self._expand(self._sequence[0]):
            yield " ".join(words), dict(values)

    @property
    def jsgf(self) -> str:
        """The same sentences as a JSGF rule."""
        return self._rule(self._sequence[0])

    def _rule(self, sequence: _Sequence) -> str:
        return " ".join(map(self._said, sequence)) or "<NULL>"

    def _said(self, item: _Word | _Value | _Choice) -> str:
        match item:
            case _Word(text):
                return text
            case _Value(slot):
                return f"({' | '.join(self._slots[slot].said)})"
            case _Choice(options):
                return f"({' | '.join(map(self._rule, options))})"

    def _next(self) -> re.Match[str] | None:
        """Return the next token, without consuming it; None at the end."""
        if not self._text[self._at :].strip():
            self._at = len(self._text)
            return None
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            wrong = self._text[self._at :].lstrip()[0]
            hint = (
                "spell numbers in words"
                if wrong.isdigit()
                else "write words in letters and apostrophes alone"
            )
            raise PatternError(f"{wrong!r} cannot be spoken: {hint}")
        return found

    def _alternatives(self, depth: int) -> _Choice:
        """Read sequences with bars between them, up to a closing parenthesis or the end."""
        if depth > _DEEPEST:
            raise PatternError(f"more than {_DEEPEST} groups within each other: make it simpler")
        options: list[_Sequence] = []
        sequence: list[_Word | _Value | _Choice] = []
        while (token := self._next()) and token["mark"] != ")":
            self._at = token.end()
            if token["mark"] == "|":
                options.append(tuple(sequence))
                sequence = []
            elif token["mark"] == "?":
                if not sequence:
                    raise PatternError("a ? has no word or group before it")
                sequence[-1] = _Choice(((), (sequence[-1],)))
            elif token["mark"]:
                sequence.append(self._alternatives(depth + 1))
                closing = self._next()
                if closing is None:
                    raise PatternError("a ( has no ) behind it")
                self._at = closing.end()
            elif token["slot"] is not None:
                if token["slot"] not in self._slots:
                    raise PatternError(f"there is no slot <{token['slot']}>: define it under slots")
                sequence.append(_Value(token["slot"]))
            else:
                sequence.append(_Word(token["word"]))
        return _Choice((*options, tuple(sequence)))

    def _count(self, sequence: _Sequence) -> int:
        return prod(
            sum(map(self._count, item.options)) if isinstance(item, _Choice)
            else len(self._slots[item.slot].said) if isinstance(item, _Value)
            else 1
            for item in sequence
        )  # fmt: skip

    def _expand(self, sequence: _Sequence) -> Iterator[tuple[list[str], list[tuple[str, int]]]]:
        for parts in product(*(list(self._options(item)) for item in sequence)):
            yield [w for words, _ in parts for w in words], [v for _, values in parts for v in values]

    def _options(self, item: _Word | _Value | _Choice) -> Iterator[tuple[list[str], list[tuple[str, int]]]]:
        match item:
            case _Word(text):
                yield [text], []
            case _Value(slot):
                for i, said in enumerate(self._slots[slot].said):
                    yield [said], [(slot, i)]
            case _Choice(options):
                for option in options:
                    yield from self._expand(option)


def _slots_of(sequence: _Sequence) -> Iterator[str]:
    """Yield the slots of a sequence; a slot in several alternatives counts once."""
    for item in sequence:
        if isinstance(item, _Value):
            yield item.slot
        elif isinstance(item, _Choice):
            yield from sorted({name for option in item.options for name in _slots_of(option)})
