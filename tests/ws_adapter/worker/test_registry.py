"""Tests of the registry: an adapter's knowledge of its workers and its connections to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from antiphon.contract import METADATA_LEASE, METADATA_SESSION_ID
from antiphon.v1 import inference_service_pb2 as pb
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.stage import until
from tests.ws_adapter.worker.test_session_streams import SETUP, Caller, id_of, limited
from ws_adapter.process.errors import AttachFailed
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.core.signals import Ready
from ws_adapter.worker import registry as registry_module
from ws_adapter.worker.registry import COMPARISONS, Pace, Registry
from ws_adapter.worker.transport.rpc import RpcError

OFTEN = Pace(ask_s=0.02, retry_s=0.01)


@asynccontextmanager
async def registry_of(*targets: str, pace: Pace = OFTEN) -> AsyncIterator[Registry]:
    registry = Registry(targets, pace)
    registry.start()
    try:
        await until(lambda: registry.ready())
        yield registry
    finally:
        await registry.stop()


async def test_registry_notices_workers_that_come_and_go() -> None:
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    async with running_worker(ScriptedEngine(listen(), slots=3), slots=3) as first:
        registry = Registry((first.address, "127.0.0.1:1"), Pace(ask_s=60.0, retry_s=0.01))
        registry.changed = changed
        assert registry.catalogue() is None
        registry.start()
        await until(lambda: registry.ready())
        assert [(target, info.slots, info.model) for target, info in registry.ready()] == [
            (first.address, 3, "scripted")
        ]
        catalogue = registry.catalogue()
        assert catalogue is not None
        assert catalogue.models == {"scripted"}
        assert changes == 1
    try:
        # The lost connection tells, long before the next question.
        await until(lambda: not registry.ready(), 5)
        async with running_worker(ScriptedEngine(listen()), listen=first.address):
            await until(lambda: registry.ready(), 10)
    finally:
        await registry.stop()


async def test_worker_that_is_named_later_serves_and_one_that_is_not_any_more_gets_no_session() -> None:
    async with (
        running_worker(ScriptedEngine(listen())) as old,
        running_worker(ScriptedEngine(listen())) as new,
        registry_of(old.address, pace=Pace(ask_s=60.0)) as registry,
    ):
        registry.set_targets((old.address, new.address))
        await until(lambda: [target for target, _ in registry.ready()] == [old.address, new.address])
        registry.set_targets((new.address,))
        assert [target for target, _ in registry.ready()] == [new.address]
        assert sum(registry.conditions().values()) == 1
        # The old worker's sessions go on: its channel is still open.
        await registry.channel(old.address, Kind.AUDIO_DUPLEX).ask(
            "GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse, timeout_s=10
        )


async def test_worker_that_is_gone_and_no_longer_named_is_forgotten() -> None:
    pace = Pace(ask_s=0.01, retry_s=0.01, forget_s=0.0)
    async with AsyncExitStack() as stack:
        async with running_worker(ScriptedEngine(listen())) as worker:
            registry = await stack.enter_async_context(registry_of(worker.address, pace=pace))
            registry.set_targets(())
        await until(lambda: not registry.workers())
        with pytest.raises(AttachFailed):
            registry.channel(worker.address, Kind.AUDIO_DUPLEX)
        registry.suspect(worker.address)
        assert registry.model(worker.address) == ""
        assert not registry.is_short_of_time(worker.address)


async def test_named_worker_is_waited_for_however_long_it_is_silent() -> None:
    registry = Registry(("127.0.0.1:1",), Pace(retry_s=0.001, longest_retry_s=0.001, forget_s=0.0))
    registry.start()
    try:
        failures = 0
        [worker] = registry.workers()
        ask = worker.channel.ask

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal failures
            failures += 1
            return await ask(*arguments, **options)

        worker.channel.ask = counted  # type: ignore[method-assign]
        await until(lambda: failures >= 3)
        assert registry.workers() == [worker]
    finally:
        await registry.stop()


@asynccontextmanager
async def balanced(*addresses: str) -> AsyncIterator[tuple[str, list[str]]]:
    """An address whose connections lead to `addresses` in turn, and where each of them has led to."""
    led: list[str] = []
    relays: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = addresses[len(led) % len(addresses)]
        led.append(address)
        host, _, port = address.rpartition(":")
        onward = await asyncio.open_connection(host, int(port))
        relays.update(
            asyncio.create_task(one) for one in (relay(reader, onward[1]), relay(onward[0], writer))
        )

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", led
    finally:
        server.close()
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)


async def test_uploads_have_a_connection_of_their_own_to_the_same_worker() -> None:
    async with running_worker(ScriptedEngine(listen(), info=EVERYTHING)) as one:
        async with balanced(one.address) as (target, led), registry_of(target) as registry:
            conversing = registry.channel(target, Kind.OMNI_DUPLEX)
            await until(lambda: registry.channel(target, Kind.CHAT) is not conversing)
            uploading = registry.channel(target, Kind.CHAT)
            assert await id_of(uploading) == await id_of(conversing) == registry.ready()[0][1].worker_id
            assert registry.channel(target, Kind.TRANSCRIPTION) is conversing
            assert len(led) == 2


async def test_uploads_share_a_connection_that_no_other_matches(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running_worker(ScriptedEngine(listen(), info=EVERYTHING)) as one,
        running_worker(ScriptedEngine(listen(), info=EVERYTHING)) as other,
        balanced(one.address, other.address, other.address, other.address) as (target, led),
        registry_of(target) as registry,
    ):
        await until(lambda: len(led) == 1 + COMPARISONS)
        await until(
            lambda: len([r for r in caplog.records if "an address of its own" in r.message]) == COMPARISONS
        )
        conversing = registry.channel(target, Kind.OMNI_DUPLEX)
        assert registry.channel(target, Kind.CHAT) is conversing
        info = registry.ready()[0][1]
        caller = Caller(conversing, info.worker_id)
        streams = await caller.attach()
        streams.open(SETUP, 600.0)
        await until(lambda: caller.heard(Ready))
        streams.release()
        await streams.ended()
        assert len(led) == 1 + COMPARISONS, "it is not tried for ever"


async def test_uploads_find_their_way_back_to_the_same_worker() -> None:
    async with (
        running_worker(ScriptedEngine(listen(), info=EVERYTHING)) as one,
        running_worker(ScriptedEngine(listen(), info=EVERYTHING)) as other,
        balanced(one.address, other.address) as (target, led),
        registry_of(target) as registry,
    ):
        conversing = registry.channel(target, Kind.OMNI_DUPLEX)
        await until(lambda: registry.channel(target, Kind.CHAT) is not conversing)
        uploading = registry.channel(target, Kind.CHAT)
        assert led[2] == one.address
        uploading.disconnect()
        await until(lambda: len(led) >= 5 and registry.channel(target, Kind.CHAT) is uploading)


async def test_worker_without_free_streams_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "ASK_TIMEOUT_S", 0.2)
    limited(monkeypatch, streams=1)
    async with running_worker(ScriptedEngine(listen())) as one, registry_of(one.address) as registry:
        ends: list[RpcError | None] = []
        channel = registry.channel(one.address, Kind.OMNI_DUPLEX)
        metadata = ((METADATA_SESSION_ID, "s-1"), (METADATA_LEASE, "0:1:"))
        squatter = channel.call(
            "Finalize",
            pb.FinalizeResponse,
            lambda answer: None,
            ends.append,
            timeout_s=30.0,
            metadata=metadata,
        )
        await squatter.start()
        await until(lambda: not registry.ready())
        squatter.cancel()
        await until(lambda: registry.ready())
        assert channel is registry.channel(one.address, Kind.OMNI_DUPLEX)
