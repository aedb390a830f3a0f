"""Sections 3.1 `input.append`, 4.1 `input_audio_buffer.append`, 6.1 cutting, 6.5 images, 6.6 audio values.

What reaches the model is told by the model itself: four samples of each unit, and a digest of each picture.
"""

import asyncio
import base64
import hashlib
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conformance.support.client import Event, kinds
from tests.conformance.support.match import INPUT_ID, Text, error
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import G2, G3, TELLS, Words, both, f32, told
from tests.support.scripted_engine import listen, speak
from tests.ws_adapter.support.conversation import Conversation, ready_signal
from ws_adapter.protocol.core.config import Mode

VIDEO = "/v1/realtime?mode=video"


def pcm16(samples: int, level: int) -> str:
    return base64.b64encode(np.full(samples, level, "<i2").tobytes()).decode()


# --------------------------------------------------------------------------------- places of the audio


@pytest.mark.parametrize(
    "given",
    [
        {"audio": f32(16_000, 0.5)},
        {"audio_base64": f32(16_000, 0.5)},
        {"audio_data": f32(16_000, 0.5)},
        {"audio": {"data": f32(16_000, 0.5)}},
        {"audio": {"base64": f32(16_000, 0.5)}},
        {"audio": {"audio_base64": f32(16_000, 0.5)}},
        {"audio": f32(16_000, 0.5), "format": "f32", "sample_rate": 16000},
        {"audio": pcm16(16_000, 16_384), "format": "pcm16", "sample_rate_hz": 16000},
    ],
    ids=lambda given: "-".join(given),
)
async def test_places_and_forms_of_audio(stack: Stack, given: Event) -> None:
    """3.1 `audio`: f32, and its aliases; `format` f32, pcm16; `sample_rate` 16000. 6.6: pcm16 / 32768."""
    async with stack.client() as client:
        await G3.begin(client, TELLS)
        heard = await told(client, G3, {"type": "input.append", "input": given})
        assert heard["units"] == [{"audio": [0.5] * 4, "frames": [], "force_listen": False}]


async def test_forms_of_audio_in_the_earlier_dialect(stack: Stack) -> None:
    """4.1: `format`, `sample_rate` as G3, at top level."""
    async with stack.client() as client:
        await G2.begin(client, TELLS)
        event = {"type": "input_audio_buffer.append", "audio": pcm16(16_000, -16_384), "format": "pcm16"}
        assert (await told(client, G2, event))["units"][0]["audio"] == [-0.5] * 4


@both
async def test_object_of_the_append(stack: Stack, words: Words) -> None:
    """3.1 `input` obj R; 7.2: missing is `missing_field`, another type `invalid_payload`."""
    async with stack.client() as client:
        await words.begin(client)
        if words is G3:
            assert await client.ask({"type": "input.append"}) == error("missing_field", "input")
            wrong = {"type": "input.append", "input": "x"}
            assert await client.ask(wrong) == error("invalid_payload", "input")
        else:
            assert await client.ask({"type": words.input}) == error("missing_field", "audio")


@both
async def test_input_id(stack: Stack, words: Words) -> None:
    """3.1 `input_id`: `input_` + 12 hex if absent; at most 128 characters; echoed. Row 11.8."""
    async with stack.client() as client:
        await words.begin(client)
        for given, echoed in ((None, INPUT_ID), ("", INPUT_ID), ("é" * 128, "é" * 128)):
            await client.send(words.append(input_id=given))
            assert (await client.expect(words.listen))["input_id"] == echoed
        refused = await client.ask(words.append(input_id="x" * 129))
        assert refused["error"]["param"] == f"{words.input_path}input_id"
        assert refused["error"]["code"] == "invalid_payload"


