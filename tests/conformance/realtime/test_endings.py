"""Endings of sessions on `/v1/realtime`, a row for each kind, and the whole table without I/O."""

import asyncio
import signal
from contextlib import AsyncExitStack

import grpc.aio
import pytest

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub
from tests.conformance.support.client import Client, Event
from tests.conformance.support.clockwork import clockwork, clockwork_before
from tests.conformance.support.match import With, error
from tests.conformance.support.stack import Stack, Worker, prompted_worker, running_stack, scripted_worker
from tests.conformance.support.words import G2, G3, Words, both, plays
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    INFO,
    Play,
    Script,
    ScriptedEngine,
    SessionFailed,
    hang,
    listen,
    running_worker,
)
from tests.ws_adapter.support.conversation import Conversation, ready_signal
from tests.ws_adapter.support.pools import catalogue as catalogue_of


def lost(words: Words, created: Event) -> list[Event]:
    """The events at the end of a session whose worker failed."""
    return [error("inference_error", side="server_error"), With(**words.closed(created, words.failed))]


async def ends(client: Client, events: list[Event], code: int) -> None:
    assert await client.end() == (events, code)


@pytest.mark.usefixtures("unsaid")
async def test_no_free_slot() -> None:
    """Another adapter has the slot that this one believes to be free."""
    async with running_worker(ScriptedEngine(slots=1), slots=1) as worker:
        async with clockwork_before(worker.address) as other, other.client() as holder:
            await G3.begin(holder)
            async with clockwork_before(worker.address) as world, world.client() as client:
                reading = asyncio.create_task(client.end())
                begin = world.clock.now()
                while not reading.done():
                    await world.advance(0.1)
                    await asyncio.wait({reading}, timeout=0.01)
                assert world.clock.now() - begin > 4.9
                assert await reading == ([error("worker_busy", side="server_error")], 1013)


async def test_lease_that_is_refused() -> None:
    async with running_worker(ScriptedEngine(), worker_key=b"sixteen bytes are enough") as worker:
        async with clockwork_before(worker.address) as world, world.client() as client:
            client.ignored = {"session.queued", "session.queue_update"}
            await ends(client, [error("worker_connect_failed", side="server_error")], 1013)


@both
async def test_mode_unsupported(words: Words) -> None:
    async with clockwork(info=INFO) as world, world.client("/v1/realtime?mode=video") as client:
        await client.expect("session.queue_done")
        await client.send(words.init())
        await ends(client, [error("unsupported_mode")], 1008)


@both
async def test_config_invalid(stack: Stack, words: Words) -> None:
    refuses = Script(refuses=SessionFailed("CONFIG_INVALID", "secret of a neighbour"))
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.send(words.init(refuses))
        events, code = await client.end()
        closed = With(type="session.closed", reason=words.failed)
        assert (events, code) == ([error("invalid_payload"), closed], 1008)
        assert "of a neighbour" not in str(events)


@both
@pytest.mark.parametrize(
    ("reason", "code"), [("KV_EXHAUSTED", 1013), ("INFERENCE_FAILED", 1011)], ids=["KV_EXHAUSTED", "fault"]
)
async def test_session_that_fails_at_the_worker(stack: Stack, words: Words, reason: str, code: int) -> None:
    async with stack.client() as client:
        created = await words.begin(client, Play(fails_session=SessionFailed(reason, "secret")))
        await client.send(words.append())
        await ends(client, lost(words, created), code)


@pytest.mark.parametrize("how", ["ENGINE_FATAL", "WORKER_LOST"])
async def test_worker_that_dies(how: str) -> None:
    with prompted_worker(2) as worker, running_stack(worker) as stack:
        async with stack.client() as current, stack.client() as earlier:
            created = [
                await G3.begin(current, listen(), Play(breaks_device=True)),
                await G2.begin(earlier, listen(), hang("generate")),
            ]
            await earlier.send(G2.append(), G2.append())
            await earlier.expect("response.listen")
            await current.send(G3.append())
            await current.expect("listen")
            if how == "ENGINE_FATAL":
                await current.send(G3.append())
            else:
                worker.process.kill()
            await ends(current, lost(G3, created[0]), 1011)
            await ends(earlier, lost(G2, created[1]), 1011)
            await stack.until(ready=False)


async def test_worker_lost_before_the_session_began() -> None:
    """A worker lost before `SessionReady` is retried within the server: only a longer wait is seen.

    With a new lease and from the head of the queue: whoever waited before still waits.
    """
    async with AsyncExitStack() as exits:
        workers = [exits.enter_context(prompted_worker(1)) for _ in range(2)]
        stack = exits.enter_context(running_stack(*workers))
        clients = [await exits.enter_async_context(stack.client()) for _ in range(2)]
        for n, (words, client) in enumerate(zip((G3, G2), clients, strict=True)):
            await client.expect("session.queue_done")
            await client.send(words.init(plays(slow_start=True, key=f"lost-{n}")), words.append())
        for worker in workers:
            await wait_for_sessions(worker, 1)
        third = await exits.enter_async_context(stack.client())
        third.ignored = {"session.queue_update"}
        await third.expect("session.queued")
        dead, alive = workers
        dead.process.kill()
        for n in range(2):
            alive.release(f"lost-{n}", "ready", 0)
        first, second = await first_with_event(clients)
        assert first.events[-1]["type"] == "session.created"
        await stack.until_queue(2)
        await first.socket.close()
        lost_key = f"lost-{clients.index(second)}"
        waiting = asyncio.create_task(second.expect("session.created"))
        while not waiting.done():
            alive.release(lost_key, "ready", 0)
            await asyncio.wait({waiting}, timeout=0.05)
        await waiting
        words = (G3, G2)[clients.index(second)]
        await second.expect(words.listen)
        assert {event["type"] for event in third.events} <= {"session.queued", "session.queue_update"}
        await second.socket.close()
        await third.expect("session.queue_done")


