"""A worker with a key takes sessions only with a lease that was signed with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

from antiphon.contract import METADATA_LEASE, Reason
from antiphon.grpc import get_info
from antiphon_service.leases import DEFAULT_POOL, lease_mac
from inference_service.errors import LeaseInvalid, LeaseMissing
from inference_service.session.leases import Lease, LeaseReader, LeaseRules
from inference_service.session.units import Stream
from tests.inference_service.support.caller import Caller, Ending, channel_to, until
from tests.support.scripted_engine import ScriptedEngine, running_worker

KEY = b"a key of 16 byte"
Code = grpc.StatusCode


def token(worker_id: str, slot: int, epoch: int, key: bytes = KEY) -> str:
    return f"{slot}:{epoch}:{lease_mac(key, DEFAULT_POOL, worker_id, slot, epoch)}"


def read(*tokens: str | bytes, key: bytes | None = KEY) -> Lease | None:
    rules = LeaseRules(key, binding=key is not None)
    return LeaseReader(rules, "w").read([("x", "y"), *((METADATA_LEASE, token) for token in tokens)])


def test_the_mac_is_as_it_always_was() -> None:
    """As `openssl dgst -sha256 -hmac` makes it: dispatchers and workers of different versions must agree."""
    assert lease_mac(KEY, "default", "w-1", 3, 12345) == "d44469c33bc2a73733dbe2e473bd3335"


def test_a_signed_lease_is_read() -> None:
    assert read(token("w", 3, 1 << 52)) == Lease(3, 1 << 52)


def test_lease_signature_is_ignored_without_key() -> None:
    assert read("3:7:", key=None) == read(GOOD, key=None) == Lease(3, 7)
    assert read("nonsense", key=None) is None
    assert read(key=None) is None


def test_without_a_lease_it_is_missing() -> None:
    with pytest.raises(LeaseMissing):
        read()


def _flip(text: str) -> str:
    return text[:-1] + ("0" if text[-1] != "0" else "1")


GOOD = token("w", 3, 7)
MAC = GOOD.rpartition(":")[2]


@pytest.mark.parametrize(
    "tokens",
    [
        [""],
        ["3:7"],
        ["3:7:"],
        [_flip(GOOD)],
        [f"2:7:{MAC}"],
        [f"3:8:{MAC}"],
        [f"03:7:{MAC}"],
        [f"-3:7:{MAC}"],
        [f"3:{'9' * 5000}:{MAC}"],
        [f"\u0663:7:{MAC}"],
        [GOOD.upper().replace("3:7", "3:7 ")],
        [GOOD + "\n"],
        [GOOD.encode()],
        [GOOD, GOOD],
        [token("another", 3, 7)],
        [token("w", 3, 7, b"another key, long")],
        [f"3:7:{lease_mac(KEY, 'another', 'w', 3, 7)}"],
    ],
)
def test_anything_else_is_invalid(tokens: list[str | bytes]) -> None:
    with pytest.raises(LeaseInvalid):
        read(*tokens)


@dataclass
class Keyed:
    """A worker with a key, and what its dispatcher would do."""

    worker_id: str
    channel: grpc.aio.Channel
    epoch: int = 0

    def lease(self, slot: int, key: bytes = KEY) -> str:
        self.epoch += 1
        return token(self.worker_id, slot, self.epoch, key)

    def caller(self, lease: str | None, session_id: str | None = None) -> Caller:
        return Caller(self.channel, session_id, *([(METADATA_LEASE, lease)] if lease is not None else []))

    async def refusal(self, lease: str | None, session_id: str | None = None) -> Ending:
        caller = self.caller(lease, session_id)
        caller.start(Stream.GENERATE)
        return await caller.end()


@asynccontextmanager
async def keyed(engine: ScriptedEngine) -> AsyncIterator[Keyed]:
    async with running_worker(engine, worker_key=KEY) as worker, channel_to(worker.address) as channel:
        yield Keyed((await get_info(worker.address)).worker_id, channel)


async def test_no_and_forged_leases_are_refused_and_cost_no_slot() -> None:
    async with keyed(ScriptedEngine(slots=1)) as worker:
        ending = await worker.refusal(None)
        assert (ending.code, ending.reason) == (Code.UNAUTHENTICATED, Reason.LEASE_MISSING)
        ending = await worker.refusal(worker.lease(0, b"another key, long"))
        assert (ending.code, ending.reason) == (Code.UNAUTHENTICATED, Reason.LEASE_INVALID)
        await worker.caller(worker.lease(0)).ready()


async def test_a_lease_serves_one_session_and_is_stale_then() -> None:
    async with keyed(ScriptedEngine()) as worker:
        lease = worker.lease(0)
        caller = await worker.caller(lease).ready()
        await caller.unit(1)
        assert (await caller.leave()).code is Code.OK
        ending = await worker.refusal(lease)
        assert (ending.code, ending.reason) == (Code.PERMISSION_DENIED, Reason.STALE_LEASE)
        assert ending.metadata == {"slot": "0", "epoch": "1", "lowest_epoch": "2"}


async def test_a_slot_that_is_being_cleaned_takes_the_next_lease_when_it_is_clean() -> None:
    engine = ScriptedEngine(slots=1, slow_cleanup=True)
    async with keyed(engine) as worker:
        owner = await worker.caller(worker.lease(0)).ready()
        owner.calls[Stream.PREFILL].cancel()
        await until(lambda: engine.session.is_closing)
        lease = worker.lease(0)
        assert (await worker.refusal(lease)).reason == Reason.NO_FREE_SLOT
        engine.slow_cleanup = False
        engine.session.finish_cleanup()
        await worker.caller(lease).ready()


async def test_a_stolen_session_name_without_its_lease_is_refused() -> None:
    async with keyed(ScriptedEngine()) as worker:
        lease = worker.lease(0)
        owner = worker.caller(lease, "mine")
        await owner.open(Stream.PREFILL)
        assert (await worker.refusal(worker.lease(1), "mine")).reason == Reason.LEASE_INVALID
        assert (await worker.refusal(None, "mine")).reason == Reason.LEASE_MISSING
        await owner.open(Stream.GENERATE, Stream.FINALIZE)
        await owner.configure()


async def test_an_outdated_lease_is_stale_and_its_successor_not_disturbed() -> None:
    async with keyed(ScriptedEngine()) as worker:
        old, new = worker.lease(0), worker.lease(0)
        owner = await worker.caller(new).ready()
        assert (await worker.refusal(old)).reason == Reason.STALE_LEASE
        await owner.unit(1)


async def test_an_occupied_slot_is_refused_and_its_owner_not_disturbed() -> None:
    """Also while another slot is free: the lease names the one."""
    async with keyed(ScriptedEngine(slots=2)) as worker:
        owner = await worker.caller(worker.lease(0)).ready()
        ending = await worker.refusal(worker.lease(0))
        assert (ending.code, ending.reason) == (Code.RESOURCE_EXHAUSTED, Reason.NO_FREE_SLOT)
        assert ending.retry_after is not None
        await owner.unit(1)


async def test_a_stolen_lease_under_another_name_is_refused() -> None:
    async with keyed(ScriptedEngine()) as worker:
        lease = worker.lease(0)
        owner = await worker.caller(lease).open()
        assert (await worker.refusal(lease)).reason == Reason.STALE_LEASE
        await owner.configure()
