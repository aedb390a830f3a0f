"""A canary release: weights divide sessions over the revisions of a model, and nobody jumps the queue."""

from collections import Counter
from dataclasses import replace

import pytest

from antiphon_service.pools import STABLE, pool_name
from tests.ws_adapter.support.backend import Build, Caller, Callers, stage, until_told
from tests.ws_adapter.support.stage import until
from ws_adapter.dispatch.base import Share
from ws_adapter.dispatch.revisions import WeightedRoundRobin, Weights, read_weights
from ws_adapter.process.errors import ConfigurationError, SlotLimit
from ws_adapter.protocol.core.config import Mode

POOL = pool_name("antiphon-mini", Mode)
CANARY = "canary"

pytestmark = pytest.mark.usefixtures("no_leaked_tasks")


def weights(text: str) -> dict[str, Weights]:
    return read_weights([f"antiphon-mini={text}"])


async def told_again(caller: Caller) -> None:
    """The dispatcher has looked at those who wait, more than once."""
    shown = len(caller.places)
    await until(lambda: len(caller.places) > shown + 2)


async def until_slots(callers: Callers, slots: int) -> None:
    """So many are seen, and none of them is free."""

    async def is_so() -> bool:
        status = await callers.backend.dispatcher.status()
        return (status.slots, status.free_slots) == (slots, 0)

    await until_told(is_so)


async def test_sessions_are_divided_by_weight_in_the_same_order_everywhere(build: Build) -> None:
    weighted = weights("stable:8,canary:2")
    async with stage(build, revisions=weighted) as callers:
        await callers.backend.open("s", 40)
        await callers.backend.open("c", 40, revision=CANARY)
        order = [(await callers.served()).worker_id for _ in range(20)]
        turns = WeightedRoundRobin()
        names = {STABLE: "s", CANARY: "c"}
        expected = [names[turns.next(weighted["antiphon-mini"], names)] for _ in range(20)]
        assert order == expected
        assert [Counter(order[start : start + 10]) for start in (0, 10)] == [Counter(s=8, c=2)] * 2


async def test_revision_that_is_full_or_gone_leaves_sessions_to_the_other(build: Build) -> None:
    async with stage(build, revisions=weights("stable:95,canary:5"), no_worker_grace_s=1e6) as callers:
        await callers.backend.open("s", 1)
        await callers.backend.open("c", 2, revision=CANARY)
        assert [(await callers.served()).worker_id for _ in range(3)] == ["s", "c", "c"]
        waiting = await callers.enter()
        await callers.backend.shut("s")
        await callers.all[1].leave()
        await until(lambda: waiting.lease)
        assert waiting.worker_id == "c"


async def test_revision_without_weight_gets_no_session_though_others_are_full(build: Build) -> None:
    async with stage(build, revisions=weights("stable:1,canary:0")) as callers:
        await callers.backend.open("s", 2)
        await callers.backend.open("c", 4, revision=CANARY)
        await callers.backend.open("o", 4, revision="unnamed")
        share = Share("key:one")
        first = await callers.served(share=share)
        # Slots that nobody gets are none of those of which a holder may have all but one.
        assert isinstance((await callers.enter(share=share)).error, SlotLimit)
        second = await callers.served()
        assert {first.worker_id, second.worker_id} == {"s"}
        waiting = await callers.enter()
        await told_again(waiting)
        assert waiting.lease is None
        await until_slots(callers, 2)
        assert not callers.backend.dispatcher.has_room(POOL, "s:1")


async def test_new_revision_weights_apply_to_waiting_tickets(build: Build) -> None:
    """A canary that fails is taken out of service while its queue is full."""
    async with stage(build, revisions=weights("stable:1,canary:1")) as callers:
        await callers.backend.open("s", 1)
        await callers.backend.open("c", 1, revision=CANARY)
        holders = {caller.worker_id: caller for caller in [await callers.served(), await callers.served()]}
        first, second = await callers.enter(), await callers.enter()

        dispatcher = callers.backend.dispatcher
        dispatcher.rules = replace(dispatcher.rules, revisions=weights("stable:1,canary:0"))

        await until_slots(callers, 1)
        await told_again(first)
        await holders["c"].leave()
        await told_again(first)
        assert first.lease is None
        await holders["s"].leave()
        await until(lambda: first.lease)
        assert (first.worker_id, second.lease) == ("s", None)

        dispatcher.rules = replace(dispatcher.rules, revisions=weights("stable:1,canary:1"))
        await until(lambda: second.lease)
        assert second.worker_id == "c"