@both
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", 5),
        ("audio", [0.1]),
        ("force_listen", "yes"),
        ("force_listen", 1),
        ("max_slice_nums", 0),
        ("max_slice_nums", 10),
        ("max_slice_nums", "1"),
        ("video_frames", "x"),
        ("video_frames", [5]),
        ("input_id", 5),
        ("format", "opus"),
        ("sample_rate", 24_000),
        ("sample_rate", "16000"),
    ],
)
async def test_field_of_wrong_type_or_range(stack: Stack, words: Words, field: str, value: object) -> None:
    """7.2: wrong JSON type, out of range: `invalid_payload` with `param`; 3.1: other rates are refused."""
    async with stack.client(VIDEO) as client:
        await words.begin(client)
        refused = await client.ask(words.append(**{field: value}))
        param = f"{words.input_path}{field}" + ("[0]" if value == [5] else "")
        assert refused == error("invalid_payload", param)
        assert refused["error"]["message"] == Text(f"{param}: expected .+, got .+".replace("[", r"\["))
        await client.send(words.append())
        await client.expect(words.listen)


# ---------------------------------------------------------------------------------------- 6.1 cutting


@both
async def test_cut_units_of_16000_in_order(stack: Stack, words: Words) -> None:
    """6.1 carry >= 16,000: units of 16,000 in order; the rest stays and the next append joins it."""
    async with stack.client() as client:
        await words.begin(client, listen(), listen(), TELLS)
        await client.send(words.append(40_000, 0.25, input_id="long"))
        answers = await client.take(2)
        assert [(a["input_id"], a["metrics"].get("padded_samples")) for a in answers] == [("long", None)] * 2
        heard = await told(client, words, words.append(8_000, 0.5, input_id="rest"))
        assert [unit["audio"] for unit in heard["units"]] == [[0.25] * 4, [0.25] * 4, [0.25, 0.25, 0.5, 0.5]]
        assert client.events[-1]["input_id"] == "rest"


@both
@pytest.mark.parametrize("samples", [15_840, 15_999])
async def test_cut_nearly_a_unit_is_padded_at_once(stack: Stack, words: Words, samples: int) -> None:
    """6.1 append of 15,840..15,999 samples, carry empty: padded with zeros to one unit at once."""
    async with stack.client() as client:
        await words.begin(client)
        await client.send(words.append(samples, input_id="a"), words.append(input_id="b"))
        first, second = await client.take(2)
        assert kinds([first, second]) == [words.listen] * 2
        assert (first["input_id"], first["metrics"]["padded_samples"]) == ("a", 16_000 - samples)
        assert "padded_samples" not in second["metrics"]


@both
async def test_cut_slightly_less_than_nearly_a_unit_waits(stack: Stack, words: Words) -> None:
    """6.1 append of 15,839 samples: waits in the carry like anything shorter."""
    async with stack.client() as client:
        await words.begin(client)
        await client.send(words.append(15_839), words.append(161, input_id="b"))
        answer = await client.expect(words.listen)
        assert answer["input_id"] == "b"
        assert "padded_samples" not in answer["metrics"]


@both
async def test_cut_shorter_appends_wait_and_join(stack: Stack, words: Words) -> None:
    """6.1 anything shorter: waits in the carry; the next append joins it. Nearly a unit joins too."""
    async with stack.client() as client:
        await words.begin(client)
        await client.send(words.append(1), words.append(15_839), words.append(160, input_id="last"))
        answer = await client.expect(words.listen)
        assert answer["input_id"] == "last"
        assert "padded_samples" not in answer["metrics"]


@both
async def test_cut_flush_and_minimum(stack: Stack, words: Words) -> None:
    """6.1: 1.25 s after the last append the carry is padded at its end and runs; below 4,000 is no error."""
    async with stack.client() as client, stack.client() as other:
        await words.begin(client, TELLS)
        await words.begin(other)
        await client.send(words.append(8_000, 0.5, input_id="half"))
        await other.send(words.append(1))
        answer = await client.next()
        assert answer["metrics"]["padded_samples"] == 8_000
        assert answer["input_id"] == "half"
        assert Text(r'.*"audio": \[0\.5, 0\.5, 0\.0, 0\.0\].*') == answer["text"]
        assert (await other.expect(words.listen))["metrics"]["padded_samples"] == 15_999


@both
async def test_cut_force_listen_flushes_at_once(stack: Stack, words: Words) -> None:
    """6.1 `force_listen:true`: the carry is flushed at once, together with this append."""
    async with stack.client() as client:
        await words.begin(client, listen(), TELLS)
        await client.send(words.append(4_000, 0.25), words.append(4_000, 0.5, force_listen=True))
        answer = await client.expect(words.listen)
        assert answer["metrics"]["padded_samples"] == 8_000
        heard = (await told(client, words))["units"][0]
        assert heard == {"audio": [0.25, 0.5, 0.0, 0.0], "frames": [], "force_listen": True}


