"""An address or a key may connect only so often, and so many times at once."""

import asyncio
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from tests.support.patience import PATIENCE_S
from tests.ws_adapter.access.test_keys import refused_upgrade
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock, Stage, running_adapter
from tests.ws_adapter.web.test_http1 import HANDSHAKE
from ws_adapter.access import rate_limit
from ws_adapter.access.rate_limit import Bounds, RateLimits, TooMany, client_address

BEHIND_PROXY = {"wait": False, "trusted_proxies": ("127.0.0.0/8",)}
"""On loopback nobody is limited, so these tests come as from elsewhere."""


def coming_from(address: str) -> dict[str, str]:
    return {"X-Forwarded-For": address}


async def test_burst_is_allowed_and_tokens_come_back_evenly() -> None:
    clock = ManualClock()
    counter = RateLimits(clock, "address")
    bounds = Bounds(3, 0)

    def is_refused() -> TooMany:
        with pytest.raises(TooMany) as refusal:
            counter.enter("a", bounds)
        return refusal.value

    for _ in range(3):
        counter.enter("a", bounds)()
    assert is_refused().retry_s == 20
    assert "within a minute is 3" in is_refused().message
    counter.enter("b", bounds)()
    await clock.advance(19)
    assert is_refused().retry_s == 1
    await clock.advance(1)
    counter.enter("a", bounds)()
    is_refused()
    await clock.advance(3600)
    for _ in range(3):
        counter.enter("a", bounds)()
    is_refused()


def test_connections_at_once_are_bounded_unless_there_are_no_limits() -> None:
    counter = RateLimits(ManualClock(), "key")
    bounds = Bounds(0, 2)
    leave, _ = counter.enter("a", bounds), counter.enter("a", bounds)

    with pytest.raises(TooMany, match="the most connections of one key at once is 2"):
        counter.enter("a", bounds)
    counter.enter("b", bounds)
    leave()
    counter.enter("a", bounds)
    for _ in range(1000):
        counter.enter("c", Bounds(0, 0))


def test_rate_limit_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "REMEMBERED", 10)
    counter = RateLimits(ManualClock(), "address")
    bounds = Bounds(1, 1)
    for number in range(1000):
        counter.enter(f"client {number}", bounds)()

    assert len(counter._buckets) == 10
    assert len(counter._open) == 0
    with pytest.raises(TooMany):
        counter.enter("client 999", bounds)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_never_more_than_allowed_at_once(steps: list[tuple[str, bool]]) -> None:
    counter = RateLimits(ManualClock(), "address")
    bounds = Bounds(0, 2)
    leaving: dict[str, list[object]] = {"a": [], "b": [], "c": []}
    for client, comes in steps:
        if comes:
            if len(leaving[client]) < 2:
                leaving[client].append(counter.enter(client, bounds))
            else:
                with pytest.raises(TooMany):
                    counter.enter(client, bounds)
        elif leaving[client]:
            leaving[client].pop()()  # type: ignore[operator]
    assert dict(counter._open) == {name: len(held) for name, held in leaving.items() if held}


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.5", [], "203.0.113.5"),
        ("203.0.113.5", ["198.51.100.1"], "203.0.113.5"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66", "198.51.100.1,10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["198.51.100.1, nonsense"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:203.0.113.5", [], "203.0.113.5"),
        ("fe80::1%eth0", [], "fe80::1"),
    ],
)
def test_address_behind_proxies(peer: str, forwarded: list[str], address: str) -> None:
    assert client_address(peer, forwarded, [ip_network("10.0.0.0/8")]) == ip_address(address)


async def open_from(stage: Stage, address: str, **headers: str) -> ClientConnection:
    return await connect(stage.url, additional_headers={**coming_from(address), **headers})


async def refused_from(stage: Stage, address: str, **headers: str) -> Response:
    return await refused_upgrade(stage, additional_headers={**coming_from(address), **headers})


async def test_too_many_connections_from_one_address() -> None:
    """An address that a trusted proxy cannot name is one too."""
    async with running_adapter("127.0.0.1:1", connections_per_address=2, **BEHIND_PROXY) as stage:
        for address in ("unknown", "203.0.113.5"):
            first, second = await open_from(stage, address), await open_from(stage, address)

            refusal = await refused_from(stage, address)

            assert refusal.status_code == 429
            assert int(refusal.headers["Retry-After"]) > 0
            assert b'"code":"rate_limited"' in refusal.body
            other = await open_from(stage, "203.0.113.6")
            await first.close()
            third = await open_until(stage, address)
            for socket in (second, other, third):
                await socket.close()


