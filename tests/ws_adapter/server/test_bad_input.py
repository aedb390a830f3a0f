"""Bytes that no client sends break nothing; tests/conformance/realtime/test_malformed.py has the rules."""

import os
import struct

import pytest

from tests.support.scripted_engine import ScriptedEngine, listen
from tests.ws_adapter.support.stage import client_of, serving

UPGRADE = (
    b"GET /v1/realtime?mode=audio HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def test_random_bytes_behind_an_upgrade_never_break_the_server() -> None:
    async with serving(ScriptedEngine(listen())) as stage:
        for _ in range(20):
            reader, writer = await stage.opened(UPGRADE)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(os.urandom(200) + struct.pack("!BBQ", 0x81, 0xFF, 2**40))
            writer.close()
        async with stage.client() as client:
            await client.begin()


@pytest.mark.parametrize("size", [16 * 2**20 + 1, 2**30, 2**62])
async def test_larger_message_is_refused_by_its_header(size: int) -> None:
    async with client_of(ScriptedEngine(listen())) as client:
        await client.expect("session.queue_done")
        client.socket.transport.write(struct.pack("!BBQI", 0x81, 0xFF, size, 0))
        assert await client.end() == ([], 1009)
