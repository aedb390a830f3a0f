"""Long frames: what arrives is what was sent, however it comes, and no piece of it is long or small."""

import random
from collections.abc import Generator, Iterable

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol
from websockets.server import ServerProtocol

from ws_adapter.web.pieces import PIECE, Pieces

SIZES = (0, 5, 125, 126, 65_535, 65_536, 2 * PIECE - 1, 2 * PIECE, 2 * PIECE + 1, 7 * PIECE + 3)
MOST = 10 * PIECE


class Receiver:
    """The library's parser, which reads pieces, and the frames that it makes of a stream."""

    def __init__(self, most: int | None = MOST) -> None:
        self.protocol = protocol = ServerProtocol(max_size=most)
        protocol.parser = Protocol.parse(protocol)
        next(protocol.parser)
        protocol.state = protocol.state.OPEN
        self.frames: list[Frame] = []
        protocol.recv_frame = self._receive  # type: ignore[method-assign]
        reading = Pieces(protocol.reader, lambda: most)
        protocol.reader.read_exact = reading.read_exact  # type: ignore[method-assign,assignment]

    def _receive(self, frame: Frame) -> None:
        self.frames.append(frame)
        ServerProtocol.recv_frame(self.protocol, frame)

    def feed(self, data: bytes, steps: Iterable[int]) -> None:
        """Gives it data, so many bytes at a time, then the rest."""
        for step in steps:
            self.protocol.receive_data(data[:step])
            data = data[step:]
            if not data:
                return
        self.protocol.receive_data(data)


def body(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def sent(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return bytes(Frame(opcode, data, fin).serialize(mask=True))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [1_021, 65_536, 300_001, 2**23])
def test_a_frame_arrives_as_it_was_sent(size: int, step: int) -> None:
    receiver = Receiver()
    stream = sent(body(size)) + sent(b"next", Opcode.BINARY)
    receiver.feed(stream, [step] * (len(stream) // step))

    *parts, last = receiver.frames
    assert b"".join(part.data for part in parts) == body(size)
    assert [part.opcode for part in parts] == [Opcode.TEXT] + [Opcode.CONT] * (len(parts) - 1)
    assert [part.fin for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (bytes(last.data), last.opcode) == (b"next", Opcode.BINARY)
    assert receiver.protocol.parser_exc is None
    if size >= 2 * PIECE:
        assert all(len(part.data) >= PIECE for part in parts)
        assert len(parts) > 1 or step > 2 * PIECE


def test_a_long_frame_is_unmasked_as_it_comes() -> None:
    receiver = Receiver()
    receiver.feed(sent(body(8 * PIECE))[: 5 * PIECE], [PIECE] * 5)

    assert len(receiver.frames) >= 3


def test_long_fragments_stay_one_message() -> None:
    receiver = Receiver()
    first, second = body(3 * PIECE + 1), body(2 * PIECE + 2)
    stream = sent(first, fin=False) + sent(b"", Opcode.PING) + sent(second, Opcode.CONT)
    receiver.feed(stream, [PIECE // 2] * 20)

    parts = [frame for frame in receiver.frames if frame.opcode is not Opcode.PING]
    assert b"".join(part.data for part in parts) == first + second
    assert [part.fin for part in parts].count(True) == 1
    assert receiver.protocol.parser_exc is None


def test_a_frame_beyond_the_limit_is_refused_by_its_head() -> None:
    receiver = Receiver()
    receiver.feed(sent(body(MOST + 1))[:14], [])

    assert receiver.protocol.close_sent is not None
    assert receiver.protocol.close_sent.code == 1009


def test_a_stream_that_ends_within_a_long_frame() -> None:
    receiver = Receiver()
    receiver.feed(sent(body(8 * PIECE))[: 3 * PIECE], [PIECE])
    receiver.protocol.receive_eof()

    assert isinstance(receiver.protocol.parser_exc, EOFError)


def test_an_unmasked_long_frame_is_refused() -> None:
    receiver = Receiver()
    receiver.feed(bytes(Frame(Opcode.TEXT, body(3 * PIECE)).serialize(mask=False)), [])

    assert receiver.protocol.close_sent is not None
    assert receiver.protocol.close_sent.code == 1002


def test_the_library_reads_frames_as_pieces_expect_it() -> None:
    """Two bytes, the rest of a length, the key, the body: in this order, and nothing else."""
    asked = []
    protocol = ServerProtocol()
    protocol.parser = Protocol.parse(protocol)
    next(protocol.parser)
    protocol.state = protocol.state.OPEN
    read = protocol.reader.read_exact

    def noted(size: int) -> Generator[None, None, bytes | bytearray]:
        asked.append(size)
        return (yield from read(size))

    protocol.reader.read_exact = noted  # type: ignore[method-assign,assignment]
    protocol.receive_data(sent(body(7)) + sent(body(300)) + sent(body(70_000)))

    assert asked[:10] == [2, 4, 7, 2, 2, 4, 300, 2, 8, 4]
    assert asked[10:] == [70_000, 2] or asked[10:] == [70_000]
