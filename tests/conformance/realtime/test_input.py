"""Audio and pictures of `/v1/realtime`: the model tells four samples of each unit, and each picture."""

import asyncio
import base64
import hashlib
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conformance.support.match import INPUT_ID, Text, error
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import G3, TELLS, Words, both, told
from tests.support.scripted_engine import listen, speak
from tests.ws_adapter.support.conversation import Conversation, ready_signal
from ws_adapter.protocol.core.config import Mode

VIDEO = "/v1/realtime?mode=video"


@both
async def test_audio_of_16_bits(stack: Stack, words: Words) -> None:
    pcm = base64.b64encode(np.full(16_000, -16_384, "<i2").tobytes()).decode()
    async with stack.client() as client:
        await words.begin(client, TELLS)
        heard = await told(client, words, words.append(audio=pcm, format="pcm16", sample_rate=16_000))
        assert heard["units"] == [{"audio": [-0.5] * 4, "frames": [], "force_listen": False}]


@both
async def test_input_id(stack: Stack, words: Words) -> None:
    async with stack.client() as client:
        await words.begin(client)
        for given, echoed in ((None, INPUT_ID), ("", INPUT_ID), ("é" * 128, "é" * 128)):
            await client.send(words.append(input_id=given))
            assert (await client.expect(words.listen))["input_id"] == echoed
        refused = await client.ask(words.append(input_id="x" * 129))
        assert refused["error"]["param"] == f"{words.input_path}input_id"
        assert refused["error"]["code"] == "invalid_payload"


@both
async def test_field_of_wrong_type_or_range(stack: Stack, words: Words) -> None:
    """Every field is in `tests/ws_adapter/protocol/wire/test_schema_truth.py`."""
    async with stack.client(VIDEO) as client:
        await words.begin(client)
        missing = "input" if words is G3 else "audio"
        assert await client.ask({"type": words.input}) == error("missing_field", missing)
        for field, value in (("audio", 5), ("force_listen", 1), ("max_slice_nums", 10), ("format", "opus")):
            refused = await client.ask(words.append(**{field: value}))
            param = f"{words.input_path}{field}"
            assert refused == error("invalid_payload", param)
            assert refused["error"]["message"] == Text(f"{param}: expected .+, got .+")
        await client.send(words.append())
        await client.expect(words.listen)


@both
async def test_units_of_a_second_are_cut_in_order(stack: Stack, words: Words) -> None:
    """The rest stays, and the next append joins it."""
    async with stack.client() as client:
        await words.begin(client, listen(), listen(), TELLS)
        await client.send(words.append(40_000, 0.25, input_id="long"))
        answers = await client.take(2)
        assert [(a["input_id"], a["metrics"].get("padded_samples")) for a in answers] == [("long", None)] * 2
        heard = await told(client, words, words.append(8_000, 0.5, input_id="rest"))
        assert [unit["audio"] for unit in heard["units"]] == [[0.25] * 4, [0.25] * 4, [0.25, 0.25, 0.5, 0.5]]
        assert client.events[-1]["input_id"] == "rest"


def picture(encoding: str = "JPEG", width: int = 8, height: int = 8, shade: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 128, 128)).save(file, encoding)
    return file.getvalue()


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


FRAMES = [picture(shade=shade) for shade in range(0, 250, 50)]
TEXTS = [as_base64(frame) for frame in FRAMES]


@both
async def test_picture_formats(stack: Stack, words: Words) -> None:
    frames = [picture(encoding) for encoding in ("JPEG", "PNG", "WEBP")]
    async with stack.client(VIDEO) as client:
        await words.begin(client, TELLS)
        heard = await told(client, words, words.append(video_frames=[as_base64(frame) for frame in frames]))
        assert heard["units"][0]["frames"] == [digest(frame) for frame in frames]
        assert heard["setup"]["sees"] is True


@pytest.mark.parametrize("field", ["video_frames", "frame_base64_list", "frames"])
async def test_places_and_forms_of_pictures(stack: Stack, field: str) -> None:
    given = [TEXTS[0], {"data": TEXTS[1]}, {"base64": TEXTS[2]}, "data:image/jpeg;base64," + TEXTS[3]]
    async with stack.client(VIDEO) as client:
        await G3.begin(client, TELLS)
        heard = await told(client, G3, G3.append(**{field: given}, max_slice_nums=9))
        assert heard["units"][0]["frames"] == [digest(frame) for frame in FRAMES[:4]]


