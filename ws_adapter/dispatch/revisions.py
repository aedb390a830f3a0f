"""Weights of the revisions of a model: they choose the revision of the next session in a canary release."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from antiphon_service.pools import REVISION
from ws_adapter.process.errors import ConfigurationError

HEAVIEST: Final = 1_000_000
MOST_REVISIONS: Final = 16

_FORM: Final = "write it like antiphon-mini=stable:95,canary:5"


@dataclass(frozen=True)
class Weights:
    """The weights of one model's revisions; without any, all revisions are alike.

    A revision whose weight is 0, or which is not named, gets no new session.
    """

    of: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the weights in the form that the functions of the shared queue read."""
        return " ".join(f"{revision}:{weight}" for revision, weight in self.of.items())

    def take(self, revision: str) -> bool:
        """Return whether a revision gets sessions."""
        return not self.of or self.of.get(revision, 0) > 0


ALIKE: Final = Weights()


class WeightedRoundRobin:
    """Smooth weighted round robin, as NGINX has it, over the revisions of one pool.

    In any sequence of sessions the number of a revision's sessions is close to its share. The order is
    deterministic. `functions.lua` has the same operations in the same order.
    """

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def next(self, weights: Weights, able: Collection[str], revision: str = "") -> str:
        """Return the revision among `able` that takes the next session; at least one of them gets sessions.

        `revision` is the former one of the session: the session stays there if it can, and that takes no
        turn.
        """
        chosen = [name for name in weights.of if name in able and weights.take(name)]
        if revision in chosen:
            return revision
        total = sum(weights.of[name] for name in chosen)
        for name in chosen:
            self._credit[name] = self._credit.get(name, 0.0) + weights.of[name] / total
        best = max(chosen, key=lambda name: self._credit[name])
        self._credit[best] -= 1.0
        return best


def read_weights(entries: Iterable[str]) -> dict[str, Weights]:
    """Return the weights of each model, from entries such as `antiphon-mini=stable:95,canary:5`.

    Raises `ConfigurationError`.
    """
    found: dict[str, Weights] = {}
    for entry in entries:
        model, equals, text = entry.rpartition("=")
        if not equals or not model:
            raise ConfigurationError(f"revisions cannot be {entry!r}: {_FORM}.")
        if model in found:
            raise ConfigurationError(f"revisions names the model {model} twice: write one entry for it.")
        found[model] = _read(entry, text)
    return found


def _read(entry: str, text: str) -> Weights:
    of: dict[str, int] = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition(":")
        is_number = weight.isascii() and weight.isdigit() and int(weight) <= HEAVIEST
        if not re.fullmatch(REVISION, name) or not is_number or name in of:
            raise ConfigurationError(
                f"revisions cannot be {entry!r}: {_FORM}, each revision once, with a whole weight of 0 to "
                f"{HEAVIEST}."
            )
        of[name] = int(weight)
    if not any(of.values()):
        raise ConfigurationError(f"revisions cannot be {entry!r}: no revision would get sessions.")
    if len(of) > MOST_REVISIONS:
        raise ConfigurationError(f"revisions of a model must be at most {MOST_REVISIONS}, not {len(of)}.")
    return Weights(of)
