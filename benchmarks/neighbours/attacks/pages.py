"""Floods of HTTP requests and WebSocket upgrades, and endless request bodies."""

from typing import Final

from benchmarks.neighbours.attacks.attack import Assault, Attack
from benchmarks.neighbours.attacks.client import AttackClient

AT_ONCE: Final = 16
_BODY: Final = bytes(2**16)


def _ask(path: str) -> Assault:
    return lambda client: client.request(f"GET {path}")


async def never_end(client: AttackClient) -> None:
    """Send a request with an endless body."""
    await client.request("GET /api/queue", f"Content-Length: {10**12}\r\n", _BODY)


async def upgrade(client: AttackClient) -> None:
    """Open a WebSocket and drop it."""
    async with client.visit("/v1/realtime?mode=audio"):
        client.tally["opened"] += 1


ATTACKS: Final = (
    Attack("queue-pages", _ask("/api/queue"), frozenset({"HTTP 200", "HTTP 429"}), attackers=AT_ONCE),
    Attack(
        "voice-pages",
        _ask("/api/default_ref_audio"),
        frozenset({"HTTP 200", "HTTP 429"}),
        attackers=AT_ONCE,
    ),
    Attack("endless-bodies", never_end, frozenset({"HTTP 413", "HTTP 429", "cut"}), attackers=AT_ONCE),
    Attack("upgrades", upgrade, frozenset({"opened", "HTTP 429"}), attackers=AT_ONCE),
)
