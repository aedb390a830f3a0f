"""Keys that adapters share in Redis: at a real adapter, with changes and outages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon_service.redis import connect, disconnect
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, running_adapter
from ws_adapter.usage import shared_keys as module
from ws_adapter.usage.shared import call

pytestmark = pytest.mark.usefixtures("patient_peers")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyFile:
    defaults: dict[str, Any] = module.SharedKeys.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "poll_s", 0.02)
    monkeypatch.setitem(defaults, "read_s", PATIENCE_S)
    return KeyFile(tmp_path / "keys", "alice", "bob")


async def share(server: RedisServer, text: str) -> None:
    client = connect(server.url)
    await call(client, "write_keys", text)
    await disconnect(client)


@asynccontextmanager
async def served(server: RedisServer, keys: KeyFile | None = None) -> AsyncIterator[Stage]:
    """An adapter of the keys in Redis: these, or none yet."""
    if keys is not None:
        await share(server, keys.text)
    async with running_adapter(
        dispatcher=server.url, auth="redis", wait=False, no_worker_grace_s=600
    ) as stage:
        yield stage


async def status_of(stage: Stage, headers: dict[str, str]) -> int:
    return (await stage.request("/status", headers=headers))[0]


async def until_status(stage: Stage, headers: dict[str, str], status: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await status_of(stage, headers) != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_keys_from_redis_are_valid_before_and_after_change(
    redis_server: RedisServer, keys: KeyFile
) -> None:
    async with served(redis_server, keys) as stage:
        assert await status_of(stage, keys.bearer("alice")) == 200
        assert await status_of(stage, {"Authorization": "Bearer ak_invented"}) == 401
        assert await status_of(stage, {}) == 401
        alice = keys.bearer("alice")
        keys.remove("alice")
        keys.add("carol")
        await share(redis_server, keys.text)
        await until_status(stage, keys.bearer("carol"), 200)
        assert await status_of(stage, alice) == 401


async def test_session_of_a_key_that_is_withdrawn_ends(redis_server: RedisServer, keys: KeyFile) -> None:
    async with served(redis_server, keys) as stage:
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            keys.remove("alice")
            await share(redis_server, keys.text)
            assert (await client.end())[1] == 3000


async def test_requests_before_keys_are_loaded_get_503(redis_server: RedisServer, keys: KeyFile) -> None:
    async with served(redis_server) as stage:
        assert await status_of(stage, keys.bearer("alice")) == 503
        assert await status_of(stage, {"Authorization": "Bearer ak_invented"}) == 503
        await share(redis_server, keys.text)
        await until_status(stage, keys.bearer("alice"), 200)


async def test_redis_that_is_gone_ends_no_session(redis_server: RedisServer, keys: KeyFile) -> None:
    async with served(redis_server, keys) as stage:
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            redis_server.stop()
            try:
                await asyncio.sleep(0)
                assert await status_of(stage, keys.bearer("alice")) == 200
                assert await status_of(stage, {"Authorization": "Bearer ak_invented"}) == 401
                assert client.close_code is None
            finally:
                redis_server.start()


async def test_text_that_is_no_file_of_keys_changes_nothing(redis_server: RedisServer, keys: KeyFile) -> None:
    async with served(redis_server, keys) as stage:
        await share(redis_server, "ak_a-secret-by-mistake\n")
        await share(redis_server, "")
        keys.add("carol")
        await share(redis_server, keys.text)
        await until_status(stage, keys.bearer("carol"), 200)
        assert await status_of(stage, keys.bearer("alice")) == 200


async def test_keys_are_in_redis_as_hashes_alone(redis_server: RedisServer, keys: KeyFile) -> None:
    await share(redis_server, keys.text)
    stored = redis_server.command("GET", "antiphon:{tenants}:keys")
    assert all(key.hash.encode() in stored for key in keys.keys.values())
    assert not any(secret.encode() in stored for secret in keys.secrets.values())