@both
@pytest.mark.parametrize(("units", "count"), [(1, 4), (2, 1), (2, 3), (3, 2), (4, 4), (5, 4)])
async def test_pictures_of_a_burst_are_spread(stack: Stack, words: Words, units: int, count: int) -> None:
    expected: list[list[str]] = [[] for _ in range(units)]
    for j in range(count):
        expected[j * units // count].append(digest(FRAMES[j]))
    async with stack.client(VIDEO) as client:
        await words.begin(client, *[listen()] * (units - 1), TELLS)
        heard = await told(client, words, words.append(16_000 * units, video_frames=TEXTS[:count]))
        assert [unit["frames"] for unit in heard["units"]] == expected


@both
async def test_bad_picture_refuses_the_whole_append(stack: Stack, words: Words) -> None:
    async with stack.client(VIDEO) as client:
        await words.begin(client, TELLS)
        for bad in (FRAMES[0][:16], FRAMES[0] + bytes(2**20)):
            given = words.append(video_frames=[TEXTS[0], as_base64(bad)], input_id="bad")
            path = f"{words.input_path}video_frames[1]"
            assert await client.ask(given) == error("invalid_payload", path, input_id="bad")
        heard = await told(client, words)
        assert [unit["frames"] for unit in heard["units"]] == [[]]


@both
async def test_picture_at_the_limits(stack: Stack, words: Words) -> None:
    largest = picture("PNG", 2000, 2000)
    heaviest = FRAMES[0] + bytes(2**20 - len(FRAMES[0]))
    async with stack.client(VIDEO) as client:
        await words.begin(client, TELLS)
        texts = [as_base64(largest), as_base64(heaviest), *TEXTS[:2]]
        heard = await told(client, words, words.append(video_frames=texts))
        assert len(heard["units"][0]["frames"]) == 4


@both
@pytest.mark.parametrize("mode", ["video", "audio"])
async def test_pictures_without_audio(stack: Stack, words: Words, mode: str) -> None:
    async with stack.client(f"/v1/realtime?mode={mode}") as client:
        await words.begin(client)
        for audio in (None, ""):
            refused = await client.ask(words.append(audio=audio, video_frames=TEXTS[:1]))
            assert refused == error("missing_field", f"{words.input_path}audio")


@both
def test_slices(words: Words) -> None:
    """The scripted model is not told, so this is what leaves the dialect for the worker."""
    talk = Conversation(mode=Mode.VIDEO)
    talk.connect()
    talk.client(words.init(max_slice_nums=9))
    talk.worker(ready_signal(max_units_in_flight=8))
    talk.client(words.append(video_frames=TEXTS[:1]))
    talk.client(words.append(video_frames=TEXTS[:1], max_slice_nums=2))
    talk.client(words.append(max_slice_nums=2))
    talk.client(words.append(video_frames=TEXTS[:1]))
    assert [run.max_slice_nums for run in talk.runs] == [9, 2, None, 9]


async def test_hints(stack: Stack) -> None:
    """The field itself wins."""
    async with stack.client() as client:
        await G3.begin(client, speak("a"), speak("b"), speak("c"))
        await client.send(G3.append(hints={"force_listen": True}))
        await client.expect("listen")
        await client.send(G3.append(hints={"force_listen": True}, force_listen=False))
        await client.expect("text", "audio")
        refused = await client.ask(G3.append(hints={"max_slice_nums": 10}))
        assert refused == error("invalid_payload", "input.hints.max_slice_nums")


async def test_sessions_do_not_hear_each_other(stack: Stack) -> None:
    async def one(level: float) -> list[Any]:
        async with stack.client() as client:
            await G3.begin(client, TELLS)
            await client.send(G3.append(8_000, level))
            return list((await told(client, G3, G3.append(8_000, level)))["units"][0]["audio"])

    levels = [0.1, 0.2, 0.3, 0.4]
    assert await asyncio.gather(*map(one, levels)) == [[level] * 4 for level in levels]
