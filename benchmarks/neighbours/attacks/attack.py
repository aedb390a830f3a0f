"""The interface of an attack."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from benchmarks.neighbours.attacks.client import AttackClient

SLOTS: Final = 16
"""The number of slots of the worker: eight for the neighbours, and eight for the attackers."""

Assault: TypeAlias = Callable[[AttackClient], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    """`assault` is made again and again by `attackers` clients of one address, until it is to stop.

    `proofs` are entries of the tally, at least one of which shows that it did what it says: the documented
    error, the cut, the answer.
    """

    name: str
    assault: Assault
    proofs: frozenset[str]
    attackers: int = 1
    slots: int = SLOTS
    options: tuple[str, ...] = ()
    """The options of the adapter; `{folder}` is a folder of its own."""
    is_control: bool = False
    """Whether this is the control, which shows the normal difference of two windows and has no goals."""
    prepare: Callable[[], object] = lambda: None
    """A function that prepares slow inputs in advance."""
