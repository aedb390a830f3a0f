"""Damages inputs: for short runs without coverage guidance."""

import random
from collections.abc import Iterator, Sequence

PIECES = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"-0", b"1e999", b"NaN", b"\0",
    b"\xff", b"\xed\xa0\x80", b"\\ud800", b"=", b"==", b"A" * 4096, b"RIFF", b"WAVE", b"data",
    b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"WEBP", b"..", b"/", b"%00",
    b"\n", b"[" * 2000,
)  # fmt: skip


def mutants(corpus: Sequence[bytes], rng: random.Random) -> Iterator[bytes]:
    while True:
        data = bytearray(rng.choice(corpus))
        for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
            _damage(data, corpus, rng)
        yield bytes(data[: 2**20])


def _damage(data: bytearray, corpus: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randint(0, len(data))
    length = rng.choice((1, 1, 2, 4, 16, 256))
    match rng.randrange(6):
        case 0 if data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        case 1:
            data[at:at] = rng.randbytes(length)
        case 2:
            del data[at : at + length]
        case 3:
            data[at : at + rng.choice((0, length))] = rng.choice(PIECES)
        case 4:
            data[at:at] = data[rng.randint(0, len(data)) :][:length]
        case _:
            other = rng.choice(corpus)
            data[at:] = other[rng.randint(0, len(other)) :]
