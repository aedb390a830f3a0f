"""The queue as its clients and those who look at it see it, over one slot."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.conformance.support.client import Client, Event, kinds
from tests.conformance.support.clockwork import clockwork
from tests.conformance.support.match import SESSION_ID, SOME_TEXT, TICKET_ID, Flag, Number, Text, error
from tests.conformance.support.stack import Stack, Worker, prompted_worker, running_stack, scripted_worker
from tests.conformance.support.words import CLOSE, G2, G3, Words, both
from tests.support.scripted_engine import listen
from tests.ws_adapter.support.stage import until

PLACE = {"estimated_wait_s": Number(), "estimate_is_guess": Flag(), "ticket_id": TICKET_ID}
ISO = Text(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")


@pytest.fixture(scope="module")
def single() -> Iterator[Worker]:
    """A worker with one slot."""
    with prompted_worker(1) as worker:
        yield worker


@pytest.fixture(scope="module")
def brisk_stack(single: Worker) -> Iterator[Stack]:
    options = ("--queue-update-s", "0.2", "--queue-capacity", "3")
    with running_stack(single, options=options) as stack:
        yield stack
        stack.wait_until(free_slots=1)
        assert "Traceback" not in stack.log.text


@pytest.fixture
async def brisk(brisk_stack: Stack) -> Stack:
    """One slot, which is free; three may wait and are told their places every 0.2 s."""
    await brisk_stack.until(free_slots=1)
    return brisk_stack


@asynccontextmanager
async def queue(stack: Stack, length: int, *, quiet: bool = True) -> AsyncIterator[list[Client]]:
    """A client that has the slot, and `length` that wait behind it, in order."""
    async with AsyncExitStack() as clients:
        found = [await clients.enter_async_context(stack.client())]
        await G3.begin(found[0])
        for _ in range(length):
            client = await clients.enter_async_context(stack.client())
            await client.expect("session.queued")
            client.ignored = {"session.queue_update"} if quiet else set()
            found.append(client)
        yield found


async def leave(client: Client) -> None:
    await client.send(CLOSE)
    await client.end()


async def test_queue_update_whether_changed_or_not(brisk: Stack) -> None:
    async with queue(brisk, 2, quiet=False) as (_, first, second):
        update = {"type": "session.queue_update", "position": 2, "queue_length": 2, **PLACE}
        assert await second.take(3) == [update] * 3
        assert {event["ticket_id"] for event in second.events} == {second.events[0]["ticket_id"]}
        await leave(first)
        assert (await second.until("session.queue_update"))[-1]["position"] in (1, 2)
        while (event := await second.next())["position"] != 1:
            assert event["position"] == 2
        assert event["queue_length"] == 1


@pytest.mark.parametrize("how", ["vanish", "close frame", "session.close", "DELETE"])
async def test_queue_positions_close_up_after_client_leaves(brisk: Stack, how: str) -> None:
    async with queue(brisk, 3) as (holder, first, second, third):
        match how:
            case "vanish":
                first.vanish()
            case "close frame":
                await first.socket.close()
            case "session.close":
                await leave(first)
            case "DELETE":
                ticket = first.events[0]["ticket_id"]
                answer = await brisk.request(f"/api/queue/{ticket}", "DELETE")
                assert answer == (200, {"success": True, "ticket_id": ticket})
                assert await first.end() == ([error("queue_cancelled")], 1000)
                answer = await brisk.request(f"/api/queue/{ticket}", "DELETE")
                assert answer == (404, {"success": False, "message": SOME_TEXT})
        await brisk.until_queue(2)
        for position, client in enumerate((second, third), 1):
            ticket = (await brisk.request(f"/api/queue/{client.events[0]['ticket_id']}"))[1]["ticket"]
            assert ticket["position"] == position
        await leave(holder)
        await second.expect("session.queue_done")


async def test_slot_is_never_given_to_a_dead_socket(brisk: Stack) -> None:
    async with queue(brisk, 2) as (holder, first, second):
        first.vanish()
        holder.vanish()
        await second.expect("session.queue_done")
        await second.send(G3.init())
        await second.expect("session.created")
    await brisk.until(free_slots=1)


async def test_full_queue(brisk: Stack) -> None:
    async with queue(brisk, 3) as (holder, first, *_):
        async with brisk.client() as late:
            assert await late.end() == ([error("queue_full", side="server_error")], 1013)
        await leave(holder)
        await first.expect("session.queue_done")


async def test_longest_wait(single: Worker) -> None:
    with running_stack(single, options=("--queue-max-wait-s", "1")) as stack:
        async with queue(stack, 1) as (holder, client):
            client.ignored = {"session.queue_update"}
            assert await client.end() == ([error("queue_timeout", side="server_error")], 1013)
            await holder.send(G3.append())
            await holder.expect("listen")


@both
async def test_slot_is_handed_on_only_when_it_is_clean(words: Words) -> None:
    async with clockwork(slots=1) as world:
        world.engine.slow_cleanup = True
        async with world.client() as first, world.client() as second:
            await words.begin(first, listen())
            await second.expect("session.queued")
            await first.send(CLOSE)
            events, code = await first.end()
            assert (kinds(events), code) == (["session.closed"], 1000)
            await second.send({"type": "x"})
            await second.expect("error:unknown_event")
            await until(lambda: world.session.is_closing)
            world.session.finish_cleanup()
            world.engine.slow_cleanup = False
            await second.expect("session.queue_done")


async def test_view_of_the_queue(brisk: Stack) -> None:
    async with queue(brisk, 1) as (_, client):
        ticket = client.events[0]["ticket_id"]
        item: Event = {
            "ticket_id": ticket,
            "request_type": "audio_duplex",
            "session_id": SESSION_ID,
            "position": 1,
            "estimated_wait_s": Number(),
            "estimate_is_guess": Flag(),
            "enqueued_at": ISO,
            "wait_elapsed_s": Number(),
        }
        assert await brisk.request("/api/queue") == (
            200,
            {
                "queue_length": 1,
                "max_queue_size": 3,
                "items": [{**item, "ticket_id": None, "session_id": None}],
                "running_tasks": [
                    {
                        "worker_id": Text(r"worker-[0-9a-f]{8}/0"),
                        "request_type": "audio_duplex",
                        "started_at": ISO,
                        "elapsed_s": Number(),
                        "estimated_remaining_s": Number(),
                        "estimate_is_guess": Flag(),
                    }
                ],
            },
        )
        assert await brisk.request(f"/api/queue/{ticket}") == (200, {"found": True, "ticket": item})
        missing: Any = {"found": False, "message": SOME_TEXT}
        assert await brisk.request("/api/queue/ticket_000000000000") == (200, missing)


async def test_no_worker_at_all() -> None:
    """Clients queue for `no_worker_grace_s`."""
    nowhere = Worker(process=None, log=None, target="127.0.0.1:1")  # type: ignore[arg-type]
    with running_stack(nowhere, options=("--no-worker-grace-s", "1.5"), wait=False) as stack:
        async with stack.client() as client:
            events, code = await client.end()
            assert events[-1] == error("service_unavailable", side="server_error")
            assert code == 1013
        async with stack.client() as late:
            assert await late.end() == ([error("service_unavailable", side="server_error")], 1013)


async def test_worker_that_drains() -> None:
    options = ("--no-worker-grace-s", "0.3")
    unavailable = [error("service_unavailable", side="server_error")]
    with (
        scripted_worker("--drain-timeout-s", "60") as worker,
        running_stack(worker, options=options) as stack,
    ):
        async with stack.client() as current, stack.client() as earlier:
            await G3.begin(current)
            await G2.begin(earlier)
            worker.process.terminate()
            await stack.until(ready=False)
            async with stack.client() as late:
                late.ignored = {"session.queued", "session.queue_update"}
                assert await late.end() == (unavailable, 1013)
            for words, client in ((G3, current), (G2, earlier)):
                await client.send(words.append())
                await client.expect(words.listen)
