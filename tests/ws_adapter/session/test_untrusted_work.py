"""Tests of isolation: work on a client's untrusted bytes is bounded or offloaded."""

import asyncio
import base64
import io
import json
import os
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pytest
from PIL import Image

from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import INIT, append
from tests.ws_adapter.support.process import adapter_process
from tests.ws_adapter.support.stage import Client, Stage, serving
from ws_adapter.protocol.duplex.realtime_events import ClientEvent
from ws_adapter.protocol.media import reference_voice, wav
from ws_adapter.protocol.media.images import (
    MAX_FILL_BYTES,
    MAX_FRAME_BYTES,
    MAX_SEGMENTS,
    read_frame,
    read_size,
)
from ws_adapter.protocol.wire.codec import EventDecoder, check
from ws_adapter.protocol.wire.errors import Refusal
from ws_adapter.session.readers import READERS, Readers

FILL = b"\xff\xd8" + b"\xff" * (MAX_FRAME_BYTES - 2)
TINY_SEGMENTS = b"\xff\xd8" + b"\xff\xfe\x00\x02" * ((MAX_FRAME_BYTES - 2) // 4)
FAR_SEGMENTS = b"\xff\xd8" + (b"\xff\xfe\x1f\xfe" + bytes(8188)) * 127
TINY_PNG = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\x00tEXt\x00\x00\x00\x00" * 80_000
TINY_WEBP = b"RIFF\x00\x00\x10\x00WEBP" + b"ICCP\x00\x00\x00\x00" * 130_000


def empty_chunks() -> bytes:
    """11 MB: the whole of a message."""
    return b"RIFF\xff\xff\xff\x7fWAVE" + b"junk\x00\x00\x00\x00" * 1_400_000


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Counted(bytes):
    """Counts how often somebody looks into it."""

    looks = 0

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        self.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("data", [FILL, TINY_SEGMENTS, FAR_SEGMENTS, TINY_PNG, TINY_WEBP])
def test_the_walk_over_a_picture_is_bounded(data: bytes) -> None:
    counted = Counted(data)
    assert read_size(counted) is None
    assert counted.looks <= 3 * MAX_SEGMENTS + 2 * MAX_FILL_BYTES + 4


@pytest.mark.parametrize(
    ("form", "options"),
    [
        *(("JPEG", {}), ("JPEG", {"progressive": True})),
        ("JPEG", {"exif": b"Exif\x00\x00" + bytes(30_000), "icc_profile": bytes(200_000)}),
        *(("PNG", {}), ("WEBP", {}), ("WEBP", {"lossless": True}), ("WEBP", {"icc_profile": bytes(200)})),
    ],
)
def test_size_of_every_form_is_found_in_its_first_bytes(form: str, options: dict[str, Any]) -> None:
    file = io.BytesIO()
    Image.new("RGB", (321, 123), "red").save(file, form, **options)
    data = file.getvalue()
    assert read_size(data) == (321, 123)
    for end in (0, 2, 3, 4, 11, 12, 15, 20, 23):
        assert read_size(data[:end]) is None


def test_a_few_fill_bytes_are_no_attack() -> None:
    data = b"\xff\xd8" + b"\xff" * 9 + b"\xe0\x00\x04ab" + b"\xff\xff\xc0\x00\x11\x08\x00\x7b\x01\x41"
    assert read_size(data) == (321, 123)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff",
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR" + b"\xff" * 8,
        b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00" + b"\xff" * 6,
    ],
)
def test_a_bomb_is_known_by_its_size(data: bytes) -> None:
    with pytest.raises(Refusal, match="expected at most 4000000 pixels"):
        read_frame(b64(data), "x")