@both
async def test_cut_force_listen_without_audio_is_one_unit_of_silence(stack: Stack, words: Words) -> None:
    """3.1: `audio` may be absent only with `force_listen:true` (then one unit of silence)."""
    async with stack.client() as client:
        await words.begin(client, listen(), listen(), TELLS)
        await client.send(words.silent(force_listen=True), words.append(audio="", force_listen=True))
        assert kinds(await client.take(2)) == [words.listen] * 2
        silence = {"audio": [0.0] * 4, "frames": [], "force_listen": True}
        assert (await told(client, words))["units"][:2] == [silence] * 2


@both
@pytest.mark.parametrize("fields", [{"audio": None}, {"audio": ""}], ids=["absent", "empty"])
async def test_cut_no_audio_is_a_missing_field(stack: Stack, words: Words, fields: Event) -> None:
    """6.1: 0 samples, `audio` missing or `""`: `missing_field`, except with `force_listen:true`."""
    async with stack.client() as client:
        await words.begin(client)
        refused = await client.ask(words.append(**fields))
        assert refused == error("missing_field", f"{words.input_path}audio")


@both
async def test_cut_more_than_60_s_applies_nothing(stack: Stack, words: Words) -> None:
    """6.1: more than 60 s in one append: `invalid_payload`, nothing applied."""
    async with stack.client() as client:
        await words.begin(client, TELLS)
        refused = await client.ask(words.append(960_001, force_listen=True))
        assert refused == error("invalid_payload", f"{words.input_path}audio")
        assert len((await told(client, words))["units"]) == 1


@both
async def test_every_unit_of_an_append_has_its_answer(stack: Stack, words: Words) -> None:
    """6.1: every accepted append is answered; 3.3.7: all units of a long append share its `input_id`."""
    async with stack.client() as client:
        await words.begin(client)
        await client.send(words.append(60 * 16_000, input_id="minute"), words.append(input_id="after"))
        answers = await client.take(61)
        assert kinds(answers) == [words.listen] * 61
        assert [answer["input_id"] for answer in answers] == ["minute"] * 60 + ["after"]


# ------------------------------------------------------------------------------------ 6.6 audio values

BAD_AUDIO = {
    "not base64": "!!!!",
    "no padding": f32(16_000).rstrip("=")[:-1],
    "URL alphabet": "-_-_" * 4,
    "no whole samples": base64.b64encode(bytes(64_001)).decode(),
    "NaN": base64.b64encode(np.full(16_000, np.nan, "<f4").tobytes()).decode(),
    "infinity": base64.b64encode(np.full(16_000, np.inf, "<f4").tobytes()).decode(),
    "peak above 16": f32(16_000, -16.01),
    "long, with one bad character": f32(16_000)[:-400] + "*" + f32(16_000)[-399:],
}


@both
async def test_bad_audio_is_refused_whole(stack: Stack, words: Words) -> None:
    """6.6: base64, decoded length, NaN, infinity, peak above 16.0: `invalid_payload`, not applied."""
    async with stack.client() as client:
        await words.begin(client, TELLS)
        for name, audio in BAD_AUDIO.items():
            refused = await client.ask(words.append(audio=audio, input_id=name))
            assert refused == error("invalid_payload", f"{words.input_path}audio", input_id=name)
        odd = words.append(audio="AAAA", format="pcm16")
        assert await client.ask(odd) == error("invalid_payload", f"{words.input_path}audio")
        assert len((await told(client, words))["units"]) == 1


@both
async def test_white_space_in_base64_is_removed(stack: Stack, words: Words) -> None:
    """6.6: standard alphabet with padding, ASCII white space removed first."""
    audio = f32(16_000, 0.5)
    spaced = " \t\r\n".join(audio[i : i + 76] for i in range(0, len(audio), 76))
    async with stack.client() as client:
        await words.begin(client, TELLS)
        heard = await told(client, words, words.append(audio=spaced))
        assert heard["units"][0]["audio"] == [0.5] * 4


