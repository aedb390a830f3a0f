"""A caller of the worker that writes HTTP/2 frames by hand, and so can send invalid ones."""

import asyncio
import socket
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from google.protobuf.message import Message
from hpack import Decoder, Encoder

from antiphon.contract import METADATA_SESSION_ID
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.session.units import Stream
from tests.inference_service.support.caller import duplex, soon, until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 4, 5

SERVICE = "/antiphon.v1.InferenceService/"
GET_INFO = SERVICE + "GetInfo"
SESSION_PARTS = [SERVICE + stream.value for stream in Stream]
PREFILL = SESSION_PARTS[0]
SESSION = (METADATA_SESSION_ID, "s-raw")

Headers = Iterable[tuple[str, str | bytes]]


def frame(kind: int, flags: int, number: int, body: bytes = b"") -> bytes:
    """Return a frame whose length is that of its body."""
    return len(body).to_bytes(3) + struct.pack("!BBL", kind, flags, number) + body


def settings(**values: int) -> bytes:
    """A SETTINGS frame."""
    codes = {"table": HEADER_TABLE_SIZE, "window": INITIAL_WINDOW_SIZE, "frame": MAX_FRAME_SIZE}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack("!HL", codes[name], values[name]) for name in values))


def opened(number: int, more: int) -> bytes:
    """A WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, 0, number, more.to_bytes(4))


def reset(number: int, code: int = 8) -> bytes:
    """Return a RST_STREAM, by default with the code CANCEL."""
    return frame(RST_STREAM, 0, number, code.to_bytes(4))


def framed(message: Message | bytes = b"", *, is_compressed: bool = False) -> bytes:
    """Return a message with the prefix of gRPC."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return bytes([is_compressed]) + len(data).to_bytes(4) + data


class RawCaller:
    """One connection. The worker's frames are read as they arrive."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self.frames: list[tuple[int, int, int, bytes]] = []
        """Kind, flags, number of the stream and body."""
        self.told: defaultdict[int, list[dict[str, str]]] = defaultdict(list)
        """The headers and trailers of each stream."""
        self.body: defaultdict[int, bytes] = defaultdict(bytes)
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        """With which code streams were reset."""
        self.goaway_code: int | None = None
        """The code of the worker's GOAWAY."""
        self.is_over = False
        """Whether the worker has closed the connection."""
        self.encoder = Encoder()
        self._decoder = Decoder()
        self._reader = reader
        self._writer = writer
        self._newest = -1

    def say(self, *data: bytes) -> None:
        """Send bytes unchanged."""
        self._writer.write(b"".join(data))

    async def said(self, *data: bytes) -> None:
        """Send bytes and wait until they have left; the worker may close the connection meanwhile."""
        self.say(*data)
        await asyncio.sleep(0)
        with suppress(ConnectionError):
            await soon(self._writer.drain())

    def greet(self, **values: int) -> None:
        """Send the preface and settings that begin a connection."""
        self.say(PREFACE, settings(**values))

    def head(self, path: str, *more: tuple[str, str | bytes], **changed: str) -> bytes:
        """Return the header block of a call; `changed` replaces header values, `None` leaves one out."""
        values = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "worker",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        values |= {name.replace("_", "-").replace("pseudo-", ":"): value for name, value in changed.items()}
        block: bytes = self.encoder.encode([*values.items(), *more])
        return block

    def call(self, path: str, *more: tuple[str, str | bytes], end: bool = False, **changed: str) -> int:
        """Begin a call and return its stream number."""
        number = self.next_number()
        self.say(frame(HEADERS, END_HEADERS | end, number, self.head(path, *more, **changed)))
        return number

    def next_number(self) -> int:
        """The number of the next stream."""
        self._newest += 2
        return self._newest

    def ask(self, path: str, request: Message | bytes = b"", *more: tuple[str, str | bytes]) -> int:
        """Make a complete call with one request; return its stream number."""
        number = self.call(path, *more)
        self.say(frame(DATA, END_STREAM, number, framed(request)))
        return number

    def hang_up(self) -> None:
        """Cut the connection."""
        self._writer.transport.abort()

    async def status(self, number: int) -> str:
        """Return the status that a call ends with, `reset` if it is reset."""
        await until(lambda: number in self.ended or number in self.resets or self.is_over)
        assert number in self.ended or number in self.resets, "the worker closed the connection"
        return self.told[number][-1].get("grpc-status", "none") if number in self.ended else "reset"

    async def begun(self, number: int) -> None:
        """Wait for the headers of an answer."""
        await until(lambda: self.told[number])

    async def reached(self) -> None:
        """Wait until the worker has handled everything that was sent."""
        before = self.count(PING, ACK)
        self.say(frame(PING, 0, 0, bytes(8)))
        await until(lambda: self.count(PING, ACK) > before or self.is_over)

    def count(self, kind: int, flags: int = 0) -> int:
        """Return the number of frames of a kind that have all of `flags`."""
        return sum(each[0] == kind and each[1] & flags == flags for each in self.frames)

    async def listen(self) -> None:
        """Read frames until the worker closes the connection."""
        try:
            while True:
                head = await self._reader.readexactly(9)
                body = await self._reader.readexactly(int.from_bytes(head[:3]))
                self._hear(head[3], head[4], int.from_bytes(head[5:]), body)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.is_over = True

    def _hear(self, kind: int, flags: int, number: int, body: bytes) -> None:
        self.frames.append((kind, flags, number, body))
        match kind:
            case 0x1:
                headers = self._decoder.decode(body)
                self.told[number].append({str(name): str(value) for name, value in headers})
            case 0x0:
                self.body[number] += body
            case 0x3:
                self.resets.setdefault(number, int.from_bytes(body))
            case 0x7:
                self.goaway_code = int.from_bytes(body[4:8])
            case 0x4 if not flags & ACK:
                self.say(frame(SETTINGS, ACK, 0))
            case 0x6 if not flags & ACK:
                self.say(frame(PING, ACK, 0, body))
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            self.ended.add(number)


