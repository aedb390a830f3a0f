"""Names of workers and their addresses."""

import asyncio
import struct

import pytest

from tests.ws_adapter.support.calls import ask, closing, echo, serving
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.rpc import RpcError


async def test_channel_first_address_is_dead_uses_the_next() -> None:
    async with serving() as (_, port), closing(Channel(f"ipv4:127.0.0.2:{port},127.0.0.1:{port}")) as channel:
        await ask(channel)


class NameServer(asyncio.DatagramProtocol):
    """Knows one address of version 4 for every name."""

    def __init__(self) -> None:
        self.address = "127.0.0.1"
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        assert self._transport is not None
        end_of_name = data.index(0, 12) + 1
        kind = struct.unpack_from("!H", data, end_of_name)[0]
        question = data[12 : end_of_name + 4]
        answer = b""
        if kind == 1:
            number = bytes(map(int, self.address.split(".")))
            answer = struct.pack("!HHHLH", 0xC00C, 1, 1, 3600, 4) + number
        head = data[:2] + struct.pack("!HHHHH", 0x8580, 1, int(bool(answer)), 0, 0)
        self._transport.sendto(head + question + answer, sender)


async def test_channel_after_a_lost_connection_resolves_the_name_again() -> None:
    names = NameServer()
    listening, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: names, ("127.0.0.1", 0))
    resolver = listening.get_extra_info("sockname")[1]
    lost: list[None] = []
    async with serving() as (first, port):
        async with closing(Channel(f"worker.test:{port}", lambda: lost.append(None))) as channel:
            channel.target = f"dns://127.0.0.1:{resolver}/worker.test:{port}"
            await ask(channel)
            await first.stop(None)
            await until(lambda: lost)
            async with serving(echo, f"127.0.0.2:{port}"):
                names.address = "127.0.0.2"
                await answered_at_last(channel)
    listening.close()


async def answered_at_last(channel: Channel) -> None:
    """The first attempt may have begun with the old address."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await ask(channel)
            except RpcError:
                continue


async def test_channel_unknown_name_is_unavailable() -> None:
    async with closing(Channel("nobody.invalid:1")) as channel:
        with pytest.raises(RpcError, match=r"UNAVAILABLE: .*nobody\.invalid"):
            await ask(channel)
