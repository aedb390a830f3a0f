"""Tests of the adapter benchmarks: compared codecs agree, and the clients understand the adapter."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from benchmarks.adapter import codec, live
from benchmarks.adapter.cost import ClosedLoop
from benchmarks.adapter.resume import ResumingClient
from benchmarks.load.client import converse, text_frame
from benchmarks.load.crowd import Crowd
from benchmarks.load.payload import ANSWER, APPEND, SPEECH
from benchmarks.report import Goal, Report
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker, speak
from tests.ws_adapter.support.stage import running_adapter, until
from ws_adapter.protocol.wire.codec import Clip


def test_both_codecs_do_the_same() -> None:
    clip: Any = codec.decode()
    assert isinstance(clip, Clip)
    assert np.array_equal(clip.samples, codec.decode_plainly())  # type: ignore[call-overload]
    assert json.loads(codec.write()) == json.loads(codec.write_plainly())


@pytest.mark.parametrize(
    ("size", "head"),
    [(5, b"\x81\x85"), (200, b"\x81\xfe\x00\xc8"), (70_000, b"\x81\xff" + (70_000).to_bytes(8))],
)
def test_frames_of_every_length(size: int, head: bytes) -> None:
    assert text_frame(b"x" * size).startswith(head)


async def test_clients_count_answers() -> None:
    async with running_worker(ScriptedEngine(*[speak("Hello")] * 6, slots=4), slots=4) as worker:
        async with running_adapter(worker.address) as stage:
            port = int(stage.address.rpartition(":")[2])
            heard: asyncio.Queue[bytes] = asyncio.Queue()
            client = await converse(port, lambda _, event: heard.put_nowait(event))
            client.send(text_frame(APPEND))
            async with asyncio.timeout(PATIENCE_S):
                assert ANSWER in await heard.get()

            crowd = Crowd(port)
            await crowd.fill(2)
            crowd.begin()
            crowd.active = 2
            await until(lambda: crowd.tally.good >= 4)
            await crowd.leave()
            client.transport.abort()

    assert (crowd.tally.dropped, crowd.tally.late) == (0, 0)
    assert len(crowd.tally.latencies) == crowd.tally.good


async def test_client_after_lost_connection_resumes_its_session() -> None:
    engine = ScriptedEngine(*[speak("Hello")] * 6, slots=1)
    async with running_worker(engine, slots=1) as worker:
        async with running_adapter(worker.address, resume_window_s=60) as stage:
            client = ResumingClient(int(stage.address.rpartition(":")[2]))
            await client.begin()
            client.speak()
            await until(lambda: client.tally.good == 1)
            for count in (2, 3):
                client.cut()
                await client.reconnect()
                client.speak()
                await until(lambda count=count: client.tally.good == count)  # type: ignore[misc]
            client.cut()
    assert len(engine.sessions) == 1


async def test_talker_distinguishes_answer_from_silence() -> None:
    engine = ScriptedEngine(listen(), *[speak("Hello")] * 6, slots=1)
    async with running_worker(engine, slots=1) as worker, running_adapter(worker.address) as stage:
        caller = live.LiveClient("scripted")
        await caller.connect(int(stage.address.rpartition(":")[2]))
        assert caller.client is not None
        async with asyncio.timeout(PATIENCE_S):
            caller.client.send(live.piece(1.1, 0.0))
            assert not caller.speaks.is_set()
            caller.client.send(live.piece(1.1, 0.0))
            await caller.speaks.wait()
        caller.client.transport.abort()

    assert caller.sound_at > 0


async def test_chain_keeps_a_server_busy() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        while True:
            await reader.readexactly(len(text_frame(APPEND)))
            # Something long that is no answer, then one.
            writer.write(b"\x81\x7f" + len(SPEECH).to_bytes(8) + SPEECH + b"\x81\x08" + ANSWER)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    load = ClosedLoop()
    await load.connect(server.sockets[0].getsockname()[1], has_sessions=False)
    await load.run(0.1)
    server.close()

    assert load.answers > 0


def test_report_lists_goals_and_writes_plain_json(tmp_path: Any) -> None:
    goals = (Goal("low", 1.25, 1.3), Goal("high", 1.5, 1.8, at_most=False))
    report = Report("x", "Title", ("what", "us"), [("a", 123.4), ("b", float("nan"))], goals)
    report.write(is_short=True, folder=tmp_path)
    assert "low: 1.25 (<= 1.3: met)" in report.table()
    assert "high: 1.50 (>= 1.8: MISSED)" in report.table()
    figures = json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda _: 1 / 0)
    assert figures["rows"] == [{"what": "a", "us": 123.4}, {"what": "b", "us": None}]
