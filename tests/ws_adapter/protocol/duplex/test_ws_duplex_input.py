"""Client events of `/ws/duplex`: every field with every alias, and what a bad one costs."""

import base64
import hashlib
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.ws_adapter.support.conversation import Event, pcm, ready_signal
from tests.ws_adapter.support.duplex_conversation import (
    DuplexConversation,
    chunk,
    duplex_in,
    picture,
    pictured,
)
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.state import State

CHUNK = {"type": "audio_chunk"}
VIDEO_FRAME = {"type": "video_frame"}


def huge() -> str:
    """Base64 of a picture of 200 megapixels."""
    file = io.BytesIO()
    Image.new("1", (20_000, 10_000)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def active(**options: Any) -> DuplexConversation:
    return duplex_in(State.ACTIVE, **options)


@pytest.fixture
def talk() -> DuplexConversation:
    return active()


def prepared_with(**fields: Any) -> DuplexConversation:
    talk = duplex_in(State.CONNECTED)
    assert talk.client({"type": "prepare", **fields}) == []
    return talk


def message_of(events: list[Event]) -> str:
    assert [event["type"] for event in events] == ["error"]
    assert events[0]["error"] == events[0]["message"]
    return str(events[0]["error"])


@pytest.mark.parametrize("first", range(3))
def test_first_spelling_of_the_prompt_wins(first: int) -> None:
    spellings = ("system_prompt", "prefix_system_prompt", "instructions")[first:]
    talk = prepared_with(**{name: f"The {name}." for name in spellings})
    assert talk.configured[0].setup.system_prompt == f"The {spellings[0]}."


def test_prepare_may_be_empty() -> None:
    talk = prepared_with()
    setup = talk.configured[0].setup
    assert setup.system_prompt == "You are a helpful assistant."
    assert setup.mode is Mode.VIDEO
    assert setup.max_slice_nums is None


@pytest.mark.parametrize("fields", [{"max_slice_nums": 4}, {"config": {"max_slice_nums": 4}}])
def test_slices_of_the_session(fields: Event) -> None:
    talk = prepared_with(**fields)
    talk.worker(ready_signal())
    talk.client(chunk(frame_base64_list=[pictured()]))
    talk.client(chunk(frame_base64_list=[pictured()], max_slice_nums=2))
    assert [run.max_slice_nums for run in talk.runs] == [4, 2]


def test_config() -> None:
    talk = prepared_with(config={"length_penalty": 1.3, "generate_audio": False}, deferred_finalize=True)
    duplex = talk.configured[0].setup.duplex
    assert (duplex.length_penalty, duplex.generate_audio) == (1.3, False)


@pytest.mark.parametrize("name", ["ref_audio_base64", "ref_audio"])
def test_voice(name: str) -> None:
    talk = prepared_with(**{name: pcm(1.0, 0.2), "tts_ref_audio_base64": pcm(1.0, 0.3)})
    voice = talk.configured[0].setup.voice
    assert voice.llm_reference == np.full(16_000, 0.2, "<f4").tobytes()
    assert voice.speech_reference == np.full(16_000, 0.3, "<f4").tobytes()
    registered = prepared_with(ref_audio_path="assets/Amber.wav")
    assert registered.configured[0].setup.voice.voice_id == "amber"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"system_prompt": 5}, "system_prompt: expected a string of at most 32768 characters, got 5"),
        ({"config": []}, "config: expected an object, got a list"),
        ({"config": {"top_k": 0}}, "config.top_k: expected an integer from 1 to 1000, got 0"),
        ({"max_slice_nums": 10}, "max_slice_nums: expected an integer from 1 to 9, got 10"),
        ({"deferred_finalize": "yes"}, 'deferred_finalize: expected true or false, got "yes"'),
        (
            {"ref_audio_path": "nobody"},
            'ref_audio_path: expected the id of a registered voice, or none, got "nobody"',
        ),
        ({"ref_audio": "%"}, "ref_audio: expected base64 with padding, got something else"),
    ],
)
def test_bad_prepare_names_the_field(fields: Event, message: str) -> None:
    talk = duplex_in(State.CONNECTED)
    events = talk.client({"type": "prepare", **fields})
    assert message_of(events) == message
    assert events[0]["code"] == "invalid_payload"
    assert talk.dialect.state is State.CONNECTED