async def wait_for_sessions(worker: Worker, count: int) -> None:
    """Until the worker holds so many sessions, as its own description says."""
    async with grpc.aio.insecure_channel(worker.target) as channel, asyncio.timeout(PATIENCE_S):
        while True:
            info: pb.GetInfoResponse = await InferenceServiceStub(channel).GetInfo(pb.GetInfoRequest())
            if info.slots - info.free_slots == count:
                return


async def first_with_event(clients: list[Client]) -> tuple[Client, Client]:
    """The client that gets the next event, and the other one."""
    reads = {asyncio.create_task(client.next()): client for client in clients}
    done, pending = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
    for read in pending:
        read.cancel()
    await asyncio.wait(reads)
    assert len(done) == 1
    first = reads[done.pop()]
    return first, next(client for client in clients if client is not first)


async def test_worker_goes_away() -> None:
    with scripted_worker("--prompted", "--drain-timeout-s", "0.5") as worker, running_stack(worker) as stack:
        async with stack.client() as current, stack.client() as earlier:
            created = [await G3.begin(current), await G2.begin(earlier)]
            worker.process.send_signal(signal.SIGTERM)
            await ends(current, [With(**G3.closed(created[0], "server_shutdown"))], 1012)
            await ends(earlier, [With(**G2.closed(created[1], "server_shutdown"))], 1012)


async def test_adapter_shuts_down() -> None:
    unavailable = [error("service_unavailable", side="server_error")]
    with prompted_worker(2) as worker, running_stack(worker, options=("--drain-timeout-s", "2")) as stack:
        async with stack.client() as current, stack.client() as earlier, stack.client() as waiting:
            created = [await G3.begin(current, hang("generate")), await G2.begin(earlier)]
            await current.send(G3.append())
            await waiting.expect("session.queued")
            stack.process.send_signal(signal.SIGTERM)
            await ends(waiting, unavailable, 1013)
            async with stack.client() as late:
                await ends(late, unavailable, 1013)
            await earlier.send(G2.append())
            await earlier.expect("response.listen")
            await ends(current, [With(**G3.closed(created[0], "server_shutdown"))], 1012)
            await ends(earlier, [With(**G2.closed(created[1], "server_shutdown"))], 1012)
        assert await asyncio.to_thread(stack.process.wait, PATIENCE_S) == 0


PUBLIC: dict[tuple[str | None, str | None, int], str] = {
    ("queue_full", None, 1013): "QUEUE_FULL",
    ("worker_busy", None, 1013): "NO_FREE_SLOT",
    ("service_unavailable", None, 1013): "LOADING DRAINING",
    ("unsupported_mode", None, 1008): "MODE_UNSUPPORTED",
    ("invalid_payload", "backend_error", 1008): "CONFIG_INVALID",
    ("inference_error", "backend_error", 1013): "KV_EXHAUSTED",
    (None, "timeout", 1000): "SESSION_LIMIT IDLE_TIMEOUT",
    ("worker_connect_failed", None, 1013): "ATTACH_TIMEOUT LEASE_MISSING LEASE_INVALID STALE_LEASE",
    ("inference_error", "backend_error", 1011): (
        "UNIT_TIMEOUT ENGINE_FATAL WORKER_LOST LEASE_REVOKED METADATA_INVALID PAYLOAD_INVALID"
        " MESSAGE_TOO_LARGE STREAM_EXISTS CONFIG_REQUIRED CONFIG_REPEATED UNIT_OUT_OF_ORDER UNIT_WINDOW"
    ),
}
"""Code, reason of `session.closed` and close code, and the worker's reasons for them."""


@both
@pytest.mark.parametrize("reason", " ".join(PUBLIC.values()).split())
def test_reason_in_public(words: Words, reason: str) -> None:
    code, closed, close = next(told for told, reasons in PUBLIC.items() if reason in reasons.split())
    talk = Conversation(catalogue=catalogue_of(()))
    talk.connect()
    talk.client(words.init())
    (created,) = talk.worker(ready_signal())
    events = talk.fail(Reason(reason))
    expected: list[object] = []
    if code is not None:
        is_clients = code in ("unsupported_mode", "invalid_payload")
        expected.append(error(code, side="client_error" if is_clients else "server_error"))
    if closed is not None:
        told = words.failed if closed == "backend_error" else closed
        expected.append(With(**words.closed(created, told)))
    assert events == expected
    assert talk.closed is not None
    assert talk.closed.code == close
