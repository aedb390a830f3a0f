"""Web pages of other origins."""

from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.adapter.keyfile import KeyFile
from tests.adapter.stage import Stage, running_adapter
from tests.scripted_engine import ScriptedEngine, listen, running_worker

ALLOWED = ("https://example.org", "http://localhost:3000")


async def status_of(stage: Stage, **headers: str) -> int:
    try:
        async with connect(stage.url, additional_headers=headers):
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://example.org", 101),
        ("HTTPS://Example.ORG", 101),
        ("http://localhost:3000", 101),
        ("http://example.org", 403),
        ("https://example.org:8443", 403),
        ("https://example.org.evil.net", 403),
        ("null", 403),
        ("", 403),
    ],
)
async def test_only_allowed_origins_connect(origin: str, status: int) -> None:
    async with running_adapter("127.0.0.1:1", wait=False, allowed_origins=ALLOWED) as stage:
        assert await status_of(stage, Origin=origin) == status


async def test_clients_that_name_no_origin_connect() -> None:
    async with running_worker(ScriptedEngine(listen())) as worker:
        async with running_adapter(worker.address, allowed_origins=ALLOWED) as stage:
            async with stage.client() as client:
                await client.begin()


async def test_any_origin_by_default() -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        assert await status_of(stage, Origin="https://anybody.example") == 101


async def test_refusal_is_json() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, allowed_origins=ALLOWED) as stage:
        for path, expected in (("/status", 403), ("/api/queue", 403), ("/health", 200), ("/readyz", 503)):
            status, _, body = await stage.request(path, headers={"Origin": "https://evil.net"})
            assert status == expected
            if status == 403:
                assert body["error"]["code"] == "forbidden"
                assert body["detail"] == body["error"]["message"]


async def test_no_page_gives_up_the_places_of_others() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, allowed_origins=ALLOWED) as stage:
        evil = {"Origin": "https://evil.net"}
        assert (await stage.request("/api/queue/ticket_1", "DELETE", evil))[0] == 403


async def test_origin_counts_also_with_a_good_key(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    options = {"auth": "keys", "keys": keys.path, "allowed_origins": ALLOWED}
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        assert await status_of(stage, Origin="https://evil.net", **keys.bearer("alice")) == 403
        assert await status_of(stage, Origin=ALLOWED[0], **keys.bearer("alice")) == 101
        assert await status_of(stage, Origin=ALLOWED[0]) == 401
