"""What every dispatcher promises, whatever stands behind it."""

import asyncio
import random
from contextlib import suppress

import pytest

from antiphon.contract import Reason
from antiphon_service.pools import pool_name
from tests.support.redis_server import RedisServer
from tests.support.redis_users import RedisUsers
from tests.ws_adapter.support.backend import Build, Callers, in_process, on_redis, stage, until, until_told
from tests.ws_adapter.support.remote_backend import remote
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


def _built(request: pytest.FixtureRequest) -> Build:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return on_redis(server)
    if request.param == "redis_users":
        users: RedisUsers = request.getfixturevalue("redis_users")
        return on_redis(users.server, users)
    return {"in_process": in_process, "remote": remote}[request.param]


@pytest.fixture(params=["in_process", "redis", "redis_users", "remote"])
def build(request: pytest.FixtureRequest) -> Build:
    """Every back end."""
    return _built(request)


@pytest.fixture(params=["in_process", "redis", "redis_users"])
def of_adapter(request: pytest.FixtureRequest) -> Build:
    """Those of an adapter's own sessions, which have labels, come again and know more kinds."""
    return _built(request)


pytestmark = pytest.mark.usefixtures("no_leaked_tasks")


async def length(callers: Callers) -> int:
    return (await callers.backend.dispatcher.status()).queue_length


# ----------------------------------------------------------------------------------- slots and order


async def test_free_slot_is_granted(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 1)

        caller = await callers.enter()
        await until(lambda: caller.lease)

        lease = caller.lease
        assert lease is not None
        assert (lease.target, lease.worker_id, lease.slot) == ("a:1", "a", 0)
        assert lease.token.startswith(f"0:{lease.epoch}:")
        assert lease.pool == pool_name("antiphon-mini", Mode)


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
            count = len(callers.granted)
            await dice.choice(holding).leave() if holding else None
            await until(lambda count=count: len(callers.granted) > count)

        epochs = [caller.lease.epoch for caller in callers.granted if caller.lease]
        assert len(set(epochs)) == len(epochs)
        assert [c.lease.epoch for c in everybody if c.lease] == sorted(epochs)


async def test_slots_go_out_in_order_of_arrival(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 1)
        everybody = [await callers.enter() for _ in range(5)]
        for index, caller in enumerate(everybody):
            await until(lambda caller=caller: caller.lease)
            assert callers.granted == everybody[: index + 1]
            await caller.leave()


async def test_slot_is_nobodys_before_it_is_clean(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 1)
        first = await callers.enter()
        await until(lambda: first.lease)
        second = await callers.enter()
        shown = len(second.places)
        await until(lambda: len(second.places) > shown + 3)
        assert second.lease is None

        await first.leave()

        await until(lambda: second.lease)


async def test_caller_who_hangs_up_with_a_grant_in_its_hands_gives_it_back(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 1)

        for _ in range(5):
            async with callers.backend.dispatcher.acquire(Kind.CHAT, 0.0) as ticket:
                async for _ in ticket.updates():
                    pass  # it never comes to its worker

        caller = await callers.enter()
        await until(lambda: caller.lease)


async def test_caller_who_is_cancelled_at_any_moment_leaves_nothing(build: Build) -> None:
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

        caller = await callers.enter()
        await until(lambda: caller.lease)
        await caller.leave()
        await until_told(lambda: _is_empty(callers))


async def _is_empty(callers: Callers) -> bool:
    return await length(callers) == 0


async def test_who_lost_its_worker_goes_to_the_head(of_adapter: Build) -> None:
    async with stage(of_adapter) as callers:
        await callers.backend.open("a", 1)
        first = await callers.enter()
        await until(lambda: first.lease)
        second = await callers.enter()
        told = [place.position for place in second.places]

        again = await callers.enter(again=POOL)
        await first.leave()

        await until(lambda: again.lease)
        assert second.lease is None
        assert [place.position for place in second.places] >= told
        assert {place.position for place in second.places} == {1}


async def test_worker_that_refused_a_session_leaves_the_next_one_its_place(of_adapter: Build) -> None:
    async with stage(of_adapter) as callers:
        await callers.backend.open("a", 1)
        with suppress(AttachFailed):
            async with callers.backend.dispatcher.acquire(Kind.CHAT, 0.0) as ticket:
                async for _ in ticket.updates():
                    pass
                raise AttachFailed(Reason.WORKER_LOST)

        again = await callers.enter(again=POOL)

        await until(lambda: again.lease)


async def test_worker_that_drains_gets_nobody_else(build: Build) -> None:
    async with stage(build, no_worker_grace_s=1e6) as callers:
        await callers.backend.open("a", 2)
        await callers.backend.open("b", 1)
        held = await callers.enter()
        await until(lambda: held.lease)

        await callers.backend.drain("a")
        others = [await callers.enter() for _ in range(3)]

        await until(lambda: any(caller.lease for caller in others))
        await asyncio.sleep(0)
        at = {caller.lease.worker_id for caller in others if caller.lease}
        assert at == {"b"}


