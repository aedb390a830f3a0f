"""The rights and the slot limit of a key hold for direct callers too."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from antiphon.grpc.status import Status
from tests.ws_adapter.direct.test_acquire import Call, backend, channel_to
from tests.ws_adapter.direct.test_limits import answer, bearer
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys", "bob")


async def is_granted(call: Call) -> bool:
    told = await call.next()
    return told is not None and told.HasField("granted")


@pytest.mark.parametrize(
    ("fields", "request_fields", "field"),
    [({"modes": "chat"}, {"kind": "audio"}, "kind"), ({"models": "x"}, {"model": "scripted"}, "model")],
)
async def test_call_beyond_key_rights_gets_permission_denied(
    keys: KeyFile, fields: dict[str, str], request_fields: dict[str, str], field: str
) -> None:
    keys.add("alice", **fields)
    async with backend(auth="keys", keys=keys.path) as (stage, _), channel_to(stage) as channel:
        refused = await answer(Call(channel, [bearer(keys, "alice")], **request_fields))
        assert isinstance(refused, Status)
        assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")
        assert refused.field == field
        assert await is_granted(Call(channel, [bearer(keys, "bob")], **request_fields))


async def test_wait_ends_when_its_key_expires(keys: KeyFile) -> None:
    clock = ManualClock()
    expires = datetime.fromtimestamp(clock.unix() + 5, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    keys.add("alice", expires=expires)
    async with backend(auth="keys", keys=keys.path, clock=clock) as (stage, _), channel_to(stage) as channel:
        held = Call(channel, [bearer(keys, "bob")])
        assert await is_granted(held)
        call = Call(channel, [bearer(keys, "alice")]).call
        assert (await call.read()).HasField("queued")
        await clock.advance(6)
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "expired" in await call.details()