@asynccontextmanager
async def dialled(address: str) -> AsyncIterator[RawCaller]:
    """Open a connection without sending anything; cut it at the end of the block."""
    host, _, port = address.rpartition(":")
    with socket.socket() as plain:
        plain.setblocking(False)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**15)  # the network keeps little
        await soon(asyncio.get_running_loop().sock_connect(plain, (host, int(port))))
        sock = plain.dup()
    reader, writer = await soon(asyncio.open_connection(sock=sock, limit=2**24))
    raw = RawCaller(address, reader, writer)
    listening = asyncio.create_task(raw.listen())
    try:
        yield raw
    finally:
        raw.hang_up()
        listening.cancel()
        await asyncio.wait({listening})


@asynccontextmanager
async def greeted(address: str, **values: int) -> AsyncIterator[RawCaller]:
    """Open a connection with the preface and these settings."""
    async with dialled(address) as raw:
        raw.greet(**values)
        await raw.reached()
        yield raw


async def begin_session(raw: RawCaller, *parts: str) -> list[int]:
    """Open calls of a session and wait until they are attached."""
    numbers = [raw.call(path, SESSION) for path in parts]
    for number in numbers:
        await raw.begun(number)
    return numbers


async def begin_unit(raw: RawCaller) -> int:
    """Begin a session with one unit that yields a second of audio; return the stream of its `Generate`."""
    prefill, generate, finalize = await begin_session(raw, *SESSION_PARTS)
    config = pb.PrefillRequest(config=pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO))
    unit = pb.PrefillRequest(unit=1, duplex=duplex())
    run = pb.GenerateRequest(unit=1, run=pb.GenerateUnit())
    raw.say(*(frame(DATA, 0, prefill, framed(each)) for each in (config, unit)))
    raw.say(frame(DATA, 0, generate, framed(run)))
    raw.say(frame(DATA, 0, finalize, framed(pb.FinalizeRequest(unit=1))))
    return generate


def answers_in(body: bytes) -> list[pb.GenerateResponse]:
    """Return the complete messages."""
    found = []
    while len(body) >= 5 and len(body) >= (end := 5 + int.from_bytes(body[1:5])):
        found.append(pb.GenerateResponse.FromString(body[5:end]))
        body = body[end:]
    return found
