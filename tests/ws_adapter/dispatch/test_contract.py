"""Tests of the contract that every dispatcher keeps, on every back end."""

import asyncio
import random
from contextlib import suppress

import pytest

from antiphon.contract import Reason
from antiphon_service.pools import pool_name
from tests.ws_adapter.support.backend import Build, Callers, stage, until_told
from tests.ws_adapter.support.stage import until
from ws_adapter.dispatch.base import Lease, Need, Share
from ws_adapter.process.errors import (
    AttachFailed,
    DispatcherUnavailable,
    QueueFull,
    SlotLimit,
    WaitCancelled,
    WaitExpired,
)
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.kind import Kind

POOL = pool_name("antiphon-mini", Mode)
TEXT = {Mode.CHAT}
EARS = {Mode.TRANSCRIPTION}


pytestmark = pytest.mark.usefixtures("no_leaked_tasks")


async def until_length(callers: Callers, expected: int) -> None:
    async def is_so() -> bool:
        return (await callers.backend.dispatcher.status()).queue_length == expected

    await until_told(is_so)


async def test_each_slot_has_one_session_at_a_time_and_epochs_rise(build: Build) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    async with stage(build) as callers:
        await callers.backend.open("a", 3)
        await callers.backend.open("b", 1)
        everybody = [await callers.enter() for _ in range(24)]
        while len(callers.granted) < len(everybody):
            holding = [c for c in callers.granted if not c.task.done()]
            leases = [c.lease for c in holding if c.lease is not None]
            assert len({(lease.worker_id, lease.slot) for lease in leases}) == len(leases) <= 4
            for lease in leases:
                assert (lease.target, lease.pool) == (f"{lease.worker_id}:1", POOL)
                assert lease.token.startswith(f"{lease.slot}:{lease.epoch}:")
            count = len(callers.granted)
            await dice.choice(holding).leave() if holding else None
            await until(lambda count=count: len(callers.granted) > count)

        epochs = [caller.lease.epoch for caller in callers.granted if caller.lease]
        assert len(set(epochs)) == len(epochs)
        assert [c.lease.epoch for c in everybody if c.lease] == sorted(epochs)


async def test_caller_disconnecting_with_unused_grant_returns_slot(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 1)
        for _ in range(5):
            async with callers.backend.dispatcher.acquire(Kind.CHAT, 0.0) as ticket:
                async for _ in ticket.updates():
                    pass  # it never comes to its worker
        await callers.served()


async def test_caller_cancelled_at_any_step_leaves_no_ticket_or_lease(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 1)

        async def come(dispatcher_turns: int) -> None:
            async with callers.backend.dispatcher.acquire(Kind.CHAT, 0.0) as ticket:
                async for _ in ticket.updates():
                    await asyncio.sleep(0)

        for turns in range(12):
            task = asyncio.create_task(come(turns))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        caller = await callers.served()
        await caller.leave()
        await until_length(callers, 0)


async def test_caller_after_worker_loss_goes_to_queue_head(build: Build) -> None:
    async with stage(build) as callers:
        first = await callers.occupy()
        second = await callers.enter()
        told = [place.position for place in second.places]
        again = await callers.enter(again=POOL)
        await first.leave()
        await until(lambda: again.lease)
        assert second.lease is None
        assert [place.position for place in second.places] >= told
        assert {place.position for place in second.places} == {1}


async def test_worker_that_refused_a_session_leaves_the_next_one_its_place(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 1)
        with suppress(AttachFailed):
            async with callers.backend.dispatcher.acquire(Kind.CHAT, 0.0) as ticket:
                async for _ in ticket.updates():
                    pass
                raise AttachFailed(Reason.WORKER_LOST)
        await callers.served(again=POOL)


