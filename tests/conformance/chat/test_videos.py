"""Video parts, with the checkpoint of the package behind both doors."""

import base64
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conformance.support.chat_words import CHAT, REALTIME, begin
from tests.conformance.support.client import Event
from tests.conformance.support.recordings import recording
from tests.conformance.support.stack import Stack
from tests.support.drawing import picture
from tests.support.hostile_videos import sound_alone
from tests.support.long import long
from tests.support.videos import numbered, short, shown, video

LONG_S = 60.0
CODECS = {"mp4": "libx264", "webm": "libvpx-vp9"}


def film(colour: str, shape: str, container: str, sound: NDArray[np.float32] | None = None) -> bytes:
    """A shape, for two seconds or as long as somebody speaks."""
    seconds = 2.0 if sound is None else len(sound) / 16_000
    frames = shown(picture(colour, shape), seconds)
    return video(frames, rate=10, container=container, codec=CODECS[container], sound=sound)


def asked(data: bytes, *texts: str, **fields: object) -> Event:
    parts = [
        {"type": "video", "data": base64.b64encode(data).decode()},
        *({"type": "text", "text": text} for text in texts),
    ]
    drawn = {"temperature": 0, "max_new_tokens": 32}
    told = {"generation": drawn, "tts": {"enabled": False}, **fields}
    return {"messages": [{"role": "user", "content": parts}], **told}


async def answer(shipped: Stack, request: Event) -> Event:
    async with shipped.client(CHAT) as client:
        client.ignored = {"queued", "queue_update", "queue_done"}
        await client.send(request)
        return (await client.until("done", LONG_S))[-1]


@pytest.mark.parametrize("container", CODECS)
@pytest.mark.parametrize(("colour", "shape"), [("red", "circle"), ("yellow", "triangle")])
@pytest.mark.sample("yellow-triangle-webm")
async def test_answer_names_what_a_video_shows(
    shipped: Stack, container: str, colour: str, shape: str
) -> None:
    done = await answer(shipped, asked(film(colour, shape, container), "what do you see?"))

    assert done["text"].strip() == f"i see a {colour} {shape}"


@pytest.mark.parametrize("container", CODECS)
@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("light", "the light is on"),
        ("joke", "why did the robot cross the road because a chicken programmed it"),
        ("vision", "i see a blue square"),
    ],
)
@pytest.mark.sample("light-*-webm")
async def test_voice_in_a_video_is_answered(shipped: Stack, container: str, name: str, reply: str) -> None:
    data = film("blue", "square", container, recording(name))

    assert (await answer(shipped, asked(data, omni_mode=True)))["text"].strip() == reply


@long
async def test_video_on_a_connection_of_many_turns(shipped: Stack) -> None:
    async with shipped.client(REALTIME) as client:
        client.ignored = {"session.queued", "session.queue_update"}
        await begin(client)
        await client.send({"type": "input.append", "input": asked(short()[:-100], "what do you see?")})
        refused = await client.next(LONG_S)
        assert (refused["error"]["code"], refused["error"]["param"]) == (
            "invalid_payload",
            "input.messages[0].content[0].video",
        )
        assert refused["error"]["message"] == "input.messages[0].content[0].video: is cut short"
        assert (await client.next())["reason"] == "error"

        await client.send(
            {"type": "input.append", "input": asked(film("red", "circle", "mp4"), "what do you see?")}
        )
        done = (await client.until("response.done", LONG_S))[-1]

    assert done["text"].strip() == "i see a red circle"
    assert done["usage"]["input_token_details"]["vision_tokens"] == 8


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "not a video": (
        lambda: b"GIF89a" + bytes(99),
        "expected an MP4, MOV, WebM or Matroska file, got something else",
    ),
    "cut short": (lambda: short()[:-100], "is cut short"),
    "no pictures": (sound_alone, "has no moving pictures"),
    "too long": (lambda: video(numbered(601, (32, 32)), rate=1), "must last at most 600 s, not 601.0 s"),
    "too large": (lambda: video(numbered(1, (4112, 64))), "must be at most 4096 x 4096, not 4112 x 64"),
    "unknown codec": (lambda: video(numbered(4), codec="mpeg4"), "has pictures in mpeg4"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.sample("cut short", "too large")
async def test_refusal_says_why_and_frees_the_slot(shipped: Stack, name: str) -> None:
    make, told = REFUSED[name]
    slots = (await shipped.request("/ready"))[1]["slots"]
    async with shipped.client(CHAT) as client:
        client.ignored = {"queued", "queue_update", "queue_done"}
        await client.send(asked(make()))
        events, code = await client.end()

    assert (events[-1]["code"], code) == ("invalid_payload", 1008)
    assert told in events[-1]["error"]
    assert events[-1]["error"].startswith("messages[0].content[0].")
    await shipped.until(free_slots=slots)


async def test_client_that_leaves_while_its_video_is_decoded_frees_its_slot(shipped: Stack) -> None:
    slots = (await shipped.request("/ready"))[1]["slots"]
    long = video(numbered(6000, (32, 32)), rate=10)
    async with shipped.client(CHAT) as client:
        await client.send(asked(long))
        await shipped.until(free_slots=slots - 1)
        client.vanish()
    await shipped.until(free_slots=slots)
