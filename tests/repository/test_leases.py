"""The dispatcher signs what the worker reads: the two halves of a lease together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.contract import METADATA_LEASE, Reason
from inference_service.errors import LeaseInvalid, StaleLease
from inference_service.session.leases import Lease, LeaseReader, LeaseRules
from inference_service.session.slots import SlotTable
from tests.ws_adapter.support.backend import ListedRegistry
from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.dispatch import base
from ws_adapter.dispatch.inprocess import InProcessDispatcher, QueueRules
from ws_adapter.process.errors import AttachFailed
from ws_adapter.protocol.core.kind import Kind

KEY = b"a key of 16 byte"
LEASED = LeaseRules(KEY, binding=True)


def new_dispatcher(
    key: bytes | None = KEY, clock: ManualClock | None = None, a: int = 2
) -> InProcessDispatcher:
    """One in front of a worker `a` with so many slots."""
    return InProcessDispatcher(ListedRegistry(a=a), clock or ManualClock(), QueueRules(), key)


@asynccontextmanager
async def granted(dispatcher: InProcessDispatcher) -> AsyncIterator[base.Lease]:
    """A lease, while it is held."""
    async with dispatcher.acquire(Kind.AUDIO_DUPLEX, 0.0) as ticket:
        async for update in ticket.updates():
            if isinstance(update, base.Lease):
                yield update


def read(lease: base.Lease, key: bytes | None = KEY) -> Lease | None:
    rules = LeaseRules(key, binding=key is not None)
    return LeaseReader(rules, lease.worker_id).read([(METADATA_LEASE, lease.token)])


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_worker_reads_the_lease_that_was_made_for_it(key: bytes | None) -> None:
    async with granted(new_dispatcher(key=key)) as lease:
        found = read(lease, key=key)
        assert found is not None
        assert (found.slot, found.epoch) == (lease.slot, lease.epoch)
        if key is None:
            with pytest.raises(LeaseInvalid):
                read(lease)


async def test_leases_of_a_slot_follow_one_another() -> None:
    dispatcher, slots = new_dispatcher(a=1), SlotTable(1, LEASED)
    for _ in range(3):
        await use(dispatcher, slots)


async def test_a_dispatcher_that_starts_again_goes_on_above_the_epochs_of_the_one_before() -> None:
    clock = ManualClock()
    async with granted(new_dispatcher(clock=clock)) as before:
        pass
    await clock.advance(1.0)
    async with granted(new_dispatcher(clock=clock)) as after:
        assert after.epoch > before.epoch


async def use(dispatcher: InProcessDispatcher, slots: SlotTable) -> None:
    """Takes a lease to its slot and leaves it clean."""
    async with granted(dispatcher) as lease:
        slot = slots.acquire(read(lease))
        slots.clean(slot)
        slots.free(slot)


async def attach(dispatcher: InProcessDispatcher, slots: SlotTable) -> None:
    """Attach with a lease; raise as the adapter does if it is refused."""
    async with granted(dispatcher) as lease:
        try:
            slots.acquire(read(lease))
        except LeaseInvalid:
            raise AttachFailed(Reason.LEASE_INVALID) from None
        except StaleLease:
            raise AttachFailed(Reason.STALE_LEASE) from None


async def test_a_refused_lease_is_logged_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AttachFailed):
        await attach(new_dispatcher(key=None), SlotTable(2, LEASED))
    assert "--worker-key-file" in caplog.text


async def test_a_wall_clock_that_went_back_between_two_starts_costs_one_lease() -> None:
    slots, later = SlotTable(1, LEASED), ManualClock()
    await later.advance(3600.0)
    await use(new_dispatcher(clock=later, a=1), slots)
    dispatcher = new_dispatcher(a=1)
    with pytest.raises(AttachFailed):
        await attach(dispatcher, slots)
    async with granted(dispatcher) as fresh:
        assert slots.acquire(read(fresh)) == 0


async def test_slots_take_turns() -> None:
    """A slot that cannot be had is not the only one that is tried."""
    dispatcher, slots = new_dispatcher(a=3), set()
    for _ in range(3):
        async with granted(dispatcher) as lease:
            slots.add(lease.slot)
    assert slots == {0, 1, 2}