@both
async def test_loud_audio_is_clipped_and_counted(stack: Stack, words: Words) -> None:
    """6.6: up to a peak of 16.0: clipped to [-1, 1], count in `metrics.clipped_samples`."""
    async with stack.client() as client:
        await words.begin(client, TELLS)
        heard = await told(client, words, words.append(level=-16.0))
        assert heard["units"][0]["audio"] == [-1.0] * 4
        assert client.events[-1]["metrics"]["clipped_samples"] == 16_000
    async with stack.client() as client:
        await words.begin(client)
        await client.send(words.append(level=2.0), words.append(level=1.0))
        counts = [answer["metrics"].get("clipped_samples") for answer in await client.take(2)]
        assert counts == [16_000, None]


# ------------------------------------------------------------------------------------------- 6.5 images


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
@pytest.mark.parametrize("encoding", ["JPEG", "PNG", "WEBP"])
async def test_picture_formats(stack: Stack, words: Words, encoding: str) -> None:
    """6.5: JPEG, PNG or WebP by content."""
    frame = picture(encoding)
    async with stack.client(VIDEO) as client:
        await words.begin(client, TELLS)
        heard = await told(client, words, words.append(video_frames=[as_base64(frame)]))
        assert heard["units"][0]["frames"] == [digest(frame)]
        assert heard["setup"]["sees"] is True


@pytest.mark.parametrize("field", ["video_frames", "frame_base64_list", "frames"])
async def test_places_and_forms_of_pictures(stack: Stack, field: str) -> None:
    """3.1 `video_frames`: aliases `frame_base64_list`, `frames`; items str or `{data|base64}`."""
    given = [TEXTS[0], {"data": TEXTS[1]}, {"base64": TEXTS[2]}, "data:image/jpeg;base64," + TEXTS[3]]
    async with stack.client(VIDEO) as client:
        await G3.begin(client, TELLS)
        heard = await told(client, G3, G3.append(**{field: given}, max_slice_nums=9))
        assert heard["units"][0]["frames"] == [digest(frame) for frame in FRAMES[:4]]