async def test_draining_worker_gets_no_new_callers(build: Build) -> None:
    async with stage(build, no_worker_grace_s=1e6) as callers:
        await callers.backend.open("a", 2)
        await callers.backend.open("b", 1)
        await callers.served()
        await callers.backend.drain("a")
        others = [await callers.enter() for _ in range(3)]
        await until(lambda: any(caller.lease for caller in others))
        await asyncio.sleep(0)
        at = {caller.lease.worker_id for caller in others if caller.lease}
        assert at == {"b"}


async def test_new_worker_serves_waiting_callers(build: Build) -> None:
    async with stage(build, no_worker_grace_s=1e6) as callers:
        waiting = [await callers.enter() for _ in range(2)]
        assert [caller.lease for caller in waiting] == [None, None]
        await callers.backend.open("a", 2)
        await until(lambda: all(caller.lease for caller in waiting))


async def test_lost_worker_with_sessions_blocks_no_waiting_caller(build: Build) -> None:
    async with stage(build, no_worker_grace_s=1e6) as callers:
        await callers.occupy()
        second = await callers.enter()
        await callers.backend.shut("a")
        await callers.backend.open("b", 1)
        await until(lambda: second.lease)
        assert second.worker_id == "b"


async def test_positions_never_grow_and_the_wait_ends_in_one_way(build: Build) -> None:
    async with stage(build) as callers:
        await callers.occupy()
        waiting = [await callers.enter() for _ in range(4)]
        assert [caller.places[0].position for caller in waiting] == [1, 2, 3, 4]
        await waiting[1].vanish()
        await until(lambda: waiting[3].places[-1].position == 3)
        await callers.enter(again=POOL)
        await waiting[0].vanish()
        await until(lambda: waiting[3].places[-1].queue_length == 3)
        for caller in waiting:
            positions = [place.position for place in caller.places]
            assert positions == sorted(positions, reverse=True)
            assert caller.lease is None
            assert caller.error is None


async def test_full_queue_rejects_only_new_callers_and_keeps_no_ticket(build: Build) -> None:
    async with stage(build, capacity=2) as callers:
        await callers.occupy()
        waiting = [await callers.enter() for _ in range(2)]
        late = await callers.enter()
        again = await callers.enter(again=POOL)
        assert isinstance(late.error, QueueFull)
        assert again.error is None
        await waiting[1].vanish()
        await again.vanish()
        await until_length(callers, 1)


async def test_longest_wait_ends_it(build: Build) -> None:
    async with stage(build) as callers:
        await callers.occupy()
        caller = await callers.enter(max_wait=0.3)
        await until(lambda: caller.error)
        assert isinstance(caller.error, WaitExpired)
        await until_length(callers, 0)


async def test_waiting_ticket_can_be_cancelled_by_its_id(
    build: Build,
) -> None:
    async with stage(build) as callers:
        await callers.occupy()
        waiting = await callers.enter(label="kitchen")
        dispatcher = callers.backend.dispatcher
        found = await dispatcher.find(waiting.ticket_id)
        assert found is not None
        assert (found.label, found.kind, found.place.position) == ("kitchen", Kind.CHAT, 1)
        assert await dispatcher.cancel(waiting.ticket_id)
        await until(lambda: waiting.error)
        assert isinstance(waiting.error, WaitCancelled)
        assert not await dispatcher.cancel(waiting.ticket_id)
        assert await dispatcher.find(waiting.ticket_id) is None
        assert not await dispatcher.cancel("ticket_of_nobody")


async def test_estimate_grows_with_the_place_and_says_that_it_is_a_guess(build: Build) -> None:
    """Nothing is known of sessions: each is taken to last as long again as it has, at least 5 s."""
    async with stage(build) as callers:
        await callers.occupy()
        waiting = [await callers.enter() for _ in range(3)]

        def told() -> list[float]:
            return [caller.places[-1].estimated_wait_s for caller in waiting]

        await until(lambda: 5 <= told()[0] < told()[1] < told()[2])
        assert all(caller.places[-1].estimate_is_guess for caller in waiting)


