"""Domains whose exchanges are all in a table, as those of domain files."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from antiphon_training.domains.domain import (
    HELD_OUT_PERCENT,
    Domain,
    Exchange,
    Split,
    bucket_of,
    jsgf,
)
from antiphon_training.domains.unrelated import unrelated

_MOST_REPLIES: Final = 2_000
"""The largest number of replies from which the voice learns; a domain with more uses a sample."""
_OWN_SHARE: Final = 0.5
"""The share of the file's own sentences among those outside the domain, if the file has any."""

Table = Mapping[str, tuple[tuple[Exchange, ...], ...]]
"""The exchanges of each phrase of each intent; no question is in two intents."""


@dataclass(frozen=True, kw_only=True)
class TableDomain(Domain):
    """A domain of listed exchanges.

    All phrases of an intent are equally likely, and so are all sentences of a phrase. The first sentence of
    each intent is always trained. `HELD_OUT_PERCENT` of the others are held out, but at least one.
    """

    table: Table
    """The exchanges of each intent; `out_of_domain` is missing if the file has no phrases for it."""
    weights: Mapping[str, float]
    """The relative frequency of each intent."""
    not_understood: str
    """The answer to sentences outside the domain."""
    standing: tuple[str, ...]
    """The replies without slots."""
    rules: Mapping[str, str]
    """The sentences of each intent as a JSGF rule."""

    def draw(self, rng: random.Random, split: Split, intent: str | None = None) -> Exchange:
        chosen = intent or rng.choices(list(self.weights), list(self.weights.values()))[0]
        phrases = self._sides[split].get(chosen, [])
        if chosen == self.out_of_domain and (not phrases or rng.random() >= _OWN_SHARE):
            return self._unrelated(rng, split)
        return rng.choice(rng.choice(phrases))

    def words(self) -> list[str]:
        inside = [exchange for intent, exchange in self._exchanges if intent != self.out_of_domain]
        texts = {text for exchange in inside for text in (exchange.question, exchange.reply)}
        return sorted({word for text in {*texts, self.not_understood} for word in text.split()})

    def replies(self) -> list[str]:
        others = {exchange.reply for _, exchange in self._exchanges} - set(self.standing)
        room = max(0, _MOST_REPLIES - len(self.standing))
        if len(others) > room:
            others = set(random.Random(7).sample(sorted(others), room))
        return sorted({*others, *self.standing})

    def grammar(self) -> str:
        return jsgf({intent: rule for intent, rule in self.rules.items() if intent != self.out_of_domain})

    def standing_replies(self) -> list[str]:
        return sorted(self.standing)

    @cached_property
    def _exchanges(self) -> list[tuple[str, Exchange]]:
        return [
            (i, exchange) for i, phrases in self.table.items() for phrase in phrases for exchange in phrase
        ]

    @cached_property
    def _held_out(self) -> frozenset[str]:
        """The questions that training does not use."""
        found: set[str] = set()
        for phrases in self.table.values():
            questions = [exchange.question for phrase in phrases for exchange in phrase][1:]
            aside = {question for question in questions if bucket_of(question) < HELD_OUT_PERCENT}
            found |= aside or {min(questions, key=bucket_of)}
        return frozenset(found)

    @cached_property
    def _sides(self) -> Mapping[Split, Mapping[str, list[list[Exchange]]]]:
        """The phrases of each intent on each side of the split, without empty phrases."""
        sides: dict[Split, dict[str, list[list[Exchange]]]] = {split: {} for split in Split}
        for split in Split:
            for intent, phrases in self.table.items():
                here = [[e for e in phrase if self._side(e.question) is split] for phrase in phrases]
                sides[split][intent] = [phrase for phrase in here if phrase]
        return sides

    def _side(self, question: str) -> Split:
        return Split.HELD_OUT if question in self._held_out else Split.TRAIN

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(exchange.question for _, exchange in self._exchanges)

    def _unrelated(self, rng: random.Random, split: Split) -> Exchange:
        """Draw an everyday sentence that is not in the table."""
        while True:
            question = unrelated(rng)
            held_out = bucket_of(question) < HELD_OUT_PERCENT
            if question not in self._known and held_out == (split is Split.HELD_OUT):
                return Exchange(self.out_of_domain, question, self.not_understood)
