"""Reference voices that are slow to parse or to process."""

import base64
import json
import struct
from functools import cache
from typing import Final

import numpy as np

from benchmarks.neighbours.attacks.attack import Attack
from benchmarks.neighbours.attacks.client import AttackClient

CHUNKS: Final = 1_400_000
SECONDS: Final = 30
RATE_HZ: Final = 48_000
_FLOAT: Final = 3


def _init(wav: bytes) -> str:
    voice = {"ref_audio_base64": base64.b64encode(wav).decode()}
    return json.dumps({"type": "session.init", "payload": {"voice": voice}})


def _wav(chunks: bytes) -> bytes:
    return _chunk(b"RIFF", b"WAVE" + chunks)


def _chunk(name: bytes, body: bytes = b"") -> bytes:
    return name + struct.pack("<I", len(body)) + body


@cache
def empty_chunks() -> str:
    """Return a `session.init` whose voice is a WAV file of empty chunks."""
    return _init(_wav(_chunk(b"junk") * CHUNKS))


@cache
def longest() -> str:
    """Return a `session.init` with the longest voice: stereo float32 at the highest rate, 11.5 MB."""
    samples = np.random.default_rng(1).uniform(-0.3, 0.3, SECONDS * RATE_HZ * 2).astype("<f4").tobytes()
    layout = struct.pack("<HHIIHH", _FLOAT, 2, RATE_HZ, RATE_HZ * 8, 8, 32)
    return _init(
        _wav(b"fmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", len(samples)) + samples)
    )


async def bring_empty_chunks(client: AttackClient) -> None:
    """Send a voice of empty chunks for a session, and repeat it after each rejection."""
    async with client.visit("/v1/realtime?mode=audio") as visit:
        await visit.until("session.queue_done")
        while True:
            await visit.say(empty_chunks())
            await visit.until("error", "session.closed")


async def bring_the_longest(client: AttackClient) -> None:
    """Open a session with the longest voice and disconnect when it is processed."""
    async with client.visit("/v1/realtime?mode=audio") as visit:
        await visit.until("session.queue_done")
        await visit.say(longest())
        await visit.until("session.created", "error")


ATTACKS: Final = (
    Attack("wav-of-empty-chunks", bring_empty_chunks, frozenset({"invalid_payload"}), prepare=empty_chunks),
    Attack(
        "longest-voices",
        bring_the_longest,
        frozenset({"session.created"}),
        attackers=4,
        prepare=longest,
    ),
)