async def test_view_lists_waiting_callers_and_running_sessions(build: Build) -> None:
    async with stage(build, capacity=7) as callers:
        await callers.backend.open("a", 1)
        await callers.served(Kind.TRANSCRIPTION)
        first, second = await callers.enter(label="one"), await callers.enter(label="two")
        dispatcher = callers.backend.dispatcher

        async def is_shown() -> bool:
            shown, status = await dispatcher.view(), await dispatcher.status()
            return len(shown.running) == 1 and status.queue_length == 2 and status.free_slots == 0

        await until_told(is_shown)
        view, status = await dispatcher.view(), await dispatcher.status()
        assert [waiting.label for waiting in view.waiting] == ["one", "two"]
        assert [waiting.place.ticket_id for waiting in view.waiting] == [first.ticket_id, second.ticket_id]
        assert [(run.worker_id, run.slot, run.kind) for run in view.running] == [("a", 0, Kind.TRANSCRIPTION)]
        assert (view.capacity, status.workers, status.slots) == (7, 1, 1)
        assert dispatcher.is_contended(pool_name("antiphon-mini", Mode))
        assert not dispatcher.is_contended("another")


async def test_dispatcher_has_spare_slot_only_if_free_and_queue_is_empty(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 1)
        dispatcher = callers.backend.dispatcher

        def is_spare() -> bool:
            return dispatcher.has_spare(Kind.TRANSCRIPTION, Need(Mode.TRANSCRIPTION))

        await until(is_spare)
        holder = await callers.served()
        await until(lambda: not is_spare())
        second = await callers.enter()
        await holder.leave()
        await until(lambda: second.lease)
        await until(lambda: not is_spare())
        await second.leave()
        await until(is_spare)


async def test_no_session_gets_a_worker_that_cannot_serve_it(build: Build) -> None:
    async with stage(build) as callers:
        backend = callers.backend
        await backend.open("mini", 2)
        await backend.open("text", 2, "words", TEXT)
        await backend.open("ears", 2, "ears", EARS)
        wishes = [
            (Kind.AUDIO_DUPLEX, Need(), {"mini"}),
            (Kind.OMNI_DUPLEX, Need(), {"mini"}),
            (Kind.CHAT, Need(model="words"), {"text"}),
            (Kind.TRANSCRIPTION, Need(model="ears"), {"ears"}),
            (Kind.TRANSCRIPTION, Need(), {"mini", "ears"}),
            (Kind.REALTIME, Need(Mode.AUDIO), {"mini"}),
            (Kind.REALTIME, Need(), {"mini", "text"}),
            (Kind.CHAT, Need(), {"mini", "text"}),
        ]
        for kind, need, allowed in wishes * 2:
            caller = await callers.served(kind, need=need)
            assert caller.worker_id in allowed
            await caller.leave()