async def test_no_more_than_allowed_slip_in_at_the_same_time() -> None:
    async with running_adapter("127.0.0.1:1", connections_per_address=4, **BEHIND_PROXY) as stage:
        attempts = [open_from(stage, "203.0.113.5") for _ in range(40)]

        outcomes = await asyncio.gather(*attempts, return_exceptions=True)

        refusals = [outcome for outcome in outcomes if isinstance(outcome, InvalidStatus)]
        sockets = [outcome for outcome in outcomes if isinstance(outcome, ClientConnection)]
        assert (len(sockets), len(refusals)) == (4, 36)
        assert {refusal.response.status_code for refusal in refusals} == {429}
        for socket in sockets:
            await socket.close()


async def open_until(stage: Stage, address: str) -> ClientConnection:
    """The server may learn of the end of a connection after the client."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await open_from(stage, address)
            except InvalidStatus:
                await asyncio.sleep(0.01)


async def test_connection_cut_in_its_handshake_is_counted_no_longer() -> None:
    async with running_adapter("127.0.0.1:1", connections_per_address=1, **BEHIND_PROXY) as stage:
        host, port = stage.address.removeprefix("http://").split(":")
        for key in (b"not valid", b"AAAAAAAAAAAAAAAAAAAAAA=="):
            _, writer = await asyncio.open_connection(host, int(port))
            handshake = HANDSHAKE.replace(b"AAAAAAAAAAAAAAAAAAAAAA==", key)
            writer.write(handshake + b"X-Forwarded-For: 203.0.113.5\r\n\r\n")
            await writer.drain()
            writer.transport.abort()

        await (await open_until(stage, "203.0.113.5")).close()


async def test_attempts_of_one_address_with_good_and_wrong_keys_are_limited_and_hold_no_connection(
    tmp_path: Path,
) -> None:
    clock, keys = ManualClock(), KeyFile(tmp_path / "keys", "alice")
    options: dict[str, Any] = {"connections_per_address": 1, "opens_per_min_per_address": 3, **BEHIND_PROXY}
    options |= {"auth": "keys", "keys": keys.path, "clock": clock}
    async with running_adapter("127.0.0.1:1", **options) as stage:
        alice = coming_from("203.0.113.5") | keys.bearer("alice")
        for _ in range(2):
            refusal = await refused_from(stage, "203.0.113.5", Authorization="Bearer guess")
            assert refusal.status_code == 401
        await (await open_from(stage, "203.0.113.5", **keys.bearer("alice"))).close()
        for key in ({"Authorization": "Bearer guess"}, keys.bearer("alice")):
            refusal = await refused_from(stage, "203.0.113.5", **key)
            assert (refusal.status_code, refusal.headers["Retry-After"]) == (429, "20")
        assert (await stage.request("/status", headers=alice))[0] == 200
        await clock.advance(20)
        await (await open_from(stage, "203.0.113.5", **keys.bearer("alice"))).close()


async def test_this_machine_is_not_limited() -> None:
    options = {"connections_per_address": 1, "opens_per_min_per_address": 1}
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        sockets = [await connect(stage.url) for _ in range(3)]
        for socket in sockets:
            await socket.close()


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "Via"])
async def test_clients_of_an_unnamed_proxy_on_this_machine_are_limited_as_one(
    header: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without `trusted_proxies` nobody can claim an address, and a proxy's clients are not this machine."""
    async with running_adapter("127.0.0.1:1", wait=False, connections_per_address=1) as stage:
        socket = await connect(stage.url, additional_headers={header: "203.0.113.5"})
        for address in ("203.0.113.5", "203.0.113.6"):
            refusal = await refused_upgrade(stage, additional_headers={header: address})
            assert refusal.status_code == 429
        own = await connect(stage.url)  # which is not through the proxy
        for opened in (socket, own):
            await opened.close()

    warnings = [record.getMessage() for record in caplog.records if "proxy" in record.getMessage()]
    assert len(warnings) == 1
    assert "--trusted-proxies" in warnings[0]


async def test_pages_for_one_address_are_counted() -> None:
    clock = ManualClock()
    options = {"pages_per_min_per_address": 3, **BEHIND_PROXY}
    async with running_adapter("127.0.0.1:1", clock=clock, **options) as stage:

        async def ask(path: str, address: str, method: str = "GET") -> int:
            return (await stage.request(path, method, coming_from(address)))[0]

        seen = [await ask(path, "203.0.113.5") for path in ("/status", "/nothing", "/v1/realtime")]
        refused = await stage.request("/health", headers=coming_from("203.0.113.5"))

        assert seen == [200, 404, 426]
        assert (refused[0], refused[1]["retry-after"]) == (429, "20")
        assert refused[2]["error"]["code"] == "rate_limited"
        assert await ask("/api/queue/ticket_1", "203.0.113.5", "DELETE") == 429
        assert await ask("/health", "203.0.113.6") == 200
        assert (await stage.request("/health"))[0] == 200
        await clock.advance(20)
        assert await ask("/health", "203.0.113.5") == 200
        page = await refused_upgrade(stage, "/status", additional_headers=coming_from("203.0.113.5"))
        assert page.status_code == 429
