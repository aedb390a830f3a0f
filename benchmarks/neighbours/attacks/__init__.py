"""The attacks by name, with a module for each type."""

from typing import Final

from benchmarks.neighbours.attacks import (
    chats,
    events,
    frames,
    nobody,
    pages,
    pictures,
    recordings,
    sessions,
    voices,
)
from benchmarks.neighbours.attacks.attack import Attack

ATTACKS: Final[dict[str, Attack]] = {
    attack.name: attack
    for sort in (nobody, pictures, voices, events, frames, pages, chats, sessions, recordings)
    for attack in sort.ATTACKS
}