def test_wav_of_million_empty_chunks_is_rejected_early(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    unpack_from = struct.unpack_from

    def counted(form: str, data: Any, at: int = 0) -> Any:
        looks.append(at)
        return unpack_from(form, data, at)

    monkeypatch.setattr(wav.struct, "unpack_from", counted)
    with pytest.raises(Refusal, match="among the first 64 chunks"):
        wav.read_wav(empty_chunks(), "x")
    assert len(looks) == wav.MAX_CHUNKS


def test_wav_of_a_studio_is_read() -> None:
    form = b"fmt " + struct.pack("<IHHIIHH", 16, 3, 1, 16_000, 64_000, 4, 32)
    chunks = b"LIST\x00\x00\x00\x00" * 60 + form + b"data" + struct.pack("<I", 64_000) + bytes(64_000)
    assert wav.read_wav(b"RIFF\xff\xff\xff\x7fWAVE" + chunks, "x").seconds == 1.0


async def test_a_voice_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    read = reference_voice.read_reference

    def watched(text: str, path: str) -> bytes:
        threads.append(threading.current_thread().name)
        return read(text, path)

    sound = np.random.default_rng(1).uniform(-1, 1, 30 * 16_000).astype("<f4").tobytes()
    async with stage_with_neighbour() as (stage, _), stage.client() as client:
        await client.expect("session.queued")
        monkeypatch.setattr(reference_voice, "read_reference", watched)
        await client.send({**INIT, "payload": {"voice": {"ref_audio_base64": b64(sound)}}})
        await client.send({**INIT})
        assert (await client.expect("error"))["error"]["code"] == "invalid_event", "one after the other"
    assert [name.partition("_")[0] for name in threads] == ["reader"]


BOMBS: list[Callable[[], bytes]] = [
    lambda: b'{"type":"x","a":[' + b",".join([b"[" * 100 + b"]" * 100] * 60_000) + b"]}",
    lambda: (
        b'{"type":"session.init","payload":{"config":{"a":[' + b",".join([b'{"a":[{}]}'] * 65_000) + b"]}}}"
    ),
    lambda: b'{"type":"session.init","payload":{"config":{' + b",".join([b'"a":1'] * 65_000) + b"}}}",
    lambda: b'{"type":"session.init","payload":{"system_prompt":"' + b"\\u00e9" * 2_700_000 + b'"}}',
    lambda: (
        b'{"type":"session.init","payload":{"system_prompt":"' + "\U0001f600".encode() * 4_000_000 + b'"}}'
    ),
    lambda: b'{"type":"x","a":[' + b'"\\"",' * 260_000 + b"0]}",
    lambda: b'{"type":"x","a":[' + b'"",' * 5_000_000,
]


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_bomb_is_refused_unparsed(bomb: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder: EventDecoder[ClientEvent] = EventDecoder(ClientEvent)
    monkeypatch.setattr(decoder, "_typed", None)
    with pytest.raises(Refusal, match="an event has at most"):
        decoder.decode(bomb())


def test_a_long_text_and_the_longest_chat_are_no_bombs() -> None:
    for text in ("," * 60_000, '{"a": [1, 2]}\n' * 9_000, '\\"[' * 40_000, "语" * 200_000):
        check(json.dumps({"type": "x", "text": text}).encode())
    check(json.dumps({"text": "语" * 200_000}, ensure_ascii=False).encode())
    message = {"role": "user", "content": [{"type": "image", "data": "AAAA"}] * 4}
    check(json.dumps({"messages": [message] * 256}, indent=1).encode())


async def test_audio_that_is_far_too_long_is_refused_by_the_length_of_its_text() -> None:
    async with stage_with_neighbour() as (_, neighbour):
        event = append(0)
        event["input"]["audio"] = "AAAA" * 2**21 + " "
        await neighbour.send(event)
        error = (await neighbour.expect("error"))["error"]
        assert error["message"] == "input.audio: expected at most 60 s of audio, got about 6291456 bytes"
        await neighbour.send(append())
        await neighbour.expect("listen")


@asynccontextmanager
async def stage_with_neighbour() -> AsyncIterator[tuple[Stage, Client]]:
    """An adapter whose only slot is somebody's, so that everybody else waits."""
    engine = ScriptedEngine(listen(), slots=1)
    async with serving(engine) as stage:
        async with stage.client() as neighbour:
            await neighbour.begin()
            yield stage, neighbour


def pictures(data: bytes) -> bytes:
    return json.dumps(append(1, video_frames=[b64(data)] * 4)).encode()


def with_voice(data: bytes) -> bytes:
    return json.dumps({**INIT, "payload": {"voice": {"ref_audio_base64": b64(data)}}}).encode()


ATTACKS: dict[str, Callable[[], bytes]] = {
    "fill": lambda: pictures(FILL),
    "segments": lambda: pictures(TINY_SEGMENTS),
    "png": lambda: pictures(TINY_PNG),
    "wav": lambda: with_voice(empty_chunks()),
    "json": BOMBS[0],
}
"""Made where they are used: together they take 100 MB."""

FLOOD_S = 6.0
"""Of a processor: far more than eight such frames take, half of what it took to read them to their end."""


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.sample("segments", "png")
async def test_attack_from_queue_delays_no_session(name: str) -> None:
    """Through an adapter of its own process: one caller attacks again and again, the other talks on."""
    attack = ATTACKS[name]()
    engine = ScriptedEngine(listen(), slots=1, info=EVERYTHING)
    async with running_worker(engine, slots=1) as worker:
        async with adapter_process(worker.address) as (process, address):
            stage = Stage(address, None, None, None, None)  # type: ignore[arg-type]
            await stage.until(ready=True)
            url = stage.url.replace("audio", "video")
            async with stage.client(url) as neighbour, stage.client(url) as attacker:
                await neighbour.begin()
                await attacker.expect("session.queued")
                if b"video_frames" in attack:
                    await attacker.send(INIT)
                begun_s = worked_s(process.pid)
                flood = asyncio.create_task(_flood(attacker, attack))
                for _ in range(10):
                    await neighbour.send(append())
                    await neighbour.expect("listen")
                assert set(await flood) == {"invalid_payload"}
                assert worked_s(process.pid) - begun_s < FLOOD_S


def worked_s(pid: int) -> float:
    """Seconds that a process has spent on processors."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def _flood(attacker: Client, frame: bytes) -> list[str]:
    told = []
    for _ in range(8):
        await attacker.socket.send(frame, text=True)
        while (event := await attacker.next())["type"] != "error":
            pass
        told.append(event["error"]["code"])
    return told


async def test_readers_do_so_many_pieces_at_a_time_and_first_those_with_a_slot() -> None:
    readers, gate, done = Readers(), threading.Event(), list[str]()

    def work(name: str) -> Callable[[], None]:
        def run() -> None:
            gate.wait(PATIENCE_S)
            done.append(name)

        return run

    first = [asyncio.create_task(readers.do(work("first"), has_slot=False)) for _ in range(READERS)]
    await asyncio.sleep(0)
    names = [("a", False), ("b", False), ("left", False), ("talks", True)]
    tasks = {n: asyncio.create_task(readers.do(work(n), has_slot=has_slot)) for n, has_slot in names}
    await asyncio.sleep(0)
    tasks.pop("left").cancel()
    gate.set()
    await asyncio.gather(*first, *tasks.values())
    readers.close()

    assert sorted(done) == ["a", "b", *["first"] * READERS, "talks"]
    assert done.index("talks") < done.index("b"), "two at a time: at most one of the others is before it"


async def test_reader_is_free_after_failed_or_cancelled_work() -> None:
    readers = Readers()

    def fails() -> None:
        raise ValueError

    for _ in range(2 * READERS):
        with pytest.raises(ValueError):
            await readers.do(fails, has_slot=True)
    waiting = [asyncio.create_task(readers.do(lambda: None, has_slot=True)) for _ in range(3 * READERS)]
    await asyncio.sleep(0)
    waiting[-1].cancel()
    waiting[0].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await asyncio.wait_for(readers.do(lambda: 7, has_slot=False), PATIENCE_S) == 7
    readers.close()
