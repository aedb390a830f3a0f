"""Attacks on everybody else's slots: one caller who takes all that a pool has, and keeps them.

No option is set here unless a test says so: the defaults must hold.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from antiphon import QueueFull
from antiphon.grpc import Session, acquire
from antiphon.grpc.status import Status
from antiphon.v1 import dispatch_service_pb2 as pb
from antiphon.v1 import inference_service_pb2 as session_pb
from antiphon_service.pools import pool_name
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, listen, running_worker
from tests.ws_adapter.direct.test_acquire import Call, channel_to
from tests.ws_adapter.direct.test_limits import BEHIND_A_PROXY, address, bearer, holding, pass_time
from tests.ws_adapter.support.backend import age
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock, Stage, running_adapter

SLOTS = 3
WORKER_KEY = b"a key of 16 byte"
LIMIT = "SLOT_LIMIT"
Metadata = tuple[str, str]


@asynccontextmanager
async def backend(slots: int = SLOTS, **options: Any) -> AsyncIterator[Stage]:
    engine = ScriptedEngine(listen(), slots=slots, repeat=True, info=EVERYTHING)
    async with (
        running_worker(engine, slots=slots, worker_key=WORKER_KEY) as worker,
        running_adapter(
            worker.address,
            clock=ManualClock(),
            grpc_port=0,
            worker_key=WORKER_KEY,
            **{**BEHIND_A_PROXY, **options},
        ) as stage,
    ):
        yield stage


def strangers(by: str, folder: Path) -> tuple[Metadata, Metadata, dict[str, Any]]:
    """Two callers, and the options of an adapter that tells them apart."""
    if by == "address":
        return address(1), address(2), {}
    keys = KeyFile(folder / "keys", "one", "other")
    return bearer(keys, "one"), bearer(keys, "other"), {"auth": "keys", "keys": keys.path}


async def answer(call: Call) -> pb.AcquireResponse | Status:
    """The first answer to a call, or its end."""
    try:
        response = await call.next()
    except grpc.aio.AioRpcError as error:
        return Status.of(error.code(), error.details() or "", error.trailing_metadata())
    assert response is not None
    return response


async def refusal(stage: Stage, *metadata: Metadata) -> str:
    """The reason why a caller gets no slot; empty for one who may have one, and leaves again."""
    async with channel_to(stage) as channel:
        told = await answer(Call(channel, metadata))
    return told.reason if isinstance(told, Status) else ""


async def until_let_in(stage: Stage, *metadata: Metadata) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await refusal(stage, *metadata):
            await pass_time(stage)


@pytest.mark.parametrize("by", ["key", "address"])
async def test_slots_of_a_pool_one_caller_leaves_one_to_others(by: str, tmp_path: Path) -> None:
    one, other, options = strangers(by, tmp_path)
    async with backend(**options) as stage, holding(stage, one, count=SLOTS - 1) as holder:
        assert await refusal(stage, one) == LIMIT
        async with holding(stage, other, count=1):
            assert await refusal(stage, one) == LIMIT
        await holder.end_one()
        await until_let_in(stage, one)


async def test_slots_of_a_pool_one_key_from_many_addresses_counts_as_one(tmp_path: Path) -> None:
    one, other, options = strangers("key", tmp_path)
    async with backend(**options) as stage, holding(stage, one, count=SLOTS - 1):
        assert [await refusal(stage, one, address(number)) for number in range(3)] == [LIMIT] * 3
        assert await refusal(stage, other) == ""


async def test_slots_of_a_pool_leases_without_a_session_and_tickets_count(tmp_path: Path) -> None:
    """All calls at once, none of which attaches."""
    one, other, options = strangers("key", tmp_path)
    async with backend(**options) as stage, channel_to(stage) as channel:
        calls = [Call(channel, [one]) for _ in range(4 * SLOTS)]
        told = await asyncio.gather(*map(answer, calls))
        refused = [it for it in told if isinstance(it, Status)]
        granted = [it for it in told if not isinstance(it, Status)]
        assert [it.granted.token != "" for it in granted] == [True] * (SLOTS - 1)
        assert {(it.code, it.reason) for it in refused} == {(grpc.StatusCode.RESOURCE_EXHAUSTED, LIMIT)}
        assert await refusal(stage, other) == ""


@pytest.mark.parametrize(
    ("slots", "said"), [(1, None), (SLOTS, 1), (SLOTS, SLOTS)], ids=["one slot", "one said", "all said"]
)
async def test_slots_of_a_pool_limit_is_the_operators(slots: int, said: int | None, tmp_path: Path) -> None:
    """The refusal is an error of its own for clients."""
    keys = KeyFile(tmp_path / "keys", "one")
    one, most = bearer(keys, "one"), said or 1
    options = {"slots": slots, "direct_slots_per_caller": said, "auth": "keys", "keys": keys.path}
    async with backend(**{name: it for name, it in options.items() if it is not None}) as stage:
        async with holding(stage, one, count=most):
            assert await refusal(stage, one) == LIMIT
            with pytest.raises(QueueFull, match=f"at most {most} slots") as refused:
                async with acquire(f"127.0.0.1:{stage.adapter.grpc_port}", "audio", key=keys.secrets["one"]):
                    pass
    assert refused.value.reason == LIMIT


@pytest.mark.usefixtures("patient_peers")
async def test_slots_of_a_shared_pool_are_counted_over_adapters(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    one, other, options = strangers("key", tmp_path)
    shared: dict[str, Any] = {"dispatcher": redis_server.url, "worker_key": WORKER_KEY}
    options = {**BEHIND_A_PROXY, **options, **shared, "grpc_port": 0, "wait": False}
    engine = ScriptedEngine(listen(), slots=SLOTS, repeat=True)
    age(redis_server, pool_name("scripted", ["audio"]))
    async with AsyncExitStack() as first:
        async with running_worker(engine, slots=SLOTS, **shared), running_adapter(**options) as second:
            gone = await first.enter_async_context(running_adapter(**options))
            for stage in (gone, second):
                await stage.until(ready=True, free_slots=SLOTS)
            async with holding(gone, one, count=SLOTS - 1) as holder:
                assert await refusal(second, one) == LIMIT
                await first.aclose()
                assert await refusal(second, one) == LIMIT, "its sessions go on, and count"
                assert await refusal(second, other) == ""
                await holder.end_one()
                await until_let_in(second, one)


MODES = {
    "audio": session_pb.SESSION_MODE_AUDIO,
    "chat": session_pb.SESSION_MODE_CHAT,
    "transcribe": session_pb.SESSION_MODE_TRANSCRIBE,
}


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize(("asked_s", "granted_s"), [(None, (3600, 60)), (86_400, (3600, 60)), (5, (5, 5))])
async def test_session_of_a_direct_caller_lasts_no_longer_than_its_lease_allows(
    kind: str, asked_s: int | None, granted_s: tuple[int, int], tmp_path: Path
) -> None:
    """The lease caps both limits for every config and every kind of slot."""
    async with backend() as stage, AsyncExitStack() as stack:
        config = session_pb.SessionConfig(mode=MODES[kind])
        if asked_s is not None:
            config.max_duration.FromSeconds(asked_s)
            config.idle_timeout.FromSeconds(asked_s)
        lease = await stack.enter_async_context(acquire(f"127.0.0.1:{stage.adapter.grpc_port}", "audio"))
        session = await stack.enter_async_context(Session.open(lease, config))
        effective = session.ready.effective
        assert (effective.max_duration.seconds, effective.idle_timeout.seconds) == granted_s