async def test_worker_that_comes_serves_those_who_wait(build: Build) -> None:
    async with stage(build, no_worker_grace_s=1e6) as callers:
        waiting = [await callers.enter() for _ in range(2)]
        assert [caller.lease for caller in waiting] == [None, None]

        await callers.backend.open("a", 2)

        await until(lambda: all(caller.lease for caller in waiting))


async def test_worker_that_goes_with_its_sessions_takes_nobody_elses_slot(build: Build) -> None:
    async with stage(build, no_worker_grace_s=1e6) as callers:
        await callers.backend.open("a", 1)
        first = await callers.enter()
        await until(lambda: first.lease)
        second = await callers.enter()

        await callers.backend.shut("a")
        await callers.backend.open("b", 1)

        await until(lambda: second.lease)
        assert second.lease is not None
        assert second.lease.worker_id == "b"


# ------------------------------------------------------------------------------------- the wait


async def test_positions_never_grow_and_the_wait_ends_in_one_way(of_adapter: Build) -> None:
    async with stage(of_adapter) as callers:
        await callers.backend.open("a", 1)
        holder = await callers.enter()
        await until(lambda: holder.lease)
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


async def test_full_queue_refuses_newcomers_alone_and_keeps_nothing_of_them(of_adapter: Build) -> None:
    async with stage(of_adapter, capacity=2) as callers:
        await callers.backend.open("a", 1)
        holder = await callers.enter()
        await until(lambda: holder.lease)
        waiting = [await callers.enter() for _ in range(2)]

        late = await callers.enter()
        again = await callers.enter(again=POOL)

        assert isinstance(late.error, QueueFull)
        assert again.error is None
        await waiting[1].vanish()
        await again.vanish()
        await until_told(lambda: _has_length(callers, 1))


async def _has_length(callers: Callers, expected: int) -> bool:
    return await length(callers) == expected


async def test_nobody_finds_the_queue_full_while_a_slot_is_free(build: Build) -> None:
    async with stage(build, capacity=1) as callers:
        await callers.backend.open("a", 5)

        everybody = [await callers.enter() for _ in range(5)]

        await until(lambda: all(caller.lease for caller in everybody))
        assert [caller.error for caller in everybody] == [None] * 5


