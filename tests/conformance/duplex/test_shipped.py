"""Whole spoken conversations over `/ws/duplex` with the checkpoint of the package."""

import base64
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tests.conformance.support.client import Client, Event
from tests.conformance.support.duplex_words import AUDIO, OMNI, error, jpeg, listens, stop
from tests.conformance.support.recordings import recording, reply_to
from tests.conformance.support.stack import Stack
from tests.inference_service.engine.support import tiny

RATE = 16_000
PICTURE = tiny.PICTURE_TOKENS
LONGEST_REPLY = 8
"""Units of silence within which a reply has to end."""

PREPARE: Event = {
    "type": "prepare",
    "system_prompt": "You are a helpful assistant.",
    "config": {"decode_mode": "greedy"},
    "deferred_finalize": True,
}


def chunks(pcm: NDArray[np.float32]) -> Iterator[str]:
    """Whole seconds of a question, then silence for as long as anybody asks."""
    for start in range(0, pcm.size, RATE):
        second = np.zeros(RATE, "<f4")
        second[: pcm.size - start] = pcm[start : start + RATE]
        yield base64.b64encode(second.tobytes()).decode()
    while True:
        yield base64.b64encode(bytes(RATE * 4)).decode()


async def converse(client: Client, pcm: NDArray[np.float32], **fields: object) -> tuple[str, int]:
    """Return text and sample count of the model's answer, taken in lockstep to the end of its turn."""
    text, samples = "", 0
    questions = chunks(pcm)
    for _ in range(-(-pcm.size // RATE) + LONGEST_REPLY):
        result = await client.ask({"type": "audio_chunk", "audio_base64": next(questions), **fields})
        assert result["type"] == "result", result
        if result["is_listen"]:
            assert (result["text"], result["audio_data"]) == ("", None)
            continue
        text += result["text"]
        heard = np.frombuffer(base64.b64decode(result["audio_data"] or "", validate=True), "<f4")
        assert np.isfinite(heard).all()
        samples += heard.size
        if result["end_of_turn"]:
            break
    return " ".join(text.split()), samples


async def test_pictures_reach_a_model_that_sees(tiny_engine: Stack) -> None:
    """Held ones too; a broken one costs a unit."""
    cut_off = base64.b64encode(base64.b64decode(jpeg(side=64))[:-20]).decode()
    async with tiny_engine.client(OMNI) as client:
        await client.expect("queue_done")
        await client.send({**PREPARE, "config": {"force_listen_count": 60}})
        await client.expect("prepared")
        second = {"type": "audio_chunk", "audio_base64": next(chunks(np.zeros(RATE, np.float32)))}
        held = {"type": "video_frame", "frame_base64": jpeg(200)}
        await client.send(second, held, {**second, "frame_base64_list": [jpeg(), jpeg(9)]})
        await client.send({**second, "video_frame": cut_off}, second)
        assert await client.take(5) == [
            listens(1, vision_tokens=0, vision_slices=0),
            listens(2, vision_tokens=3 * PICTURE, vision_slices=3),
            error("invalid_payload", "the model refused a picture of this input"),
            listens(3),
            listens(4, vision_tokens=0, vision_slices=0),
        ]
        assert await stop(client) == []


async def test_conversation(shipped: Stack) -> None:
    """Audio kind: three questions of one person, each answered in words and sound, in one session."""
    async with shipped.client(AUDIO) as client:
        await client.expect("queue_done")
        await client.send(PREPARE)
        assert (await client.expect("prepared"))["prompt_length"] > 0
        for name in ("how_are_you", "thanks", "goodbye"):
            text, samples = await converse(client, recording(name))
            assert text == reply_to(name)
            assert samples > 12_000
        results = [event for event in client.events if event["type"] == "result"]
        assert [result["current_time"] for result in results] == list(range(1, len(results) + 1))
        assert all(result["kv_cache_length"] > 0 for result in results)
        assert await stop(client, "adx_k3f9") == []


async def test_conversation_with_frames(shipped: Stack) -> None:
    """Omni kind: a picture with each second; the words do not suffer from it."""
    async with shipped.client(OMNI) as client:
        await client.expect("queue_done")
        await client.send(PREPARE)
        await client.expect("prepared")
        pcm = recording("how_are_you")
        text, samples = await converse(client, pcm, frame_base64_list=[jpeg(80, side=224)])
        assert text == reply_to("how_are_you")
        assert samples > 12_000
        results = [event for event in client.events if event["type"] == "result"]
        assert all(result["vision_tokens"] > 0 for result in results)
        assert all(result["vision_slices"] == 1 for result in results)
        assert await stop(client) == []
