"""The queue in front of the slots."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.contract import Reason
from antiphon_service.pools import pool_name
from tests.ws_adapter.support.backend import Caller, Callers, InProcessBackend, ListedRegistry
from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.dispatch.rules import QueueRules
from ws_adapter.process.errors import AttachFailed, DispatcherUnavailable, WaitCancelled, WaitExpired
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.kind import Kind

POOL = pool_name("antiphon-mini", Mode)


class Queue(Callers):
    """The dispatcher of one adapter on a clock that the test turns, and its callers."""

    def __init__(self, registry: ListedRegistry, **rules: Any) -> None:
        self.registry = registry
        self.clock = ManualClock()
        backend = InProcessBackend(QueueRules(**rules), registry, self.clock)
        self.dispatcher = backend.dispatcher
        super().__init__(backend)

    async def enter(self, kind: Kind = Kind.AUDIO_DUPLEX, **options: Any) -> Caller:
        caller = self.start(kind, **options)
        await settle()
        return caller

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await settle()

    async def leave(self, caller: Caller) -> None:
        caller.leaving.set()
        await settle()

    async def end(self) -> None:
        await super().end()
        await self.dispatcher.close()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def queue(registry: ListedRegistry | None = None, **rules: Any) -> AsyncIterator[Queue]:
    stage = Queue(registry or ListedRegistry(a=1), **rules)
    try:
        yield stage
    finally:
        await stage.end()
        assert (await stage.dispatcher.status()).queue_length == 0
        assert stage.clock.timers == 0


async def test_waiting_callers_get_queue_position_at_once_and_every_three_seconds() -> None:
    async with queue() as stage:
        await stage.enter()
        second, third = await stage.enter(), await stage.enter()
        assert [(p.position, p.queue_length) for p in second.places] == [(1, 1)]
        assert [(p.position, p.queue_length) for p in third.places] == [(2, 2)]
        assert second.places[0].ticket_id.startswith("ticket_")
        await stage.advance(2.9)
        assert len(third.places) == 1
        await stage.advance(0.1)
        assert len(third.places) == 2
        await stage.advance(3.0)
        assert len(third.places) == 3


async def learn(stage: Queue, seconds: float, *kinds: Kind) -> None:
    """Three sessions of each kind, one after another, each as long."""
    for kind in (*kinds, *kinds, *kinds):
        caller = await stage.enter(kind=kind)
        await stage.advance(seconds)
        await stage.leave(caller)


async def test_wait_estimate_without_history_uses_session_ages_and_is_guess() -> None:
    """Of two that run, each is taken to last as long again as it has, and then the next as long as both."""
    async with queue(ListedRegistry(a=2)) as stage:
        await stage.enter()
        await stage.advance(10)
        await stage.enter()
        await stage.advance(7)
        waiting = [await stage.enter() for _ in range(3)]
        told = [(caller.places[0].estimated_wait_s, caller.places[0].estimate_is_guess) for caller in waiting]
        assert told == [(7, True), (17, True), (7 + 2 * 12, True)]


async def test_estimate_is_no_guess_once_three_sessions_of_each_kind_before_it_are_over() -> None:
    async with queue() as stage:
        await learn(stage, 10, Kind.AUDIO_DUPLEX)
        await stage.enter()
        waiting = [await stage.enter(kind=kind) for kind in (Kind.CHAT, Kind.AUDIO_DUPLEX)]
        told = [caller.places[0] for caller in waiting]
        assert told[0].estimated_wait_s == pytest.approx(10)
        assert [place.estimate_is_guess for place in told] == [False, True]


async def test_slot_granted_to_a_caller_that_vanishes_in_the_same_moment_goes_to_the_next() -> None:
    async with queue() as stage:
        first, second, third = [await stage.enter() for _ in range(3)]
        first.leaving.set()
        second.task.cancel()
        await settle()
        assert third.lease is not None


async def test_longest_wait() -> None:
    async with queue() as stage:
        await stage.enter()
        caller = await stage.enter(max_wait=7)
        await stage.advance(6.9)
        assert caller.error is None
        await stage.advance(0.2)
        assert isinstance(caller.error, WaitExpired)


async def test_least_busy_worker_comes_first() -> None:
    async with queue(ListedRegistry(a=1, b=3)) as stage:
        callers = [await stage.enter() for _ in range(6)]
        targets = [caller.lease.worker_id for caller in callers if caller.lease]
        assert targets[:2] == ["b", "b"]
        assert sorted(targets) == ["a", "b", "b", "b"]
        assert callers[0].places == []
        status = await stage.dispatcher.status()
        assert (status.workers, status.slots, status.free_slots, status.queue_length) == (2, 4, 0, 2)
        assert stage.dispatcher.is_contended(POOL)


async def refused(stage: Queue, reason: Reason) -> None:
    """Get a slot whose worker refuses the session."""
    async with stage.dispatcher.acquire(Kind.AUDIO_DUPLEX, 0.0) as ticket:
        async for _ in ticket.updates():
            pass
        raise AttachFailed(reason)


async def test_worker_that_failed_an_attach_is_suspected() -> None:
    async with queue() as stage:
        for reason in (Reason.WORKER_LOST, Reason.NO_FREE_SLOT):
            with pytest.raises(AttachFailed):
                await refused(stage, reason)
        assert stage.registry.suspected == ["a:1"]


async def test_worker_without_free_slot_gets_no_callers_until_reopened() -> None:
    async with queue(ListedRegistry(a=4)) as stage:
        with pytest.raises(AttachFailed):
            await refused(stage, Reason.NO_FREE_SLOT)
        waiting = await stage.enter()
        assert waiting.lease is None
        assert [place.position for place in waiting.places] == [1]
        assert (await stage.dispatcher.status()).free_slots == 0
        stage.registry.reopen("a:1")
        await settle()
        assert waiting.lease is not None


async def test_callers_without_worker_wait_for_grace_then_are_rejected() -> None:
    async with queue(ListedRegistry()) as stage:
        waiting = await stage.enter()
        await stage.advance(9.9)
        assert waiting.error is None
        assert waiting.places[0].estimated_wait_s == 0.0
        await stage.advance(0.2)
        assert isinstance(waiting.error, DispatcherUnavailable)
        assert isinstance((await stage.enter()).error, DispatcherUnavailable)


async def test_worker_in_time_serves_waiting_callers_and_late_worker_new_ones() -> None:
    async with queue(ListedRegistry()) as stage:
        waiting = await stage.enter()
        await stage.advance(9)
        stage.registry.set(a=1)
        await settle()
        assert waiting.lease is not None
        await stage.advance(60)
        assert waiting.error is None
    async with queue(ListedRegistry()) as stage:
        await stage.advance(11)
        stage.registry.set(a=1)
        assert (await stage.enter()).lease is not None


async def test_estimate_counts_each_kind_by_itself() -> None:
    async with queue(ListedRegistry(a=2)) as stage:
        await learn(stage, 90, Kind.OMNI_DUPLEX)
        await learn(stage, 120, Kind.AUDIO_DUPLEX)
        await stage.enter(kind=Kind.OMNI_DUPLEX)
        await stage.enter(kind=Kind.AUDIO_DUPLEX)
        waiting = [
            await stage.enter(kind=kind) for kind in (Kind.OMNI_DUPLEX, Kind.AUDIO_DUPLEX, Kind.AUDIO_DUPLEX)
        ]
        assert [caller.places[0].estimated_wait_s for caller in waiting] == pytest.approx([90, 120, 180])


async def test_wait_estimate_is_capped_by_remaining_limit_of_each_kind() -> None:
    limits = {Kind.AUDIO_DUPLEX: 50.0, Kind.OMNI_DUPLEX: 30.0}
    async with queue(ListedRegistry(a=2), session_limits_s=limits) as stage:
        await learn(stage, 90, Kind.OMNI_DUPLEX, Kind.AUDIO_DUPLEX)
        await stage.enter(kind=Kind.OMNI_DUPLEX)
        await stage.enter(kind=Kind.AUDIO_DUPLEX)
        await stage.advance(10)
        waiting = [await stage.enter(kind=Kind.OMNI_DUPLEX) for _ in range(2)]
        assert [caller.places[0].estimated_wait_s for caller in waiting] == [20, 40]


async def test_ticket_that_has_its_slot_cannot_be_cancelled() -> None:
    """Also in the moment between the grant and its being told."""
    async with queue() as stage:
        first, second = await stage.enter(), await stage.enter()
        ticket_id = second.places[0].ticket_id
        stage.registry.set(a=1, b=1)
        assert not await stage.dispatcher.cancel(ticket_id)
        await settle()
        assert second.lease is not None
        assert second.error is None
        assert first.error is None


async def test_cancelled_ticket_gets_no_slot_that_becomes_free_at_the_same_time() -> None:
    async with queue() as stage:
        first, second, third = [await stage.enter() for _ in range(3)]
        assert first.places == []
        cancelling = stage.dispatcher.cancel(second.places[0].ticket_id)
        first.leaving.set()
        assert await cancelling
        await settle()
        assert isinstance(second.error, WaitCancelled)
        assert second.lease is None
        assert third.lease is not None


async def test_view() -> None:
    async with queue(capacity=7) as stage:
        await stage.enter(kind=Kind.OMNI_DUPLEX, label="running")
        await stage.advance(30)
        await stage.enter(label="waiting")
        await stage.advance(2)
        view = await stage.dispatcher.view()
        assert view.capacity == 7
        [running], [waiting] = view.running, view.waiting
        assert (running.worker_id, running.slot, running.kind) == ("a", 0, Kind.OMNI_DUPLEX)
        assert (running.elapsed_s, running.remaining_s, running.remaining_is_guess) == (32, 32, True)
        assert running.started_at == stage.clock.unix() - 32
        assert (waiting.label, waiting.kind, waiting.waited_s) == ("waiting", Kind.AUDIO_DUPLEX, 2)
        assert waiting.enqueued_at == stage.clock.unix() - 2
        assert (waiting.place.position, waiting.place.estimated_wait_s) == (1, 32)