async def test_ticket_that_several_pools_could_serve_takes_a_free_slot(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("mini", 1)
        await callers.backend.open("text", 1, "words", TEXT)
        both = [await callers.enter() for _ in range(2)]
        await until(lambda: all(caller.lease for caller in both))
        assert {caller.lease.worker_id for caller in both if caller.lease} == {"mini", "text"}


async def test_without_a_free_slot_it_stands_where_the_wait_is_shortest(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("mini", 1)
        await callers.backend.open("text", 1, "words", TEXT)
        spoken = [await callers.enter(Kind.AUDIO_DUPLEX) for _ in range(4)]
        written = await callers.enter(need=Need(model="words"))
        await until(lambda: spoken[0].lease and written.lease)
        await until_length(callers, 3)
        either = await callers.enter()
        await written.leave()
        await until(lambda: either.lease)
        assert either.worker_id == "text"


async def test_unservable_ticket_is_rejected_and_others_are_served(build: Build) -> None:
    async with stage(build, no_worker_grace_s=0.5) as callers:
        await callers.backend.open("text", 1, "words", TEXT)
        await callers.backend.open("mini", 1)
        await callers.served(Kind.AUDIO_DUPLEX)
        await callers.backend.shut("mini")
        unserved = await callers.enter(Kind.AUDIO_DUPLEX)
        await callers.served()
        await until(lambda: unserved.error)
        assert isinstance(unserved.error, DispatcherUnavailable)


async def test_kind_never_served_is_granted_to_any_worker(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("text", 1, "words", TEXT)
        await callers.served(Kind.AUDIO_DUPLEX)


async def test_ticket_that_lost_a_worker_of_one_pool_stands_last_in_another(build: Build) -> None:
    """The attack: lose a slot where nobody waits, and be the first where others do."""
    async with stage(build) as callers:
        await callers.backend.open("mini", 1)
        await callers.backend.open("text", 1, "words", TEXT)
        spoken = [await callers.enter(Kind.AUDIO_DUPLEX) for _ in range(3)]
        await until(lambda: spoken[0].lease)
        of_words, of_mini = pool_name("words", TEXT), pool_name("antiphon-mini", Mode)
        moved = await callers.enter(need=Need(model="antiphon-mini"), again=of_words)
        lost = await callers.enter(need=Need(model="antiphon-mini"), again=of_mini)
        for leaving, expected in ((spoken[0], lost), (lost, spoken[1]), (spoken[1], spoken[2])):
            await leaving.leave()
            await until(lambda expected=expected: expected.lease)
        assert moved.lease is None


async def test_caller_that_may_use_some_models_alone_gets_no_other(build: Build) -> None:
    async with stage(build, no_worker_grace_s=0.5) as callers:
        await callers.backend.open("mini", 1)
        await callers.backend.open("text", 1, "words", TEXT)
        words = Need(models=frozenset({"words"}))
        first, second = await callers.enter(need=words), await callers.enter(need=words)
        await until(lambda: first.lease)
        assert first.worker_id == "text"
        assert second.lease is None
        nothing = await callers.enter(need=Need(models=frozenset({"others"})))
        await until(lambda: nothing.error)
        assert isinstance(nothing.error, DispatcherUnavailable)


async def test_ticket_of_removed_pool_moves_to_pool_with_capable_worker(build: Build) -> None:
    async with stage(build, no_worker_grace_s=1e6) as callers:
        await callers.backend.open("text", 1, "words", TEXT)
        await callers.served()
        waiting = await callers.enter()
        await callers.backend.open("mini", 1)
        await callers.backend.shut("text")
        await until(lambda: waiting.lease)
        assert waiting.worker_id == "mini"


async def test_callers_without_any_worker_are_rejected_after_grace(build: Build) -> None:
    async with stage(build, no_worker_grace_s=0.5) as callers:
        waiting = await callers.enter()
        await until(lambda: waiting.error)
        assert isinstance(waiting.error, DispatcherUnavailable)
        late = await callers.enter()
        assert isinstance(late.error, DispatcherUnavailable)
        assert not any(isinstance(update, Lease) for update in late.places)


async def test_holder_gets_all_slots_of_each_pool_but_one(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 3)
        await callers.backend.open("o", 2, model="other")
        share, need = Share("key:one"), Need(model="antiphon-mini")
        own = [await callers.served(need=need, share=share) for _ in range(2)]

        refused = await callers.enter(need=need, share=share)
        await callers.served(need=need, share=Share("key:other"))
        waits = [await callers.enter(need=need, share=Share("key:third")) for _ in range(3)]

        assert isinstance(refused.error, SlotLimit)
        assert waits[0].places
        assert isinstance(waits[2].error, SlotLimit), "those who wait count"
        assert "at most 2" in str(waits[2].error)
        await callers.served(need=Need(model="other"), share=share)
        await waits[0].vanish()
        await waits[1].vanish()
        await own[0].leave()

        async def gets_in() -> bool:
            caller = await callers.enter(need=need, share=share)
            await caller.leave()
            return caller.error is None

        await until_told(gets_in)
