"""Sessions that make an adapter with recordings write much data."""

import json
from functools import cache
from typing import Final

from benchmarks.neighbours.attacks.attack import Attack
from benchmarks.neighbours.attacks.audio import SECOND
from benchmarks.neighbours.attacks.client import AttackClient

PICTURES: Final = 20_000
"""The number of pictures in one append: a session without video ignores them."""

_RECORDING: Final = ("--recordings", "{folder}")


@cache
def album() -> str:
    """Return an append with a second of audio and `PICTURES` tiny pictures."""
    frames = ["/9j/"] * PICTURES
    return json.dumps({"type": "input.append", "input": {"audio": SECOND, "video_frames": frames}})


async def fill_the_disk(client: AttackClient) -> None:
    """Send appends of a second of audio and `PICTURES` pictures in a session."""
    async with client.session("audio") as visit:
        for _ in range(20):
            await visit.say(album())
            await visit.until("error", "response.output.delta", "session.closed")


async def fill_the_folder(client: AttackClient) -> None:
    """Record one session after another, each with a long prompt and a second of audio."""
    async with client.session("audio", {"system_prompt": "be brief and polite " * 30}) as visit:
        await visit.say({"type": "input.append", "input": {"audio": SECOND}}, {"type": "session.close"})
        await visit.until("session.closed", "error")


ATTACKS: Final = (
    Attack(
        "recorded-pictures",
        fill_the_disk,
        frozenset({"response.output.delta", "invalid_payload", "rate_limited"}),
        options=_RECORDING,
        prepare=album,
    ),
    Attack(
        "recorded-sessions",
        fill_the_folder,
        frozenset({"session.closed", "HTTP 429"}),
        attackers=4,
        options=_RECORDING,
    ),
)
