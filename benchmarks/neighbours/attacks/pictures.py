"""Pictures whose size is slow to find, and pictures of the maximum size."""

import asyncio
import base64
import io
import json
from contextlib import AsyncExitStack
from functools import cache
from typing import Final

from PIL import Image

from antiphon_command.bench.talker import UNIT_S
from benchmarks.neighbours.attacks.attack import Attack
from benchmarks.neighbours.attacks.audio import SECOND
from benchmarks.neighbours.attacks.client import AttackClient

MOST_BYTES: Final = 2**20
SIDE: Final = 2000
"""The side in pixels of a square picture with the most pixels."""

_NEIGHBOURS: Final = 8
_APPENDS: Final = 20
"""The number of appends on one connection."""


def _append(*pictures: bytes) -> str:
    frames = [base64.b64encode(picture).decode() for picture in pictures]
    return json.dumps({"type": "input.append", "input": {"audio": SECOND, "video_frames": frames}})


@cache
def filled() -> str:
    """Return an append with four JPEGs of fill bytes, in which a parser searches in vain for a marker."""
    return _append(*[b"\xff\xd8" + b"\xff" * (MOST_BYTES - 2)] * 4)


@cache
def largest() -> str:
    """Return an append with four pictures in few bytes and with the most allowed pixels, in every format."""
    picture = Image.linear_gradient("L").resize((SIDE, SIDE)).convert("RGB")

    def saved(kind: str, **options: object) -> bytes:
        file = io.BytesIO()
        picture.save(file, kind, **options)
        data = file.getvalue()
        assert len(data) <= MOST_BYTES, (kind, len(data))
        return data

    return _append(
        saved("JPEG", quality=50),
        saved("JPEG", quality=50, progressive=True),
        saved("PNG", compress_level=9),
        saved("WEBP", quality=50, method=0),
    )


async def fill_in_the_queue(client: AttackClient) -> None:
    """Send pictures of fill bytes while waiting for a slot; no slot is free."""
    async with client.visit("/v1/realtime?mode=video") as visit:
        await visit.until("session.queued")
        for _ in range(_APPENDS):
            await visit.say(filled())


async def fill_in_a_session(client: AttackClient) -> None:
    """Send pictures of fill bytes in a session."""
    async with client.session("video") as visit:
        for _ in range(_APPENDS):
            await visit.say(filled())
            await visit.until("error", "response.output.delta", "session.closed")


async def show_the_largest(client: AttackClient) -> None:
    """Send four of the largest pictures with every second of audio, in the most slices."""
    async with client.session("video", {"max_slice_nums": 9}) as visit:
        for _ in range(_APPENDS):
            await visit.say(largest())
            await asyncio.sleep(UNIT_S)


async def show_in_many_sessions(client: AttackClient) -> None:
    """Send the largest pictures in four sessions at the same time."""
    async with AsyncExitStack() as stack:
        visits = [
            await stack.enter_async_context(client.session("video", {"max_slice_nums": 9})) for _ in range(4)
        ]
        for _ in range(_APPENDS):
            for visit in visits:
                await visit.say(largest())
            await asyncio.sleep(UNIT_S)


ATTACKS: Final = (
    Attack(
        "fill-bytes-in-the-queue",
        fill_in_the_queue,
        frozenset({"not_ready", "invalid_payload", "invalid_event"}),
        slots=_NEIGHBOURS,
        prepare=filled,
    ),
    Attack("fill-bytes", fill_in_a_session, frozenset({"invalid_payload"}), prepare=filled),
    Attack("largest-pictures", show_the_largest, frozenset({"response.output.delta"}), prepare=largest),
    Attack(
        "largest-pictures-of-four",
        show_in_many_sessions,
        frozenset({"response.output.delta"}),
        prepare=largest,
    ),
)
