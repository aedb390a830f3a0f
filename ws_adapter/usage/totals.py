"""The usage of tenants since the adapter began, for metrics with a bounded number of series."""

from dataclasses import dataclass
from typing import Final

from antiphon_service.semconv import OTHER

MOST_TENANTS: Final = 100
"""The most tenants with a series of their own; later ones share the series `other`."""


@dataclass(slots=True)
class Total:
    """The total of one tenant."""

    sessions: int = 0
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class Totals:
    """The totals of all tenants, by the name of their key. A client cannot add names, which are those of
    existing keys."""

    def __init__(self, most: int = MOST_TENANTS) -> None:
        self._most = most
        self._totals: dict[str, Total] = {OTHER: Total()}

    def add(self, name: str, seconds: float, input_tokens: int, output_tokens: int) -> None:
        """Record the end of a session."""
        total = self._totals.get(name)
        if total is None:
            if len(self._totals) > self._most:
                name = OTHER
            total = self._totals.setdefault(name, Total())
        total.sessions += 1
        total.seconds += seconds
        total.input_tokens += input_tokens
        total.output_tokens += output_tokens

    def all(self) -> list[tuple[str, Total]]:
        """Return the current totals; callable from another thread."""
        return list(self._totals.items())
