"""What the transport of our own does by itself: deadlines as headers, names, addresses."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.v1 import inference_service_pb2 as pb
from tests.ws_adapter.support.calls import Way, echo, message, start_server
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.transport import native_call, native_channel
from ws_adapter.worker.transport.channel import RpcError
from ws_adapter.worker.transport.native_channel import NativeChannel


@pytest.mark.parametrize(("seconds", "text"), [(0.1, "100m"), (86_400.0, "86400000m"), (1e6, "1000000S")])
def test_deadline_as_a_header(seconds: float, text: str) -> None:
    assert native_call._timeout(seconds) == text


def name_worker(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Has `worker.test` resolve to these addresses, in this order."""
    resolve = socket.getaddrinfo

    def resolved(host: str, port: int, *rest: Any, **options: Any) -> Any:
        hosts = addresses if host == "worker.test" else (host,)
        return [info for host in hosts for info in resolve(host, port, *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@contextmanager
def unanswering(host: str, port: int) -> Iterator[None]:
    """An address where connections are never made: no more fit into its backlog."""
    with socket.create_server((host, port), backlog=0) as listener, ExitStack() as clients:
        for _ in range(8):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield


@pytest.mark.parametrize("dead", [("127.0.0.2",), ("127.0.0.2", "127.0.0.3"), ("::1", "127.0.0.2")])
async def test_every_address_of_a_name_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dead: tuple[str, ...]
) -> None:
    monkeypatch.setattr(native_channel, "CONNECT_TIMEOUT_S", 20.0)
    name_worker(monkeypatch, *dead, "127.0.0.1")
    way = Way("native", "tcp", tmp_path)
    async with way.served(echo):
        port = int(way.target.rpartition(":")[2])
        with unanswering("127.0.0.2", port):
            by_name = NativeChannel(f"worker.test:{port}")
            answer = await by_name.ask("Any", message(7, 3), pb.PrefillRequest, timeout_s=20.0)
            assert answer == message(7, 3)
            by_name.close()


async def test_a_name_is_resolved_again_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    question = message(7, 3)
    first, port = await start_server(echo, "127.0.0.1:0")
    name_worker(monkeypatch, "127.0.0.1")
    lost: list[None] = []
    channel = NativeChannel(f"worker.test:{port}", lambda: lost.append(None))
    assert await channel.ask("Any", question, pb.PrefillRequest, timeout_s=20.0) == question
    await first.stop(None)
    await until(lambda: lost)
    moved, _ = await start_server(echo, f"127.0.0.2:{port}")
    monkeypatch.undo()
    name_worker(monkeypatch, "127.0.0.2")
    assert await channel.ask("Any", question, pb.PrefillRequest, timeout_s=20.0) == question
    channel.close()
    await moved.stop(None)


async def test_a_name_that_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: Any, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    channel = NativeChannel("worker.test:1")
    with pytest.raises(RpcError, match=r"UNAVAILABLE: the worker cannot be reached: .*not known"):
        await channel.ask("Any", message(1, 1), pb.PrefillRequest, timeout_s=20.0)
    channel.close()