async def test_longest_wait_ends_it(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("a", 1)
        holder = await callers.enter()
        await until(lambda: holder.lease)

        caller = await callers.enter(max_wait=0.3)

        await until(lambda: caller.error)
        assert isinstance(caller.error, WaitExpired)
        await until_told(lambda: _is_empty(callers))


async def test_place_can_be_given_up_by_whoever_knows_the_ticket_and_only_while_it_waits(
    of_adapter: Build,
) -> None:
    async with stage(of_adapter) as callers:
        await callers.backend.open("a", 1)
        holder = await callers.enter()
        await until(lambda: holder.lease)
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
        await callers.backend.open("a", 1)
        holder = await callers.enter()
        await until(lambda: holder.lease)

        waiting = [await callers.enter() for _ in range(3)]

        def told() -> list[float]:
            return [caller.places[-1].estimated_wait_s for caller in waiting]

        await until(lambda: 5 <= told()[0] < told()[1] < told()[2])
        assert all(caller.places[-1].estimate_is_guess for caller in waiting)


async def test_view_shows_who_waits_and_who_has_a_slot(of_adapter: Build) -> None:
    async with stage(of_adapter, capacity=7) as callers:
        await callers.backend.open("a", 1)
        holder = await callers.enter(Kind.TRANSCRIPTION)
        await until(lambda: holder.lease)
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


async def test_slot_is_to_spare_while_it_is_free_and_nobody_waits(of_adapter: Build) -> None:
    async with stage(of_adapter) as callers:
        await callers.backend.open("a", 1)
        dispatcher = callers.backend.dispatcher

        def is_spare() -> bool:
            return dispatcher.has_spare(Kind.TRANSCRIPTION, Need(Mode.TRANSCRIPTION))

        await until(is_spare)
        holder = await callers.enter()
        await until(lambda: holder.lease)
        await until(lambda: not is_spare())
        second = await callers.enter()
        await holder.leave()
        await until(lambda: second.lease)
        await until(lambda: not is_spare())
        await second.leave()
        await until(is_spare)


# -------------------------------------------------------------------------------------- the pools


async def test_no_session_gets_a_worker_that_cannot_serve_it(of_adapter: Build) -> None:
    async with stage(of_adapter) as callers:
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
            caller = await callers.enter(kind, need=need)
            await until(lambda caller=caller: caller.lease)
            assert caller.lease is not None
            assert caller.lease.worker_id in allowed
            await caller.leave()


async def test_queue_of_one_pool_holds_up_no_other(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("mini", 1)
        await callers.backend.open("text", 1, "words", TEXT)
        spoken = [await callers.enter(Kind.AUDIO_DUPLEX) for _ in range(3)]
        await until(lambda: spoken[0].lease)

        written = await callers.enter(need=Need(model="words"))

        await until(lambda: written.lease)
        assert [caller.lease for caller in spoken[1:]] == [None, None]


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

        async def is_known() -> bool:
            return await length(callers) == 3

        await until_told(is_known)
        either = await callers.enter()
        await written.leave()

        await until(lambda: either.lease)
        assert either.lease is not None
        assert either.lease.worker_id == "text"


async def test_ticket_that_nobody_can_serve_is_told_so_and_others_are_served(build: Build) -> None:
    async with stage(build, no_worker_grace_s=0.5) as callers:
        await callers.backend.open("text", 1, "words", TEXT)
        await callers.backend.open("mini", 1)
        spoken = await callers.enter(Kind.AUDIO_DUPLEX)
        await until(lambda: spoken.lease)
        await callers.backend.shut("mini")

        unserved = await callers.enter(Kind.AUDIO_DUPLEX)
        written = await callers.enter()

        await until(lambda: written.lease)
        await until(lambda: unserved.error)
        assert isinstance(unserved.error, DispatcherUnavailable)


async def test_what_no_worker_ever_served_is_refused_by_whichever_there_is(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("text", 1, "words", TEXT)

        caller = await callers.enter(Kind.AUDIO_DUPLEX)

        await until(lambda: caller.lease)


async def test_ticket_that_lost_a_worker_of_one_pool_stands_last_in_another(of_adapter: Build) -> None:
    """The attack: lose a slot where nobody waits, and be the first where others do."""
    async with stage(of_adapter) as callers:
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


async def test_caller_that_may_use_some_models_alone_gets_no_other(of_adapter: Build) -> None:
    async with stage(of_adapter, no_worker_grace_s=0.5) as callers:
        await callers.backend.open("mini", 1)
        await callers.backend.open("text", 1, "words", TEXT)
        words = Need(models=frozenset({"words"}))
        first, second = await callers.enter(need=words), await callers.enter(need=words)
        await until(lambda: first.lease)
        assert first.lease is not None
        assert first.lease.worker_id == "text"
        assert second.lease is None

        nothing = await callers.enter(need=Need(models=frozenset({"others"})))
        await until(lambda: nothing.error)
        assert isinstance(nothing.error, DispatcherUnavailable)


async def test_ticket_whose_pool_has_gone_moves_to_one_that_can_serve_it(build: Build) -> None:
    async with stage(build, no_worker_grace_s=1e6) as callers:
        await callers.backend.open("text", 1, "words", TEXT)
        holder = await callers.enter()
        await until(lambda: holder.lease)
        waiting = await callers.enter()

        await callers.backend.open("mini", 1)
        await callers.backend.shut("text")

        await until(lambda: waiting.lease)
        assert waiting.lease is not None
        assert waiting.lease.worker_id == "mini"


async def test_without_any_worker_callers_wait_a_while_and_are_told(build: Build) -> None:
    async with stage(build, no_worker_grace_s=0.5) as callers:
        waiting = await callers.enter()

        await until(lambda: waiting.error)

        assert isinstance(waiting.error, DispatcherUnavailable)
        late = await callers.enter()
        assert isinstance(late.error, DispatcherUnavailable)
        assert not any(isinstance(update, Lease) for update in late.places)


async def test_holder_gets_all_slots_of_a_pool_but_one(of_adapter: Build) -> None:
    async with stage(of_adapter) as callers:
        await callers.backend.open("a", 3)
        share = Share("key:one")
        own = [await callers.enter(share=share) for _ in range(2)]
        await until(lambda: all(caller.lease for caller in own))

        refused = await callers.enter(share=share)
        other = await callers.enter(share=Share("key:other"))

        assert isinstance(refused.error, SlotLimit)
        await until(lambda: other.lease)
        await own[0].leave()
        await until_told(lambda: _gets_in(callers, share))


async def _gets_in(callers: Callers, share: Share) -> bool:
    caller = await callers.enter(share=share)
    await caller.leave()
    return caller.error is None


async def test_holder_limit_counts_those_who_wait(of_adapter: Build) -> None:
    async with stage(of_adapter) as callers:
        await callers.backend.open("a", 2)
        others = [await callers.enter() for _ in range(2)]
        await until(lambda: all(caller.lease for caller in others))
        waits = await callers.enter(share=Share("key:one"))
        assert waits.places

        refused = await callers.enter(share=Share("key:one"))

        assert isinstance(refused.error, SlotLimit)
        assert "at most 1" in str(refused.error)


async def test_holder_limit_of_each_pool_is_its_own(of_adapter: Build) -> None:
    async with stage(of_adapter) as callers:
        for model in ("one", "other"):
            await callers.backend.open(model, 2, model=model)
        share = Share("key:one")

        got = [await callers.enter(need=Need(model=model), share=share) for model in ("one", "other")]

        await until(lambda: all(caller.lease for caller in got))
