"""The description of an attack."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from benchmarks.neighbours.attacks.client import AttackClient

SLOTS: Final = 16
"""The slots of the worker: eight for the neighbours and eight for the attackers."""

Assault: TypeAlias = Callable[[AttackClient], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    """An attack: `attackers` clients with one address repeat `assault` until the end of the window.

    `proofs` are expected outcomes: a documented error, a lost connection or an answer. The attack took place
    if the tally has at least one of them.
    """

    name: str
    assault: Assault
    proofs: frozenset[str]
    attackers: int = 1
    slots: int = SLOTS
    options: tuple[str, ...] = ()
    """The options of the adapter; `{folder}` stands for a temporary folder."""
    is_control: bool = False
    """Whether this is the control without an attack, which has no goals."""
    prepare: Callable[[], object] = lambda: None
    """A function that builds large inputs before the attack."""
