"""The rights of a key, or of a client secret made with it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, TypeVar

from ws_adapter.protocol.core.config import Mode

T = TypeVar("T")


@dataclass(frozen=True)
class Rights:
    """Modes, models and web origins that are allowed; None allows all of them."""

    modes: frozenset[Mode] | None = None
    models: frozenset[str] | None = None
    origins: frozenset[str] | None = None

    def allows_mode(self, mode: Mode) -> bool:
        """Return whether sessions may have this mode."""
        return self.modes is None or mode in self.modes

    def allows_model(self, model: str) -> bool:
        """Return whether sessions may use this model; an empty name, for any allowed model, is always
        allowed."""
        return self.models is None or not model or model in self.models

    def within(self, other: "Rights") -> "Rights":
        """Return the rights that both allow."""
        return Rights(
            _both(self.modes, other.modes),
            _both(self.models, other.models),
            _both(self.origins, other.origins),
        )


ALL_RIGHTS: Final = Rights()


def _both(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def shown(names: Collection[str]) -> str:
    """Format names for a refusal."""
    return " or ".join(sorted(names)) or "none"