@both
@pytest.mark.parametrize(
    ("units", "count"), [(1, 4), (2, 1), (2, 3), (3, 2), (4, 4), (5, 4)], ids=lambda n: str(n)
)
async def test_pictures_of_a_burst_are_spread(stack: Stack, words: Words, units: int, count: int) -> None:
    """6.5: in a burst of U units, frame j of F goes to unit floor(j*U/F)."""
    expected: list[list[str]] = [[] for _ in range(units)]
    for j in range(count):
        expected[j * units // count].append(digest(FRAMES[j]))
    async with stack.client(VIDEO) as client:
        await words.begin(client, *[listen()] * (units - 1), TELLS)
        heard = await told(client, words, words.append(16_000 * units, video_frames=TEXTS[:count]))
        assert [unit["frames"] for unit in heard["units"]] == expected


@both
async def test_pictures_of_a_short_append_wait_with_its_audio(stack: Stack, words: Words) -> None:
    """6.5 with 6.1: an append that completes no unit gives its pictures to the unit it is joined into."""
    async with stack.client(VIDEO) as client:
        await words.begin(client, TELLS)
        await client.send(words.append(8_000, video_frames=TEXTS[:1]))
        heard = await told(client, words, words.append(8_000, video_frames=TEXTS[1:2]))
        assert heard["units"][0]["frames"] == [digest(frame) for frame in FRAMES[:2]]


BAD_PICTURES = {
    "not base64": "?",
    "no picture": as_base64(b"GIF89a" + bytes(100)),
    "broken picture": as_base64(FRAMES[0][:16]),
    "too many bytes": as_base64(FRAMES[0] + bytes(2**20)),
    "too many pixels": as_base64(picture("PNG", 2001, 2000)),
}


@both
async def test_bad_picture_refuses_the_whole_append(stack: Stack, words: Words) -> None:
    """6.5: a violation is `invalid_payload` for the whole append, audio included, nothing applied."""
    async with stack.client(VIDEO) as client:
        await words.begin(client, TELLS)
        for name, text in BAD_PICTURES.items():
            refused = await client.ask(words.append(video_frames=[TEXTS[0], text], input_id=name))
            path = f"{words.input_path}video_frames[1]"
            assert refused == error("invalid_payload", path, input_id=name)
        refused = await client.ask(words.append(video_frames=TEXTS[:5]))
        assert refused == error("invalid_payload", f"{words.input_path}video_frames")
        empty = await client.ask(words.append(video_frames=[""]))
        assert empty == error("missing_field", f"{words.input_path}video_frames[0]")
        heard = await told(client, words)
        assert [unit["frames"] for unit in heard["units"]] == [[]]


@both
async def test_picture_at_the_limits(stack: Stack, words: Words) -> None:
    """6.5: at most 4 frames, 1 MiB decoded bytes and 4 megapixels each."""
    largest = picture("PNG", 2000, 2000)
    heaviest = FRAMES[0] + bytes(2**20 - len(FRAMES[0]))
    async with stack.client(VIDEO) as client:
        await words.begin(client, TELLS)
        texts = [as_base64(largest), as_base64(heaviest), *TEXTS[:2]]
        heard = await told(client, words, words.append(video_frames=texts))
        assert len(heard["units"][0]["frames"]) == 4


@both
async def test_pictures_in_audio_mode_are_ignored_undecoded(stack: Stack, words: Words) -> None:
    """6.5: frames in `mode=audio` are ignored undecoded and counted in `metrics.ignored_frames`."""
    async with stack.client() as client:
        await words.begin(client, TELLS)
        heard = await told(client, words, words.append(video_frames=["?", "!", TEXTS[0]]))
        assert heard["units"][0]["frames"] == []
        assert heard["setup"]["sees"] is False
        assert client.events[-1]["metrics"]["ignored_frames"] == 3
    async with stack.client() as client:
        await words.begin(client)
        await client.send(words.append(video_frames=["?"]), words.append())
        counts = [answer["metrics"].get("ignored_frames") for answer in await client.take(2)]
        assert counts == [1, None]


@both
@pytest.mark.parametrize("mode", ["video", "audio"])
async def test_pictures_without_audio(stack: Stack, words: Words, mode: str) -> None:
    """6.5: frames without audio: `missing_field`."""
    async with stack.client(f"/v1/realtime?mode={mode}") as client:
        await words.begin(client)
        refused = await client.ask(words.silent(video_frames=TEXTS[:1]))
        assert refused == error("missing_field", f"{words.input_path}audio")


@both
async def test_video_session_without_pictures(stack: Stack, words: Words) -> None:
    """6.5: omni sessions without frames are valid."""
    async with stack.client(VIDEO) as client:
        await words.begin(client)
        await client.send(words.append(), words.append(video_frames=[]))
        assert kinds(await client.take(2)) == [words.listen] * 2


@both
def test_slices(words: Words) -> None:
    """3.1, 4.1 `max_slice_nums`: the append's, else the session's; ignored without frames.

    The scripted model is not told, so this is what leaves the dialect for the worker.
    """
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
    """3.1 `force_listen`, `max_slice_nums`: also in `hints`; the field itself wins."""
    async with stack.client() as client:
        await G3.begin(client, speak("a"), speak("b"), speak("c"))
        await client.send(G3.append(hints={"force_listen": True}))
        await client.expect("listen")
        await client.send(G3.append(hints={"force_listen": True}, force_listen=False))
        await client.expect("text", "audio")
        refused = await client.ask(G3.append(hints={"max_slice_nums": 10}))
        assert refused == error("invalid_payload", "input.hints.max_slice_nums")


async def test_sessions_do_not_hear_each_other(stack: Stack) -> None:
    """6.1: per session one carry buffer."""

    async def one(level: float) -> list[Any]:
        async with stack.client() as client:
            await G3.begin(client, TELLS)
            await client.send(G3.append(8_000, level))
            return list((await told(client, G3, G3.append(8_000, level)))["units"][0]["audio"])

    levels = [0.1, 0.2, 0.3, 0.4]
    assert await asyncio.gather(*map(one, levels)) == [[level] * 4 for level in levels]
