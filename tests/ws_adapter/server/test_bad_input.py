"""Malformed input over a real connection: one clear error, and nothing to anyone else."""

import asyncio
import json
import os
import struct
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import CLOSE, append, codes, kinds, pcm
from tests.ws_adapter.support.stage import Stage, client_of, running_adapter
from ws_adapter.web.message import SMALL_BURST

RECOVERABLE = [
    (b"[1]", "invalid_payload", None),
    (b"5", "invalid_payload", None),
    (b"{}", "missing_field", "type"),
    (b'{"type":7}', "invalid_payload", "type"),
    (b'{"type":"response.create"}', "unknown_event", "type"),
    (b'{"type":"input.append"}', "missing_field", "input"),
    (b'{"type":"input.append","input":null}', "missing_field", "input"),
    (b'{"type":"input.append","input":{}}', "missing_field", "input.audio"),
    (b'{"type":"input.append","input":{"audio":null}}', "missing_field", "input.audio"),
    (b'{"type":"input.append","input":{"audio":""}}', "missing_field", "input.audio"),
    (b'{"type":"input.append","input":{"audio":5}}', "invalid_payload", "input.audio"),
    (b'{"type":"input.append","input":{"audio":"AAA"}}', "invalid_payload", "input.audio"),
    (b'{"type":"input.append","input":{"audio":"AAA="}}', "invalid_payload", "input.audio"),
    (b'{"type":"input.append","input":{"audio":"AADAfw=="}}', "invalid_payload", "input.audio"),
    (b'{"type":"input.append","input":"x"}', "invalid_payload", "input"),
    (
        b'{"type":"input.append","input":{"hints":{"max_slice_nums":99}}}',
        "invalid_payload",
        "input.hints.max_slice_nums",
    ),
    (b'{"type":"session.close","reason":7}', "invalid_payload", "reason"),
    (b'{"type":"session.init","payload":{}}', "invalid_event", None),
]


async def test_each_recoverable_row_is_one_error_and_the_session_goes_on() -> None:
    async with client_of(ScriptedEngine(listen())) as client:
        await client.begin()
        for frame, code, param in RECOVERABLE:
            await client.socket.send(frame.decode())
            error = (await client.expect("error"))["error"]
            assert (error["code"], error.get("param")) == (code, param), frame
            assert error["type"] == "client_error"
            assert "`" not in error["message"], "no text of a library"
        await client.send(append())
        await client.expect("listen")
        await client.send(CLOSE)
        events, code = await client.end()
        assert kinds(events) == ["session.closed"]
        assert code == 1000


FATAL = [
    ("no json", "invalid_json", 1003),
    ('{"type":"session.close","reason":NaN}', "invalid_json", 1003),
    ('{"type":"session.close","reason":Infinity}', "invalid_json", 1003),
    ("[" * 100_000, "invalid_json", 1003),
    (b"\x00\x01", "invalid_frame", 1003),
    (b'{"type":"session.close"}', "invalid_frame", 1003),
]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("frame", "code", "close"), FATAL, ids=range(len(FATAL)))
async def test_each_fatal_row_is_one_error_and_a_close(
    begun: bool, frame: Any, code: str, close: int
) -> None:
    engine = ScriptedEngine(listen())
    async with client_of(engine) as client:
        if begun:
            await client.begin()
        else:
            await client.expect("session.queue_done")
        await client.socket.send(frame)
        events, close_code = await client.end()
        assert codes(events) == [code]
        assert len(events) == 1
        assert close_code == close


async def test_invalid_utf8_closes_without_an_event() -> None:
    async with client_of(ScriptedEngine(listen())) as client:
        await client.expect("session.queue_done")
        await client.socket.send(b'{"type":"session.close","reason":"\xff"}', text=True)
        assert await client.end() == ([], 1007)


LIMIT = 16 * 2**20


async def test_message_at_the_limit_is_read() -> None:
    async with running_worker(ScriptedEngine(listen())) as worker, running_adapter(worker.address) as stage:
        async with stage.client() as client:
            await client.begin()
            frame = json.dumps({"type": "x", "padding": ""})
            await client.socket.send(frame[:-2] + "x" * (LIMIT - len(frame)) + frame[-2:])
            assert codes([await client.expect("error")]) == ["unknown_event"]


async def test_bad_framing_closes() -> None:
    async with client_of(ScriptedEngine(listen())) as client:
        await client.expect("session.queue_done")
        client.socket.transport.write(b"\x91\x00")  # reserved bits, unmasked
        events, code = await client.end()
        assert (events, code) == ([], 1002)


async def test_error_flood() -> None:
    async with client_of(ScriptedEngine(listen())) as client:
        await client.expect("session.queue_done")
        for _ in range(25):
            await client.socket.send("{}")
        events, code = await client.end()
        assert codes(events) == ["missing_field"] * 20 + ["rate_limited"]
        assert code == 1008


async def test_flood_of_small_events() -> None:
    engine = ScriptedEngine(listen())
    async with client_of(engine) as client:
        await client.begin()
        frame = json.dumps({"type": "input.append", "input": {"audio": pcm(1 / 16_000)}})
        with suppress(ConnectionClosed):
            for _ in range(10 * SMALL_BURST):
                await client.socket.send(frame)
        events, code = await client.end()
        assert codes(events) == ["rate_limited"]
        assert code == 1008


async def test_pings_are_answered_in_every_state() -> None:
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1) as worker, running_adapter(worker.address) as stage:
        async with stage.client() as first, stage.client() as second:
            await first.expect("session.queue_done")
            await second.expect("session.queued")
            for client in (first, second):
                async with asyncio.timeout(PATIENCE_S):
                    await (await client.socket.ping())


async def test_neighbour_is_not_disturbed() -> None:
    async with running_worker(ScriptedEngine(listen()), slots=2) as worker:
        async with running_adapter(worker.address) as stage, stage.client() as good, stage.client() as bad:
            await good.begin()
            await bad.begin()
            await bad.socket.send(b"\x00")
            assert (await bad.end())[1] == 1003
            await good.send(append())
            await good.expect("listen")


async def test_random_bytes_never_break_the_server() -> None:
    async with running_worker(ScriptedEngine(listen())) as worker, running_adapter(worker.address) as stage:
        for _ in range(20):
            await _send_rubbish(stage)
        async with stage.client() as client:
            await client.begin()


async def _send_rubbish(stage: Stage) -> None:
    """A proper upgrade, then bytes of any kind."""
    host, port = stage.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"GET /v1/realtime?mode=audio HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    writer.write(os.urandom(200) + struct.pack("!BBQ", 0x81, 0xFF, 2**40))
    writer.close()


@pytest.mark.parametrize("size", [LIMIT + 1, 2**30, 2**62])
async def test_larger_message_is_refused_by_its_header(size: int) -> None:
    async with client_of(ScriptedEngine(listen())) as client:
        await client.expect("session.queue_done")
        client.socket.transport.write(struct.pack("!BBQI", 0x81, 0xFF, size, 0))
        assert await client.end() == ([], 1009)