@pytest.mark.parametrize("name", ["audio_base64", "audio", "audio_data"])
@pytest.mark.parametrize("seconds", [1.0, 0.01])
def test_audio(talk: DuplexConversation, name: str, seconds: float) -> None:
    """Long and short: long base64 is cut out of its frame before the frame is parsed."""
    talk.client({**CHUNK, name: pcm(seconds, 0.2)})
    talk.wait(1.25)
    heard = np.frombuffer(talk.runs[0].audio, "<f4")
    assert np.count_nonzero(heard == np.float32(0.2)) == round(seconds * 16_000)


def test_forced_listen_needs_no_audio(talk: DuplexConversation) -> None:
    talk.client({**CHUNK, "force_listen": True})
    assert [(run.audio.strip(b"\0"), run.force_listen) for run in talk.runs] == [(b"", True)]


@pytest.mark.parametrize(
    ("fields", "frames"),
    [
        *(
            ({name: [pictured(1), {"data": pictured(2)}, {"base64": pictured(3)}]}, (1, 2, 3))
            for name in ("frame_base64_list", "video_frames", "frames")
        ),
        ({"video_frame": pictured(1)}, (1,)),
        ({"frame_base64": pictured(1)}, (1,)),
        ({"video_frame": pictured(1), "frames": [pictured(2)]}, (2,)),
        ({"video_frame": ""}, ()),
        ({"frame_base64": None}, ()),
        ({"frames": []}, ()),
    ],
)
def test_frames_of_a_chunk(talk: DuplexConversation, fields: Event, frames: tuple[int, ...]) -> None:
    assert talk.client(chunk(**fields)) == []
    assert talk.runs[0].frames == tuple(map(picture, frames))


def heard(audio: object) -> Event:
    return {"audio_base64": audio}


