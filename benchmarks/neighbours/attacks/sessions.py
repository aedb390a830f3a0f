"""Sessions that are opened and closed in a loop."""

from typing import Final

from benchmarks.neighbours.attacks.attack import Attack
from benchmarks.neighbours.attacks.client import AttackClient

_AT_ONCE: Final = 8


async def come_and_go(client: AttackClient) -> None:
    """Open a session with a long system prompt and close it."""
    async with client.session("audio", {"system_prompt": "be brief and polite " * 30}) as visit:
        await visit.say({"type": "session.close"})
        await visit.until("session.closed", "error")


ATTACKS: Final = (
    Attack("sessions", come_and_go, frozenset({"session.closed", "session.created"}), attackers=_AT_ONCE),
)
