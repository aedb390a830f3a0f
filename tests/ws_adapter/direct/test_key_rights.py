"""The rights and the slot limit of a key hold for direct callers too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.direct.test_acquire import Call, channel_to
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock, Stage, running_adapter


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys", "bob")


@asynccontextmanager
async def backend(keys: KeyFile, **options: Any) -> AsyncIterator[Stage]:
    async with running_worker(ScriptedEngine(listen(), slots=3), slots=3) as worker:
        given: dict[str, Any] = {"grpc_port": 0, "auth": "keys", "keys": keys.path, **options}
        async with running_adapter(worker.address, **given) as stage:
            yield stage


def bearer(keys: KeyFile, name: str, address: int = 1) -> tuple[tuple[str, str], ...]:
    return (("authorization", keys.bearer(name)["Authorization"]), ("x-forwarded-for", f"192.0.2.{address}"))


async def is_granted(call: Call) -> bool:
    told = await call.next()
    return told is not None and told.HasField("granted")


async def refusal(stage: Stage, metadata: Any, **request: Any) -> tuple[grpc.StatusCode, bytes]:
    """Code and details of what a call is refused with."""
    async with channel_to(stage) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await Call(channel, metadata, **request).next()
        trailers = dict(error.value.trailing_metadata() or ())
        return error.value.code(), bytes(trailers["grpc-status-details-bin"])


@pytest.mark.parametrize(
    ("fields", "request_fields", "field"),
    [({"modes": "chat"}, {"kind": "audio"}, b"kind"), ({"models": "x"}, {"model": "scripted"}, b"model")],
)
async def test_call_beyond_key_rights_gets_permission_denied(
    keys: KeyFile, fields: dict[str, str], request_fields: dict[str, str], field: bytes
) -> None:
    keys.add("alice", **fields)
    async with backend(keys) as stage:
        request = {"kind": "audio", **request_fields}
        code, details = await refusal(stage, bearer(keys, "alice"), **request)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert b"NOT_ALLOWED" in details
        assert field in details
        async with channel_to(stage) as channel:
            assert await is_granted(Call(channel, bearer(keys, "bob"), **request))


async def test_key_with_a_limit_of_slots_gets_no_more_from_two_addresses(keys: KeyFile) -> None:
    """The attack: hold every slot with one key, from several addresses."""
    keys.add("alice", direct_slots="2")
    async with backend(keys, trusted_proxies=("127.0.0.0/8",)) as stage:
        async with channel_to(stage) as channel:
            held = [Call(channel, bearer(keys, "alice", number), kind="audio") for number in (1, 2)]
            for call in held:
                assert await is_granted(call)
            code, details = await refusal(stage, bearer(keys, "alice", 3), kind="audio")
            assert (code, b"SLOT_LIMIT" in details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
            assert await is_granted(Call(channel, bearer(keys, "bob")))
        await stage.until(free_slots=3)
        async with channel_to(stage) as channel:
            assert await is_granted(Call(channel, bearer(keys, "alice")))


async def test_wait_ends_when_its_key_expires(keys: KeyFile) -> None:
    clock = ManualClock()
    expires = datetime.fromtimestamp(clock.unix() + 5, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    keys.add("alice", expires=expires)
    async with backend(keys, clock=clock, direct_slots_per_caller=3) as stage, channel_to(stage) as channel:
        held = [Call(channel, bearer(keys, "bob")) for _ in range(3)]
        for other in held:
            assert await other.next() is not None
        call = Call(channel, bearer(keys, "alice")).call
        assert (await call.read()).HasField("queued")
        await clock.advance(6)
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "expired" in await call.details()