NO_PICTURE = "expected a JPEG, PNG or WebP picture, got something else"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *((it, "Missing audio_base64") for it in ({}, heard(None), heard(""), {"audio": ""})),
        ({"frame_base64_list": [pictured()]}, "Missing audio_base64"),
        (heard("%%%%"), "audio_base64: expected base64 with padding, got something else"),
        (heard("AAAA"), "audio_base64: expected whole f32 samples of 4 bytes, got 3 bytes in all"),
        (heard(pcm(1 / 16_000, np.nan)), "audio_base64: expected finite samples, got NaN or infinity"),
        (heard(pcm(1 / 16_000, 17.0)), "audio_base64: not float32 PCM in [-1, 1]: the peak is 17"),
        (heard(7), "audio_base64: expected a string, got 7"),
        (heard(pcm(2.5)), "audio_base64: expected at most 2 s of audio, got 2.5 s"),
        (chunk(frames=["AAAA"]), f"frames[0]: {NO_PICTURE}"),
        (chunk(video_frame="AAAA"), f"video_frame: {NO_PICTURE}"),
        (chunk(video_frames=[pictured()] * 5), "video_frames: expected at most 4 pictures, got 5"),
        (
            chunk(frame_base64_list=[pictured(side=2100)]),
            "frame_base64_list[0]: expected at most 4000000 pixels, got 2100 x 2100",
        ),
        (
            chunk(frames=["AAAA" * (2**19 + 1)]),
            "frames[0]: expected at most 1048576 bytes, got about 1572867",
        ),
        (chunk(frames=[huge()]), "frames[0]: expected at most 4000000 pixels, got 20000 x 10000"),
        (chunk(frames=[7]), "frames[0]: expected a string or an object, got 7"),
        (chunk(frames=[pictured(), ""]), "Missing frames[1]"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_bad_chunk_is_refused_whole(fields: Event, message: str) -> None:
    talk = active(max_append_s=2.0)
    events = talk.client({**CHUNK, **fields})
    assert message_of(events) == message
    assert events[0]["code"] == ("missing_field" if message.startswith("Missing") else "invalid_payload")
    assert talk.runs == []


@pytest.mark.parametrize("name", ["frame_base64", "frame", "image", "data", "video_frame"])
def test_video_frame_goes_with_the_next_unit(talk: DuplexConversation, name: str) -> None:
    assert talk.client({**VIDEO_FRAME, name: pictured(7)}) == []
    talk.client(chunk(2.0))
    assert [run.frames for run in talk.runs] == [(picture(7),), ()]


@pytest.mark.parametrize(
    ("held", "fields", "frames"),
    [(6, {}, (2, 3, 4, 5)), (4, {"frame_base64_list": [pictured(9)]}, (1, 2, 3, 9))],
)
def test_newest_held_frames_come_before_those_of_the_chunk(
    held: int, fields: Event, frames: tuple[int, ...]
) -> None:
    talk = active()
    for shade in range(held):
        talk.client({**VIDEO_FRAME, "frame_base64": pictured(shade)})
    talk.client(chunk(**fields))
    assert talk.runs[0].frames == tuple(map(picture, frames))


def test_frame_of_a_short_chunk_waits_with_it(talk: DuplexConversation) -> None:
    talk.client(chunk(0.5, video_frame=pictured(1)))
    talk.client(chunk(0.5, video_frame=pictured(2)))
    assert [run.frames for run in talk.runs] == [(picture(1), picture(2))]


@pytest.mark.parametrize("fields", [{}, {"frame_base64": None}, {"image": ""}])
def test_missing_frame(talk: DuplexConversation, fields: Event) -> None:
    events = talk.client({**VIDEO_FRAME, **fields})
    assert message_of(events) == "Missing frame_base64"
    assert events[0]["code"] == "missing_field"


def test_bad_frame_is_not_held(talk: DuplexConversation) -> None:
    talk.client({**VIDEO_FRAME, "image": pictured(1)})
    assert message_of(talk.client({**VIDEO_FRAME, "image": "AAAA"})).startswith("image: expected a JPEG")
    talk.client(chunk())
    assert talk.runs[0].frames == (picture(1),)


def test_audio_sessions_do_not_look_at_frames() -> None:
    talk = active(mode=Mode.AUDIO)
    assert talk.client({**VIDEO_FRAME, "frame_base64": "no picture"}) == []
    assert talk.client(chunk(video_frame="no picture")) == []
    assert talk.client(chunk(frame_base64_list=["no picture"] * 9), is_proper=False) == []
    assert [run.frames for run in talk.runs] == [(), ()]


def diagnostic(size: int) -> bytes:
    """An event of `size` bytes."""
    bare = json.dumps({"type": "client_diagnostic", "x": ""})
    return json.dumps({"type": "client_diagnostic", "x": "x" * (size - len(bare))}).encode()


def test_diagnostic_has_a_greatest_size(talk: DuplexConversation) -> None:
    text = message_of(talk.client(diagnostic(65_537)))
    assert text == "client_diagnostic: expected at most 65536 bytes, got 65537"
    assert talk.notes == []
    assert talk.client(diagnostic(65_536)) == []
    assert len(talk.notes) == 1


@pytest.mark.parametrize(
    "frame",
    [
        b'{\n"type":\r\n"client_diagnostic"}',
        '{"type":"client_diagnostic","x":"\\n\\u2028 \u2028\u0085\x7f\x9b31m"}'.encode(),
        b'{"type":"client_diagnostic","x":' + b"9" * 5000 + b"}",
        b'{"type":"client_diagnostic","x":' + b"[" * 900 + b"]" * 900 + b"}",
    ],
)
def test_diagnostic_is_in_the_log_as_a_length_and_a_digest(talk: DuplexConversation, frame: bytes) -> None:
    assert talk.client(frame) == []
    assert talk.notes == [f"{len(frame)} bytes, sha256 {hashlib.sha256(frame).hexdigest()[:12]}"]


@pytest.mark.parametrize(
    ("event", "code", "message"),
    [
        ([], "invalid_payload", "an event is a JSON object, got a list"),
        ({}, "missing_field", "Missing type"),
        ({"type": None}, "missing_field", "Missing type"),
        ({"type": 5}, "invalid_payload", "type: expected a string, got 5"),
        ({"type": "Stop"}, "unknown_event", "Unknown message type: Stop"),
        ({"type": "x" * 99}, "unknown_event", "Unknown message type: a string"),
        ({"type": "session.close"}, "unknown_event", "Unknown message type: session.close"),
    ],
)
def test_no_event(talk: DuplexConversation, event: Any, code: str, message: str) -> None:
    events = talk.client(event)
    assert (events[0]["code"], message_of(events)) == (code, message)
    assert talk.closed is None


def test_diagnostics_are_limited_to_sixty_a_minute(talk: DuplexConversation) -> None:
    for _ in range(60):
        talk.client({"type": "client_diagnostic"})
    talk.now += 59.5
    talk.client({"type": "client_diagnostic"})
    assert len(talk.notes) == 60
    talk.now += 0.5
    talk.client({"type": "client_diagnostic"})
    assert len(talk.notes) == 61
