"""Answers with slots: `going to floor <floor>`, `<a> plus <b> is <a + b>`."""

import re
from collections.abc import Mapping
from operator import add, mul, sub
from typing import Final

from antiphon_training.domains.domain import spell
from antiphon_training.domains.pattern import PatternError, Slot

_FIELD: Final = re.compile(r"<([^<>]*)>")
_SUM: Final = re.compile(r"\s*(\w+)\s*([-+*])\s*(\w+)\s*")
_WORDS: Final = re.compile(r"[a-z']+(?: [a-z']+)*")
_OPERATORS: Final = {"+": add, "-": sub, "*": mul}
_LARGEST: Final = 999


class Answer:
    """An answer to sentences that all have the slots `given`."""

    def __init__(self, text: str, slots: Mapping[str, Slot], given: frozenset[str]) -> None:
        """Read the text; raises PatternError."""
        self._text = " ".join(text.lower().split())
        self._slots = slots
        plain = " ".join(_FIELD.sub(" x ", self._text).split())
        if not _WORDS.fullmatch(plain):
            raise PatternError("an answer is words of letters and apostrophes, and slots like <name>")
        self._sums: dict[str, tuple[str, str, str]] = {}
        for field in _FIELD.findall(self._text):
            names = [field]
            if found := _SUM.fullmatch(field):
                left, sign, right = found.groups()
                self._sums[field] = left, sign, right
                names = [name for name in (left, right) if not name.isdigit()]
            for name in names:
                if name not in given:
                    raise PatternError(f"not every phrase says <{name}>, which the answer needs")
                if found and not slots[name].numbers:
                    raise PatternError(f"<{name}> is no range of numbers: it cannot be part of <{field}>")

    @property
    def is_standing(self) -> bool:
        """Whether the answer has no slots, so that its words are always the same."""
        return "<" not in self._text

    def reply(self, values: Mapping[str, int]) -> str:
        """Return the words for these values of the slots; raises PatternError for a number too large."""
        return _FIELD.sub(lambda found: self._value(found[1], values), self._text)

    def _value(self, field: str, values: Mapping[str, int]) -> str:
        if field not in self._sums:
            return self._slots[field].answered[values[field]]
        left, sign, right = self._sums[field]
        numbers = [
            int(name) if name.isdigit() else self._slots[name].numbers[values[name]] for name in (left, right)
        ]
        result = _OPERATORS[sign](*numbers)
        if abs(result) > _LARGEST:
            raise PatternError(f"<{field}> can be {result}: numbers up to {_LARGEST} can be spoken")
        return spell(result)
