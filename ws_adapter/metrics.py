"""Figures about an adapter, in the text format of Prometheus."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ws_adapter.dialects import errors
from ws_adapter.dialects.errors import ErrorCode
from ws_adapter.dispatch.base import Kind

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

DISCONNECTED: Final = "disconnected"
"""Why a session ended whose client went without a word."""

_REASONS: Final = frozenset(
    {
        errors.USER_STOP,
        errors.DONE,
        errors.TIMEOUT,
        errors.CONTEXT_FULL,
        errors.SHUTDOWN,
        errors.BACKEND_ERROR,
        errors.SLOW_CONSUMER,
        DISCONNECTED,
        *ErrorCode,
    }
)
_OTHER: Final = "other"
"""Clients may give reasons of their own: as labels they would be series without end."""


@dataclass
class Tally:
    """What has happened since the start, and which sessions there are."""

    active: Counter[Kind] = field(default_factory=Counter)
    ended: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)

    def begin(self, kind: Kind) -> None:
        """A session came in."""
        self.active[kind] += 1

    def end(self, kind: Kind, reason: str) -> None:
        """It is over."""
        self.active[kind] -= 1
        self.ended[kind, reason if reason in _REASONS else _OTHER] += 1

    def reject(self, code: str) -> None:
        """Somebody was not let in."""
        self.rejected[code] += 1


@dataclass(frozen=True)
class Family:
    """One metric: its samples by the values of its `labels`, in their order."""

    name: str
    meaning: str
    samples: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"


def gauge(name: str, meaning: str, value: float) -> Family:
    """A metric that is one number."""
    return Family(name, meaning, {(): value})


def exposition(families: Iterable[Family]) -> bytes:
    """All of them as one page. Values of labels are words of ours, so nothing has to be escaped."""
    return "".join(line + "\n" for family in families for line in _lines(family)).encode()


def _lines(family: Family) -> Iterable[str]:
    name = f"antiphon_{family.name}"
    yield f"# HELP {name} {family.meaning}"
    yield f"# TYPE {name} {family.kind}"
    for values, sample in family.samples.items():
        pairs = ",".join(f'{label}="{value}"' for label, value in zip(family.labels, values, strict=True))
        yield f"{name}{{{pairs}}} {sample:.12g}" if pairs else f"{name} {sample:.12g}"
