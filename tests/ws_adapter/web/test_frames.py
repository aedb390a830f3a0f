"""Heads of frames, which are read before the library sees any of it."""

import random
from collections.abc import Iterator

import pytest
from websockets.frames import Frame, Opcode

from tests.ws_adapter.web.test_websocket import echoed
from ws_adapter.web.frames import FrameScanner
from ws_adapter.web.websocket import MOST_PARTS

SIZES = (0, 1, 125, 126, 65_535, 65_536, 300_000)


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True, mask: bool = True) -> bytes:
    """As a client sends it."""
    return bytes(Frame(opcode, data, fin).serialize(mask=mask))


def text(size: int) -> bytes:
    """So many letters."""
    return bytes(random.Random(size).choices(b"abcdefgh", k=size))


def cut(data: bytes, longest: int, chance: random.Random) -> Iterator[bytes]:
    """The same, in parts of at most `longest` bytes."""
    while data:
        size = chance.randrange(1, longest + 1)
        yield data[:size]
        data = data[size:]


@pytest.mark.parametrize("longest", [1, 3, 20, 4_000, 2**23])
@pytest.mark.sample("1", "3", "4000", "8388608")
def test_scanner_stream_cut_anywhere_finds_every_frame_and_message(longest: int) -> None:
    chance = random.Random(longest)
    sizes = SIZES[:4] if longest < 20 else SIZES
    stream, heads, whole = b"", [], []
    for size in chance.choices(sizes, k=40):
        opcode, is_masked = chance.choice((Opcode.TEXT, Opcode.BINARY, Opcode.PING)), chance.random() < 0.9
        if opcode is Opcode.PING:
            size = min(size, 125)
        fin = opcode is Opcode.PING or chance.random() < 0.7
        stream += frame(text(size), opcode, fin=fin, mask=is_masked)
        heads.append((int(opcode), fin, size))
        if not fin:
            stream += frame(b"", Opcode.PONG) + frame(b"end", Opcode.CONT)
            heads += [(int(Opcode.PONG), True, 0), (int(Opcode.CONT), True, 3)]
        if opcode is not Opcode.PING:
            whole.append(opcode is Opcode.TEXT)

    scanner = FrameScanner()
    found = []
    for part in cut(stream, longest, chance):
        if not scanner.skip(part):
            found += [(head.opcode, head.is_last, head.size) for head in scanner.scan(part)]

    assert found == heads
    assert scanner.whole == whole
    assert scanner.is_between
    assert scanner.unfinished == 0


def test_scanner_yields_head_before_scanning_next_frame() -> None:
    first, second = frame(b"first"), frame(b"second", Opcode.BINARY)

    heads = FrameScanner().scan(first + second)

    assert next(heads).start == 0
    assert next(heads).start == len(first)


def test_scanner_message_in_part_is_unfinished_until_it_is_whole() -> None:
    scanner = FrameScanner()
    begun, rest = frame(text(300), fin=False), frame(b"", Opcode.PING) + frame(text(10), Opcode.CONT)

    list(scanner.scan(frame(b"whole") + begun))
    assert scanner.unfinished == len(begun)
    assert not scanner.is_between
    list(scanner.scan(rest[:-1]))
    assert scanner.unfinished == len(begun) + len(rest) - 1
    list(scanner.scan(rest[-1:]))
    assert scanner.unfinished == 0
    for _ in range(100):
        list(scanner.scan(frame(b"there?", Opcode.PING)))
    assert scanner.unfinished == 0


@pytest.mark.parametrize("seed", range(8))
async def test_messages_cut_anywhere_arrive_as_sent(seed: int) -> None:
    """Whole messages among fragments, long frames and pings, past the library's parser or through it."""
    chance = random.Random(seed)
    sent, messages = [], []
    for _ in range(40):
        message = text(chance.choice(SIZES[:6]))
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
    async with echoed(max_queue=None, max_size=None) as (client, connection):
        connection.when_text(connection.write_text)
        for one in sent:  # each answered before the next, or the order would be that of two ways
            for part in cut(one, (3_000, 20_000, 70_000, 300_000)[seed % 4], chance):
                connection.data_received(part)
            if one[0] & 0x8F in (0x80, 0x81):
                assert await client.recv(decode=False) == messages.pop(0)
    assert messages == []


async def test_frame_in_many_reads_is_left_to_the_library_and_arrives() -> None:
    """Attack: a byte at a time; an object for each byte would take forty times as much memory."""
    async with echoed() as (client, connection):
        taken: list[bytes] = []
        connection.when_text(lambda text: bool(taken.append(text)) or True)

        sent = frame(text(1000))
        connection.data_received(sent[:14])
        for byte in sent[14:]:
            connection.data_received(bytes([byte]))

        assert await client.recv(decode=False) == text(1000)
        assert taken == []
        assert len(sent) > MOST_PARTS


async def test_frame_that_goes_on_when_the_server_closes_is_read_by_the_library() -> None:
    async with echoed() as (client, connection):
        sent = frame(text(2000))
        connection.data_received(sent[:500])
        connection.protocol.send_close(1000)
        connection.send_data()
        connection.data_received(sent[500:])
        await client.wait_closed()

        assert connection.protocol.parser_exc is None
        assert (client.close_code, connection.closed_with) == (1000, 1000)
