"""Clients that send as much as they can of something small, until they are cut."""

import asyncio
import base64
import json
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tests.support.patience import PATIENCE_S

BLOCK: Final = 2**16

MOST_PAGES: Final = 5_000

_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_FINAL: Final = 0x80
_MASKED: Final = 0x80


class NotCut(Exception):
    """The server has let a flood go on."""


class NotLetIn(Exception):
    """The address has come too often: the flood could not begin."""


@dataclass(frozen=True)
class Flood:
    """Sends `first`, then `frame` again and again, over a WebSocket at `target`."""

    target: str
    frame: bytes
    first: bytes = b""


@dataclass(frozen=True)
class Cut:
    """How a flood ended: the last error told, by its code, and the code of the Close. `answered` counts all
    frames that came."""

    error: str
    close: int
    answered: int


def frame(head: int, payload: bytes = b"") -> bytes:
    """A frame of a client whose first byte is `head`, masked with zeros, which leave the payload as it is."""
    size = len(payload)
    length = bytes([_MASKED | size]) if size < 126 else struct.pack("!BH", _MASKED | 126, size)
    return bytes([head]) + length + bytes(4) + payload


def event(name: str, **fields: Any) -> bytes:
    return frame(_FINAL | _TEXT, json.dumps({"type": name, **fields}).encode())


_AUDIO: Final = "/v1/realtime?mode=audio"
_CHAT: Final = "/v1/realtime?mode=chat"
_HEARS: Final = "/v1/realtime?mode=transcription"
_TURN: Final = {"messages": [{"role": "user", "content": "canary"}]}
_SAMPLE: Final = base64.b64encode(bytes(2)).decode()

FLOODS: Final[Mapping[str, Flood]] = {
    "pings": Flood(_AUDIO, frame(_FINAL | _PING)),
    "large pings": Flood(_AUDIO, frame(_FINAL | _PING, bytes(125))),
    "pongs": Flood(_AUDIO, frame(_FINAL | _PONG)),
    "empty fragments": Flood(_AUDIO, frame(0), frame(_TEXT)),
    "fragments of a byte": Flood(_AUDIO, frame(0, b" "), frame(_TEXT)),
    "pings between fragments": Flood("/ws/chat", frame(0, b" ") + frame(_FINAL | _PING), frame(_TEXT)),
    "events, current": Flood(_AUDIO, event("session.init", payload={})),
    "events, earlier": Flood(_AUDIO, event("session.update", session={})),
    "events, duplex": Flood("/ws/duplex/adx_flood", event("client_diagnostic", text="canary")),
    "events, chat of a socket": Flood("/ws/chat", event("anything")),
    "events, chat": Flood(_CHAT, event("input.append", input=_TURN), event("session.init", payload={})),
    "commands, transcription": Flood(_HEARS, event("input_audio_buffer.commit")),
    "models, transcription": Flood(_HEARS, event("session.update", model="canary")),
    "samples, transcription": Flood(_HEARS, event("input_audio_buffer.append", audio=_SAMPLE)),
    "refused audio, transcription": Flood(_HEARS, event("input_audio_buffer.append", audio="!" * 2000)),
    "no events, transcription": Flood(_HEARS, frame(_FINAL | _TEXT, b"0")),
}
"""By what they send; those of one byte and of none are the cheapest to send and the dearest to take apart."""


async def flood(address: str, what: Flood, headers: Mapping[str, str] | None = None) -> Cut:
    """Floods the adapter at `address` until it closes, and says how it did. Raises `NotCut`, `NotLetIn`."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    key = base64.b64encode(os.urandom(16)).decode()
    given = {
        "Host": host,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
        **(headers or {}),
    }
    lines = [f"GET {what.target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    try:
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 429 "):
                raise NotLetIn
            assert head.startswith(b"HTTP/1.1 101 "), head
            pouring = asyncio.create_task(_pour(writer, what))
            try:
                return await _read_cut(reader)
            finally:
                pouring.cancel()
                await asyncio.gather(pouring, return_exceptions=True)
    except (TimeoutError, asyncio.IncompleteReadError) as error:
        raise NotCut(f"no Close has come: {error}") from error
    finally:
        writer.transport.abort()


async def _pour(writer: asyncio.StreamWriter, what: Flood) -> None:
    block = what.frame * max(BLOCK // len(what.frame), 1)
    with suppress(ConnectionError):
        writer.write(what.first)
        while True:
            writer.write(block)
            await writer.drain()


async def _read_cut(reader: asyncio.StreamReader) -> Cut:
    told, answered = "", 0
    while True:
        first, second = await reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await reader.readexactly(8))
        payload = await reader.readexactly(size)
        answered += 1
        if first & 0x0F == _CLOSE:
            return Cut(told, struct.unpack("!H", payload[:2])[0], answered)
        if first & 0x0F == _TEXT:
            said = json.loads(payload)
            if "error" in said:
                error = said["error"]
                told = str(error["code"] if isinstance(error, dict) else said["code"])


async def flood_pages(address: str, path: str, visitor: str) -> int:
    """Asks for `path` as `visitor`, whom a trusted proxy names, until told to stop; returns how often it was
    served. Raises `NotCut`."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {visitor}\r\n\r\n".encode()
    async with asyncio.timeout(PATIENCE_S):
        for served in range(MOST_PAGES):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            answer = await reader.read()
            writer.close()
            if answer.startswith(b"HTTP/1.1 429 "):
                return served
    raise NotCut(f"{MOST_PAGES} pages were served")
