"""Web pages of other origins."""

from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, running_adapter

ALLOWED = ("https://example.org", "http://localhost:3000")


async def status_of(stage: Stage, **headers: str) -> int:
    try:
        async with connect(stage.url, additional_headers=headers):
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code


LISTED = {
    "https://example.org": 101,
    "HTTPS://Example.ORG": 101,
    "http://localhost:3000": 101,
    "http://example.org": 403,
    "https://example.org:8443": 403,
    "https://example.org.evil.net": 403,
    "null": 403,
    "": 403,
}
BY_DEFAULT = {
    "http://localhost:3000": 101,
    "https://app.localhost": 101,
    "http://127.0.0.1:8080": 101,
    "http://[::1]:8080": 101,
    "https://anybody.example": 403,
    "https://localhost.example": 403,
    "http://192.168.1.5": 403,
    "http://printer": 403,
    "http://[::1": 403,
    "null": 403,
}


@pytest.mark.parametrize(
    ("allowed", "statuses"), [(ALLOWED, LISTED), (None, BY_DEFAULT)], ids=["listed", "default"]
)
async def test_only_allowed_origins_connect_and_by_default_local_ones(
    allowed: tuple[str, ...] | None, statuses: dict[str, int]
) -> None:
    """Attack: a page that the operator looks at opens a session on the port of this machine."""
    async with running_adapter("127.0.0.1:1", wait=False, allowed_origins=allowed) as stage:
        assert {origin: await status_of(stage, Origin=origin) for origin in statuses} == statuses
        assert await status_of(stage) == 101, "of a client that names none"


async def test_from_elsewhere_any_origin_by_default_and_everywhere_if_so_named() -> None:
    elsewhere = {"X-Forwarded-For": "203.0.113.5", "Origin": "https://anybody.example"}
    async with running_adapter("127.0.0.1:1", wait=False, trusted_proxies=("127.0.0.1",)) as stage:
        assert await status_of(stage, **elsewhere) == 101
    async with running_adapter("127.0.0.1:1", wait=False, allowed_origins=("*",)) as stage:
        assert await status_of(stage, Origin="https://anybody.example") == 101


async def test_broad_network_of_trusted_proxies_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """Attack: every pod of 10.0.0.0/8 poses as any client, and so is never limited."""
    async with running_adapter("127.0.0.1:1", wait=False, trusted_proxies=("10.0.0.0/8", "127.0.0.1")):
        pass
    [warning] = [line for line in caplog.messages if line.startswith("trusted proxies:")]
    assert "10.0.0.0/8 has 16777216 addresses" in warning
    assert "--trusted-proxies" in warning


async def test_dns_rebinding_page_is_rejected() -> None:
    """Attack: to the browser such a page is of the same origin, and names none."""
    own = ("localhost:8006", "127.0.0.1:8006", "[::1]:8006", "192.168.1.5:8006", "gateway", "example.org")
    rebound = ("rebound.example:8006", "localhost.rebound.example", "127.0.0.1.rebound.example")
    options: dict[str, Any] = {"admin_port": 0, "allowed_origins": ALLOWED}
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        port, admin_port = int(stage.address.rsplit(":", 1)[1]), stage.adapter.admin_port
        assert admin_port is not None
        for host, status in [*((host, 200) for host in own), *((host, 403) for host in rebound)]:
            for asked, path in ((port, "/status"), (port, "/api/queue"), (admin_port, "/metrics")):
                request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
                assert (await stage.exchange(request, asked)).split()[1] == b"%d" % status, (host, path)


async def test_refusal_is_json() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, allowed_origins=ALLOWED) as stage:
        for path, expected in (("/status", 403), ("/api/queue", 403), ("/health", 200), ("/readyz", 503)):
            status, _, body = await stage.request(path, headers={"Origin": "https://evil.net"})
            assert status == expected
            if status == 403:
                assert body["error"]["code"] == "forbidden"
                assert body["detail"] == body["error"]["message"]
        evil = {"Origin": "https://evil.net"}
        assert (await stage.request("/api/queue/ticket_1", "DELETE", evil))[0] == 403


async def test_origin_counts_also_with_a_good_key(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice")
    options = {"auth": "keys", "keys": keys.path, "allowed_origins": ALLOWED}
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        assert await status_of(stage, Origin="https://evil.net", **keys.bearer("alice")) == 403
        assert await status_of(stage, Origin=ALLOWED[0], **keys.bearer("alice")) == 101
        assert await status_of(stage, Origin=ALLOWED[0]) == 401
