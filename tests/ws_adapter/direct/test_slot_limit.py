"""Attacks on everybody else's slots: one caller who takes all that a pool has, and keeps them.

No option is set here unless a test says so: the defaults must hold.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from antiphon import QueueFull
from antiphon.grpc import Session, acquire
from antiphon.grpc.status import Status
from antiphon.v1 import inference_service_pb2 as session_pb
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import RunningWorker
from tests.ws_adapter.direct.test_acquire import Call, backend, channel_to, port_of
from tests.ws_adapter.direct.test_limits import (
    BEHIND_A_PROXY,
    NO_MORE_SLOTS,
    SLOTS,
    address,
    answer,
    bearer,
    cluster,
    holding,
    refusal,
    strangers,
    until_let_in,
)
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock, Stage


def limited(slots: int = SLOTS, **options: Any) -> AbstractAsyncContextManager[tuple[Stage, RunningWorker]]:
    return backend(slots, clock=ManualClock(), **{**BEHIND_A_PROXY, **options})


@pytest.mark.parametrize("by", ["key", "address"])
async def test_slots_of_a_pool_one_caller_leaves_one_to_others(by: str, tmp_path: Path) -> None:
    (one, other, _), options = strangers(by, tmp_path)
    async with limited(**options) as (stage, _), holding(stage, one, count=SLOTS - 1) as holder:
        assert await refusal(stage, one) == NO_MORE_SLOTS
        async with holding(stage, other, count=1):
            assert await refusal(stage, one) == NO_MORE_SLOTS
        await holder.end_one()
        await until_let_in(stage, one)


async def test_slots_of_a_pool_one_key_from_many_addresses_counts_as_one(tmp_path: Path) -> None:
    (one, other, _), options = strangers("key", tmp_path)
    async with limited(**options) as (stage, _), holding(stage, one, count=SLOTS - 1):
        assert [await refusal(stage, one, address(number)) for number in range(3)] == [NO_MORE_SLOTS] * 3
        assert await refusal(stage, other) == ""


async def test_slots_of_a_pool_leases_without_a_session_and_tickets_count(tmp_path: Path) -> None:
    """All calls at once, none of which attaches."""
    (one, other, _), options = strangers("key", tmp_path)
    async with limited(**options) as (stage, _), channel_to(stage) as channel:
        calls = [Call(channel, [one]) for _ in range(4 * SLOTS)]
        told = await asyncio.gather(*map(answer, calls))
        refused = [it for it in told if isinstance(it, Status)]
        granted = [it for it in told if not isinstance(it, Status)]
        assert [it.granted.token != "" for it in granted] == [True] * (SLOTS - 1)
        assert {(it.code, it.reason) for it in refused} == {
            (grpc.StatusCode.RESOURCE_EXHAUSTED, NO_MORE_SLOTS)
        }
        assert await refusal(stage, other) == ""


@pytest.mark.parametrize(
    ("slots", "said", "of_key", "most"),
    [(1, 0, {}, 1), (SLOTS, 1, {}, 1), (SLOTS, SLOTS, {}, SLOTS), (SLOTS, 1, {"direct_slots": "2"}, 2)],
    ids=["one slot", "one said", "all said", "two said for the key"],
)
async def test_slots_of_a_pool_limit_is_the_operators(
    slots: int, said: int, of_key: dict[str, str], most: int, tmp_path: Path
) -> None:
    """The refusal is an error of its own for clients."""
    keys = KeyFile(tmp_path / "keys")
    keys.add("one", **of_key)
    one = bearer(keys, "one")
    options = {"direct_slots_per_caller": said, "auth": "keys", "keys": keys.path}
    async with limited(slots, **options) as (stage, _):
        async with holding(stage, one, count=most):
            assert await refusal(stage, one) == NO_MORE_SLOTS
            with pytest.raises(QueueFull, match=f"at most {most} slots") as refused:
                async with acquire(port_of(stage), "audio", key=keys.secrets["one"]):
                    pass
    assert refused.value.reason == NO_MORE_SLOTS


@pytest.mark.usefixtures("patient_peers")
async def test_slots_of_a_shared_pool_are_counted_over_adapters(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    (one, other, _), options = strangers("key", tmp_path)
    async with cluster(redis_server, **options) as (gone, second):
        async with holding(gone, one, count=SLOTS - 1) as holder:
            assert await refusal(second, one) == NO_MORE_SLOTS
            gone.adapter.interrupt()
            gone.adapter.interrupt()
            await asyncio.wait({gone.task})
            assert await refusal(second, one) == NO_MORE_SLOTS, "its sessions go on, and count"
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
    async with limited() as (stage, _), AsyncExitStack() as stack:
        config = session_pb.SessionConfig(mode=MODES[kind])
        if asked_s is not None:
            config.max_duration.FromSeconds(asked_s)
            config.idle_timeout.FromSeconds(asked_s)
        lease = await stack.enter_async_context(acquire(port_of(stage), "audio"))
        session = await stack.enter_async_context(Session.open(lease, config))
        effective = session.ready.effective
        assert (effective.max_duration.seconds, effective.idle_timeout.seconds) == granted_s
