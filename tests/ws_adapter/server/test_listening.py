"""A listener takes every address of its host, or reports the one that it cannot have and exits."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from antiphon_command.commands.serve import _check_free
from antiphon_command.output.failure import ExitCode, Failure
from antiphon_service.listening import bind_all
from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.stage import running_adapter
from ws_adapter.app import serve
from ws_adapter.options import AdapterOptions
from ws_adapter.server.listener import ACCEPTED_AT_ONCE
from ws_adapter.web.websocket import PublicConnection

HOST = "localhost"
ADDRESSES = ("127.0.0.1", "127.0.0.2")
PORTS = {
    "--port": ("host", "port"),
    "--admin-port": ("admin_host", "admin_port"),
    "--grpc-port": ("grpc_host", "grpc_port"),
}


@pytest.fixture(autouse=True)
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name means two addresses, as `localhost` does where IPv6 is."""
    resolve: Callable[..., list[Any]] = socket.getaddrinfo

    def resolve_both(host: Any, *arguments: Any, **named: Any) -> list[Any]:
        hosts = ADDRESSES if host == HOST else (host,)
        return [found for each in hosts for found in resolve(each, *arguments, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_both)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another process has on the second address alone."""
    with closing(socket.create_server((ADDRESSES[1], 0))) as other:
        yield int(other.getsockname()[1])


@pytest.mark.parametrize("option", PORTS)
async def test_adapter_that_cannot_have_one_address_says_which_and_exits(
    option: str, taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The attack: another user takes the address of the name that the adapter does not look at."""
    with pytest.raises(Failure, match="one of the addresses of localhost") as failure:
        _check_free(HOST, taken)
    assert failure.value.code == ExitCode.USAGE
    host, port = PORTS[option]
    options: dict[str, Any] = {"port": 0, host: HOST, port: taken}

    assert await serve(AdapterOptions(workers=("127.0.0.1:1",), **options)) == 2

    told = capsys.readouterr().err
    assert told == (
        f"Port {taken} is in use by another process on 127.0.0.2, one of the addresses of localhost. "
        f"Choose another with {option}, or stop it.\n"
    )
    with closing(socket.create_server((ADDRESSES[0], taken))):
        pass  # nothing of it is left on the first address


async def test_adapter_has_one_port_on_all_addresses() -> None:
    """Any free port is the same one on all of them."""
    names = {"host": HOST, "admin_host": HOST, "admin_port": 0, "grpc_host": HOST, "grpc_port": 0}
    async with running_adapter("127.0.0.1:1", wait=False, **names) as stage:
        public = int(stage.address.rpartition(":")[2])
        for port in (public, stage.adapter.admin_port, stage.adapter.grpc_port):
            for address in ADDRESSES:
                _, writer = await asyncio.open_connection(address, port)
                writer.close()


def test_address_that_the_machine_does_not_have_leaves_nothing_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ws_adapter.server.test_listening.ADDRESSES", ("127.0.0.1", "192.0.2.1"))
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]

    with pytest.raises(OSError, match="assign requested address"):
        bind_all(HOST, port)

    with closing(socket.create_server(("127.0.0.1", port))):
        pass


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_addresses_of_both_families_share_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ws_adapter.server.test_listening.ADDRESSES", ("127.0.0.1", "::1"))
    sockets = bind_all(HOST, 0)
    try:
        assert [sock.family for sock in sockets] == [socket.AF_INET, socket.AF_INET6]
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        for sock in sockets:
            sock.close()


async def test_crowd_that_connects_at_once_is_accepted_a_few_in_each_pass_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[PublicConnection] = []
    original = PublicConnection.connection_made

    def count(connection: PublicConnection, transport: asyncio.BaseTransport) -> None:
        made.append(connection)
        original(connection, transport)

    monkeypatch.setattr(PublicConnection, "connection_made", count)
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        host, port = stage.address.removeprefix("http://").split(":")
        made.clear()
        # The kernel takes them all before the event loop sees one.
        crowd = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(40)]
        seen = []
        async with asyncio.timeout(PATIENCE_S):
            while len(made) < len(crowd):
                before = len(made)
                await asyncio.sleep(0)
                seen.append(len(made) - before)
        assert max(seen) <= ACCEPTED_AT_ONCE
        for sock in crowd:
            sock.close()