async def test_revision_weights_keep_queue_order(build: Build) -> None:
    """Attack: ask for a revision's slots, or lose one of them, so as to be served before earlier tickets."""
    async with stage(build, revisions=weights("stable:99,canary:1")) as callers:
        await callers.backend.open("s", 1)
        await callers.backend.open("c", 1, revision=CANARY)
        holders = [await callers.served(), await callers.served()]
        waiting = [await callers.enter() for _ in range(3)]
        rude = [await callers.enter(revision=CANARY) for _ in range(2)]
        waiting.append(await callers.enter())
        expected = [*waiting[:3], *rude, waiting[3]]
        # Slots of one revision alone come free: the first in the queue gets each, whatever its turn is.
        for caller in expected:
            leaving = next(each for each in holders if each.worker_id == "c")
            await leaving.leave()
            await until(lambda caller=caller: caller.lease)
            holders = [each for each in holders if each is not leaving] + [caller]
        assert callers.granted[2:] == expected


async def test_session_stays_at_its_revision_if_it_can(build: Build) -> None:
    async with stage(build, revisions=weights("stable:99,canary:1")) as callers:
        await callers.backend.open("s", 3)
        await callers.backend.open("c", 1, revision=CANARY)
        back = await callers.served(again=POOL, revision=CANARY)
        other = await callers.served(again=POOL, revision=CANARY)
        assert (back.worker_id, other.worker_id) == ("c", "s")


async def test_flood_of_one_revision_takes_no_turn_of_others(build: Build) -> None:
    """Attack: come again and again to a revision, so that others get none of the other one's slots."""
    async with stage(build, revisions=weights("stable:3,canary:1")) as callers:
        await callers.backend.open("s", 20)
        await callers.backend.open("c", 20, revision=CANARY)
        order = []
        for _ in range(8):
            for _ in range(2):
                await (await callers.served(revision=STABLE)).leave()
            order.append((await callers.served()).worker_id)
        assert Counter(order) == Counter(s=6, c=2)


async def test_without_weights_all_revisions_are_alike(build: Build) -> None:
    async with stage(build) as callers:
        await callers.backend.open("s", 1)
        await callers.backend.open("c", 1, revision=CANARY)
        assert {(await callers.served()).worker_id for _ in range(2)} == {"s", "c"}


@pytest.mark.parametrize("total", [2, 7, 100])
def test_turns_of_any_stretch_keep_the_shares(total: int) -> None:
    shares = Weights({"a": total - 1, "b": 1})
    turns = WeightedRoundRobin()
    order = [turns.next(shares, {"a", "b"}) for _ in range(total * 5)]
    for start in range(total * 4):
        assert order[start : start + total].count("b") in (0, 1, 2)
    assert order.count("b") in (4, 5, 6)


def test_time_without_a_revision_is_not_made_up_for() -> None:
    turns, shares = WeightedRoundRobin(), Weights({"a": 1, "b": 1})
    for _ in range(1000):
        assert turns.next(shares, {"a"}) == "a"
    assert Counter(turns.next(shares, {"a", "b"}) for _ in range(10)) == Counter(a=5, b=5)


@pytest.mark.parametrize(
    "entries",
    [
        ["antiphon-mini"],
        ["=stable:1"],
        ["m=stable"],
        ["m=stable:-1"],
        ["m=stable:1.5"],
        ["m=stable:1,stable:2"],
        ["m=stable:0,canary:0"],
        ["m=sta ble:1"],
        ["m=stable:1000001"],
        ["m=stable:1", "m=canary:1"],
        ["m=" + ",".join(f"r{n}:1" for n in range(17))],
    ],
)
def test_weights_that_mean_nothing_are_refused(entries: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="revisions"):
        read_weights(entries)
