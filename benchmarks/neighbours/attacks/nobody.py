"""The control without an attack, which shows the variation of the machine itself."""

import asyncio
from typing import Final

from benchmarks.neighbours.attacks.attack import Attack
from benchmarks.neighbours.attacks.client import AttackClient

_STAYS_S: Final = 3600.0


async def stay_away(client: AttackClient) -> None:
    """Do nothing."""
    client.tally["nothing"] += 1
    await asyncio.sleep(_STAYS_S)


ATTACKS: Final = (Attack("nobody", stay_away, frozenset({"nothing"}), is_control=True),)
