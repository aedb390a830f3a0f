"""A token leads to the adapter that made it, by the list of adapters in Redis."""

import asyncio

import pytest

from antiphon_service.redis import RedisUnusable
from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.forwarding.owners import FRESH_S, KEPT_S, SessionOwners
from ws_adapter.peers.base import NoPeers, Peer
from ws_adapter.resume.tokens import Claim, ResumeTokens

KEYS = (b"first signing key",)


class Told(NoPeers):
    """Peers as they are told next; each question is counted."""

    def __init__(self, *peers: Peer) -> None:
        self.peers = list(peers)
        self.asked = 0
        self.fails = False

    async def all(self) -> list[Peer]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.fails:
            raise RedisUnusable("away")
        return list(self.peers)


def peer(adapter_id: str, forward: str = "10.0.0.1:8010", host: str = "here") -> Peer:
    return Peer(adapter_id, "1", host, 1, 0.0, forward=forward)


def claim_of(adapter_id: str) -> Claim:
    tokens = ResumeTokens(KEYS, adapter_id)
    claim = tokens.read(tokens.make("sess_0123456789ab", bytes(16))[0])
    assert claim is not None
    return claim


def owners_of(told: Told, clock: ManualClock) -> SessionOwners:
    return SessionOwners(ResumeTokens(KEYS, "own"), told, clock, "here")


async def target_of(owners: SessionOwners, claim: Claim) -> str | None:
    found = await owners.find(claim)
    return found.forward if found is not None else None


async def test_token_leads_to_the_adapter_that_made_it() -> None:
    near, far = peer("n", "unix:/run/a.sock"), peer("f", "unix:/run/b.sock", host="elsewhere")
    told = Told(peer("a"), peer("b", "10.0.0.2:8010"), peer("c", ""), near, far)
    owners = owners_of(told, ManualClock())

    assert await target_of(owners, claim_of("b")) == "10.0.0.2:8010"
    assert await owners.find(claim_of("c")) is None, "it takes no forwarded connections"
    assert await owners.find(claim_of("d")) is None
    assert await target_of(owners, claim_of("n")) == "unix:/run/a.sock"
    assert await owners.find(claim_of("f")) is None, "a Unix socket of another machine"


async def test_crowd_has_redis_asked_once() -> None:
    clock, told = ManualClock(), Told(peer("a"))
    owners = owners_of(told, clock)

    found = await asyncio.gather(*(target_of(owners, claim_of("a")) for _ in range(100)))

    assert set(found) == {"10.0.0.1:8010"}
    assert told.asked == 1
    await clock.advance(FRESH_S)
    await owners.find(claim_of("a"))
    assert told.asked == 2


async def test_adapter_that_redis_has_no_more_is_looked_for_a_while() -> None:
    clock, told = ManualClock(), Told(peer("a"))
    owners = owners_of(told, clock)
    await owners.find(claim_of("a"))
    told.peers.clear()

    await clock.advance(KEPT_S - 1)
    assert await target_of(owners, claim_of("a")) == "10.0.0.1:8010"
    await clock.advance(2)
    assert await owners.find(claim_of("a")) is None


async def test_question_that_failed_is_asked_again() -> None:
    told = Told(peer("a"))
    owners = owners_of(told, ManualClock())
    told.fails = True
    with pytest.raises(RedisUnusable):
        await owners.find(claim_of("a"))
    told.fails = False

    assert await target_of(owners, claim_of("a")) == "10.0.0.1:8010"
