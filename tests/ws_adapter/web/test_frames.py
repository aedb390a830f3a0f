"""Messages of one frame, which pass the library's parser by."""

import os
import random
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.frames import Frame, Opcode

from tests.ws_adapter.web.test_websocket import echoing
from ws_adapter.web import websocket
from ws_adapter.web.frames import WholeFrames
from ws_adapter.web.pieces import PIECE

SIZES = (0, 1, 7, 8, 125, 126, 127, 65_535, 65_536, 85_000, 2 * PIECE - 1)


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    """As a client sends it."""
    return bytes(Frame(opcode, data, fin).serialize(mask=True))


def text(size: int) -> bytes:
    """So many letters."""
    return bytes(random.Random(size).choices(b"abcdefgh", k=size))


def pieces(sent: list[bytes], longest: int, chance: random.Random) -> Iterator[bytes]:
    """All that was sent, cut anywhere, and now and then between two frames."""
    waiting = b""
    for one in sent:
        waiting += one
        end = len(waiting) - chance.choice((0, 0, 1, 2, 10))
        while end > 0:
            size = min(end, chance.randrange(1, longest) if chance.random() < 0.9 else 300_000)
            yield waiting[:size]
            waiting, end = waiting[size:], end - size
    yield waiting


@pytest.mark.parametrize("size", SIZES)
def test_a_frame_is_what_was_sent_however_it_is_cut(size: int) -> None:
    sent, following = frame(text(size)), frame(b"x" * 20)
    for cut in {14, 15, len(sent) // 2, len(sent) - 1, len(sent), len(sent) + 5}:
        if cut < 14:
            continue
        whole, data = WholeFrames(), sent + following
        got, rest = whole.take(data[:cut], None)
        if got is None and len(sent) < 14:
            assert rest == data[:cut], "what is so short is left to the parser"
            continue
        while got is None:
            assert rest == b""
            got, rest = whole.take(data[cut:], None)
            cut = len(data)
        assert got == text(size)
        assert rest == data[len(sent) : cut]


@pytest.mark.parametrize(
    "begin",
    [
        frame(text(100), Opcode.BINARY),
        frame(text(100), fin=False),
        frame(text(100), Opcode.CONT),
        frame(text(100), Opcode.PING),
        frame(b"\x03\xe8" + text(100), Opcode.CLOSE),
        frame(text(2 * PIECE)),
        frame(text(1001)),
        bytes(Frame(Opcode.TEXT, text(100)).serialize(mask=False)),
        b"\xc1" + frame(text(100))[1:],
        b"\x81\xff" + struct.pack("!Q", 2**63) + bytes(10),
    ],
)
def test_all_else_is_left_to_the_parser_untouched(begin: bytes) -> None:
    whole = WholeFrames()

    assert whole.take(begin, 1000) == (None, begin)
    assert whole.give_back() == b""


async def test_messages_are_those_that_were_sent_however_all_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones among fragments, long frames and pings, cut anywhere: also where only a head has come."""
    taken: Counter[str] = Counter()
    take = WholeFrames.take

    def counted(self: WholeFrames, *given: Any) -> Any:
        got = take(self, *given)
        taken["whole"] += got[0] is not None
        return got

    monkeypatch.setattr(websocket.WholeFrames, "take", counted)
    chance = random.Random(7)
    for seed in range(8):
        sent, messages = [], []
        for _ in range(40):
            message = text(chance.choice((*SIZES[:8], 2 * PIECE + 3)))
            kind = chance.choice(("whole", "whole", "fragments", "ping"))
            if kind == "ping":
                sent.append(frame(b"there?", Opcode.PING))
                continue
            messages.append(message)
            if kind == "whole":
                sent.append(frame(message))
            else:
                middle = chance.randrange(len(message) + 1)
                sent += frame(message[:middle], fin=False), frame(b"", Opcode.PING)
                sent.append(frame(message[middle:], Opcode.CONT))
        async with echoing(max_queue=None, max_size=None) as (address, connections):
            async with connect(f"ws://{address}", max_size=None, compression=None) as client:
                await client.send("here")
                assert await client.recv() == "here"
                for piece in pieces(sent, (3, 20, 4_000, 300_000)[seed % 4], chance):
                    connections[0].data_received(piece)
                for message in messages:
                    assert await client.recv(decode=False) == message
    assert taken["whole"] > 15


async def test_a_frame_that_goes_on_when_the_server_closes_is_read_by_the_library() -> None:
    async with echoing() as (address, connections), connect(f"ws://{address}") as client:
        await client.send("here")
        assert await client.recv() == "here"
        (connection,) = connections
        sent = frame(os.urandom(1000).hex().encode())
        connection.data_received(sent[:500])
        connection.protocol.send_close(1000)
        connection.send_data()
        connection.data_received(sent[500:])
        await client.wait_closed()

        assert connection.protocol.parser_exc is None
        assert (client.close_code, connection.closed_with) == (1000, 1000)
