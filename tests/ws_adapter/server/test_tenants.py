"""The tenant of a connection, and the holder for whom slots of direct calls are counted."""

from pathlib import Path

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request

from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.access.http.access import Access, Pass
from ws_adapter.options import AdapterOptions
from ws_adapter.protocol.core.config import Mode
from ws_adapter.web.routes import Dialect, Selection

PROXY = "10.0.0.1"


async def entered(access: Access, peer: str, found: Selection | None = None, **headers: str) -> Pass:
    given = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    request = Request("/", given)
    return await access.enter(request, access.caller(request, peer), found)


def opened() -> Access:
    """Without keys, behind a proxy that is trusted."""
    options = AdapterOptions(
        workers=("127.0.0.1:1",), allow_anonymous=True, trusted_proxies=(PROXY,), host="0.0.0.0"
    )
    return Access(options, ManualClock())


@pytest.mark.parametrize(
    ("peer", "headers", "tenant", "holder"),
    [
        ("192.0.2.7", {}, "address:192.0.2.7", "address:192.0.2.7"),
        ("::ffff:192.0.2.7", {}, "address:192.0.2.7", "address:192.0.2.7"),
        ("127.0.0.1", {}, "address:127.0.0.1", ""),
        (PROXY, {"X_Forwarded_For": "192.0.2.7"}, "address:192.0.2.7", "address:192.0.2.7"),
        (PROXY, {}, "", f"address:{PROXY}"),
        (PROXY, {"X_Forwarded_For": PROXY}, "", f"address:{PROXY}"),
        ("192.0.2.7", {"X_Forwarded_For": "192.0.2.8"}, "", "address:192.0.2.7"),
        ("192.0.2.7", {"Via": "1.1 proxy"}, "", "address:192.0.2.7"),
        ("127.0.0.1", {"X_Forwarded_For": "192.0.2.8"}, "", "address:127.0.0.1"),
    ],
)
async def test_tenant_without_a_key_is_the_address_where_it_is_the_callers_own(
    peer: str, headers: dict[str, str], tenant: str, holder: str
) -> None:
    """A client that forges the headers of a proxy gains neither the tenant of another nor more slots."""
    entry = await entered(opened(), peer, **headers)

    assert (entry.tenant, entry.holder) == (tenant, holder)


async def test_tenant_of_one_ipv6_network_is_one() -> None:
    peers = ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")
    one, same, other = [(await entered(opened(), peer)).tenant for peer in peers]

    assert one == same != other


async def test_tenant_with_a_key_is_the_key_from_wherever_it_comes(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "bob")
    options = AdapterOptions(workers=("127.0.0.1:1",), auth="keys", keys=keys.path)
    access = Access(options, ManualClock())

    entries = [
        await entered(access, peer, Authorization=keys.bearer(name)["Authorization"])
        for peer, name in (("127.0.0.1", "alice"), ("192.0.2.7", "alice"), ("192.0.2.7", "bob"))
    ]

    alice, bob = (f"key:{keys.keys[name].hash}" for name in ("alice", "bob"))
    assert [entry.tenant for entry in entries] == [entry.holder for entry in entries] == [alice, alice, bob]


async def test_client_secret_session_has_no_tenant(tmp_path: Path) -> None:
    """Behind one key there may be all users of a web site."""
    keys = KeyFile(tmp_path / "keys", "site")
    options = AdapterOptions(workers=("127.0.0.1:1",), auth="keys", keys=keys.path)
    access = Access(options, ManualClock())
    expires_at = int(ManualClock().unix()) + 60
    secret = access.client_secrets.make(keys.keys["site"].hash, b'{"type":"realtime"}', expires_at)

    found = Selection(Dialect.REALTIME_GA, Mode.AUDIO)
    entry = await entered(access, "192.0.2.7", found, Authorization=f"Bearer {secret}")

    assert entry.key is not None
    assert entry.tenant == ""
    assert entry.holder == f"key:{entry.key.hash}"
