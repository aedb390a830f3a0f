"""`/ws/chat`: one request, one answer."""

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from antiphon.contract import Reason
from tests.ws_adapter.support.chat_conversation import SPOKEN, USER, ChatJar, f32, request, user
from tests.ws_adapter.support.conversation import Event
from tests.ws_adapter.support.duplex_conversation import pictured
from tests.ws_adapter.support.sound import wav
from tests.ws_adapter.support.tokens import tokens
from ws_adapter.protocol.chat.content import MAX_MEDIA_BYTES, MAX_TEXT
from ws_adapter.protocol.chat.ws_chat import LARGE_FRAME, State
from ws_adapter.protocol.core.config import ChatSetup
from ws_adapter.protocol.core.signals import NO_TIMINGS, Finish, GoingAway, Prefilled, UnitEnd
from ws_adapter.protocol.core.turn import Generation, Message, Picture, Speech, Video
from ws_adapter.protocol.media.reference_voice import Voice
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import VERDICTS, CloseCode


def refused(jar: ChatJar, *, code: str, close: int, told: str = "") -> None:
    """Fails unless the last word was this error, and the connection closes."""
    assert jar.sent[-1]["type"] == "error"
    assert jar.sent[-1]["code"] == code
    assert told in jar.sent[-1]["error"]
    assert jar.close_code == close
    assert jar.machine.is_over


@pytest.fixture
def jar() -> ChatJar:
    return ChatJar()


@pytest.fixture
def asked(jar: ChatJar) -> ChatJar:
    """The turn is at the worker."""
    jar.ask()
    return jar


def test_streamed_answer(asked: ChatJar) -> None:
    asked.prefilled(tokens(input_text=5, input_audio=20, input_vision=2))
    asked.say("Sev")
    asked.say("en.", SPOKEN)
    asked.say("", SPOKEN)
    asked.say("")
    asked.done()

    audio = base64.b64encode(SPOKEN).decode()
    done = {"type": "done", "text": "Seven.", "generated_tokens": 4, "input_tokens": 27, "audio_data": None}
    assert asked.sent == [
        {"type": "prefill_done", "input_tokens": 27},
        {"type": "chunk", "text_delta": "Sev", "audio_data": None},
        {"type": "chunk", "text_delta": "en.", "audio_data": audio},
        {"type": "chunk", "text_delta": "", "audio_data": audio},
        {**done, "recording_session_id": "sess_0123456789ab-1"},
    ]
    assert asked.closed is not None
    assert (asked.closed.code, asked.closed.reason) == (1000, "done")
    assert asked.slots == ["take"]


@pytest.mark.parametrize("sound", [SPOKEN, b""], ids=["spoken", "text alone"])
def test_answer_at_once(jar: ChatJar, sound: bytes) -> None:
    jar.ask(streaming=False)
    jar.prefilled()
    jar.say("Sev", sound)
    jar.say("en.", sound)
    assert jar.machine.held_bytes == 2 * len(sound)
    jar.done()
    assert [event["type"] for event in jar.sent] == ["prefill_done", "done"]
    assert jar.sent[-1]["text"] == "Seven."
    assert jar.sent[-1]["audio_data"] == (base64.b64encode(2 * sound).decode() or None)


def test_answer_too_long_to_be_sent_at_once(jar: ChatJar) -> None:
    jar.ask(streaming=False)
    for _ in range(3):
        jar.say("", bytes(12 * 2**20))
    refused(jar, code="inference_error", close=1011, told="ask for it with streaming")


@pytest.mark.parametrize(("end", "finish"), [(UnitEnd.TURN, Finish.LENGTH), (UnitEnd.CONTEXT_FULL, None)])
def test_answer_that_was_cut_short_is_an_answer(asked: ChatJar, end: UnitEnd, finish: Finish | None) -> None:
    asked.say("Sev")
    asked.done(end, finish)
    assert (asked.sent[-1]["type"], asked.sent[-1]["text"]) == ("done", "Sev")


def test_slot_is_taken_when_the_request_is_read_without_queue_events(jar: ChatJar) -> None:
    assert jar.slots == []
    assert jar.machine.is_waiting
    jar.client(request())
    assert jar.slots == ["take"]
    assert jar.machine.is_waiting
    jar.grant()
    assert not jar.machine.is_waiting
    assert jar.sent == []


@pytest.mark.parametrize(
    ("verdict", "code", "close"),
    [
        (VERDICTS[Reason.QUEUE_FULL], "queue_full", 1013),
        (VERDICTS[Reason.NO_FREE_SLOT], "worker_busy", 1013),
        (errors.QUEUE_TIMEOUT, "queue_timeout", 1013),
        (errors.QUEUE_CANCELLED, "queue_cancelled", 1000),
        (errors.NO_WORKER, "service_unavailable", 1013),
        (errors.CONNECT_FAILED, "worker_connect_failed", 1013),
    ],
)
def test_no_slot(jar: ChatJar, verdict: errors.Verdict, code: str, close: int) -> None:
    jar.client(request())
    jar.do(jar.machine.refused(verdict))
    refused(jar, code=code, close=close)


def test_defaults(asked: ChatJar) -> None:
    turn = asked.turn
    assert turn.messages == (Message("user", ("Name a prime.",)),)
    assert turn.generation == Generation(512, 0.7, 0.8, 1.0)
    assert turn.speaks
    assert (turn.use_tts_template, turn.omni_mode, turn.enable_thinking) == (False, False, False)
    assert (turn.max_slice_nums, turn.use_image_id) == (None, None)
    assert asked.configured[0].setup == ChatSetup()


def test_everything_is_honoured(jar: ChatJar) -> None:
    jar.ask(
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": [{"type": "text", "text": "Hm?"}]},
        USER,
        generation={"max_new_tokens": 64, "temperature": 0, "top_p": 1, "length_penalty": 1.1},
        tts={"enabled": False},
        image={"max_slice_nums": 4, "use_image_id": False},
        omni_mode=True,
        enable_thinking=True,
    )

    turn = jar.turn
    assert [message.role for message in turn.messages] == ["system", "assistant", "user"]
    assert turn.generation == Generation(64, 0, 1, 1.1)
    assert (turn.speaks, turn.omni_mode, turn.enable_thinking) == (False, True, True)
    assert (turn.max_slice_nums, turn.use_image_id) == (4, False)


def test_template_is_ored_with_enabled_and_unknown_fields_are_not_looked_at(jar: ChatJar) -> None:
    unknown = {"type": 7, "model": None, "session_id": "x", "messages": [{**USER, "name": 3}]}
    jar.ask(tts={"enabled": False}, use_tts_template=True, **unknown)
    assert jar.turn.speaks
    assert jar.turn.use_tts_template


def test_only_the_first_frame_counts(asked: ChatJar) -> None:
    asked.client(b"\xff\xff")
    asked.client(request())
    asked.do(asked.machine.binary_frame(asked.now))
    asked.prefilled()
    asked.client(b"{")
    assert [event["type"] for event in asked.sent] == ["prefill_done"]
    assert asked.slots == ["take"]
    assert asked.closed is None


def test_picture_and_clip(jar: ChatJar) -> None:
    picture = pictured()
    said = {"type": "audio", "data": f32(0.5), "sample_rate": 16_000}
    loud = {"type": "audio", "data": f32(0.01, level=2.0)}
    jar.ask(user({"type": "text", "text": "What is this?"}, {"type": "image", "data": picture}, said, loud))
    text, image, clip, clipped = jar.turn.messages[0].parts
    assert text == "What is this?"
    assert image == Picture(base64.b64decode(picture))
    assert isinstance(clip, Speech)
    assert np.array_equal(np.frombuffer(clip.data, "<f4"), np.full(8000, 0.1, "<f4"))
    assert isinstance(clipped, Speech)
    assert np.frombuffer(clipped.data, "<f4").max() == 1.0


@pytest.mark.parametrize("prefix", ["", "data:video/mp4;base64,"])
@pytest.mark.parametrize("head", [b"\0\0\0\x10ftypisom", b"\0\0\0\x08wide", b"\x1aE\xdf\xa3\x01"])
def test_video_is_passed_on_as_it_is(jar: ChatJar, head: bytes, prefix: str) -> None:
    video = {"type": "video", "data": prefix + base64.b64encode(head + bytes(99)).decode()}
    jar.ask(user(video, {**video, "stack_frames": 3}), omni_mode=True)
    assert jar.turn.messages[0].parts == (Video(head + bytes(99)), Video(head + bytes(99), 3))
    assert jar.turn.omni_mode


@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("encoding", ["f32", "wav"])
def test_clips_are_resampled(jar: ChatJar, rate: int, encoding: str) -> None:
    tone = 0.5 * np.sin(np.arange(rate) * 2 * np.pi * 440 / rate)
    data = wav(tone, rate) if encoding == "wav" else tone.astype("<f4").tobytes()
    # The rate of a WAV file is its own affair.
    said = {"sample_rate": rate} if encoding == "f32" else {"sample_rate": 16_000}
    jar.ask(user({"type": "audio", "data": base64.b64encode(data).decode(), **said}))
    (clip,) = jar.turn.messages[0].parts
    assert isinstance(clip, Speech)
    heard = np.frombuffer(clip.data, "<f4")
    assert abs(heard.size - 16_000) <= 1
    assert np.abs(np.fft.rfft(heard[:16_000])).argmax() == 440


CLIP = np.full(16_000, 0.1, "<f4").tobytes()


@pytest.mark.parametrize(
    ("tts", "voice"),
    [
        ({"enabled": True, "ref_audio_data": f32(), "ref_audio_path": "no"}, Voice(speech_reference=CLIP)),
        ({"ref_audio_path": "../../voices/Amber.wav"}, Voice(voice_id="amber")),
    ],
    ids=["clip", "id"],
)
def test_voice(jar: ChatJar, tts: Event, voice: Voice) -> None:
    jar.ask(tts=tts)
    assert jar.configured[0].setup == ChatSetup(voice=voice)


def reported(**fields: Any) -> Any:
    ready, ignored = fields.pop("ready", {}), fields.pop("ignored", ())
    jar = ChatJar()
    jar.client(request(**fields))
    jar.grant()
    jar.ready(**ready)
    assert not jar.turn.speaks or ready.get("speaks", True), "a model without a voice writes"
    jar.worker(Prefilled(1, NO_TIMINGS, ignored_fields=ignored))
    jar.done()
    assert jar.sent[-1]["type"] == "done"
    return jar.sent[-1].get("unsupported_fields")


def test_unsupported_fields_are_reported_by_public_path() -> None:
    deaf = {"ignored_fields": ("voice.speech_reference",)}
    voiceless = {"ignored_fields": ("voice.voice_id",)}
    mute = {"speaks": False}
    clip = {"ref_audio_data": f32()}

    assert reported(tts={"enabled": True, "mode": "default"}) is None
    assert reported(tts=clip, ready=deaf) == ["tts.ref_audio_data"]
    assert reported(tts=clip) is None
    assert reported(tts={**clip, "ref_audio_path": "amber"}) == ["tts.ref_audio_path"]
    assert reported(tts={"ref_audio_path": "amber"}, ready=voiceless) == ["tts.ref_audio_path"]
    assert reported(ready=mute) is None
    assert reported(tts={"enabled": True}, ready=mute) == ["tts.enabled"]
    assert reported(use_tts_template=True, ready=mute) == ["use_tts_template"]
    assert reported(use_tts_template=True, ignored=("turn.use_tts_template",)) is None
    ignored = ("turn.omni_mode", "turn.tts.mode")
    assert reported(omni_mode=True, tts={"mode": "omni"}, ignored=ignored) == ["omni_mode", "tts.mode"]


def of(**part: Any) -> Event:
    """A request of one message of one part."""
    return request(user(part))


def generated(**settings: Any) -> Event:
    return request(generation=settings)


MISSING = [
    (request(messages=None), "messages is missing"),
    (request(messages=[]), "messages is missing"),
    ({}, "messages is missing"),
    (request({"content": "x"}), "messages[0].role is missing"),
    (request({"role": "user"}), "messages[0].content is missing"),
    (request({"role": "user", "content": ""}), "messages[0].content is missing"),
    (request({"role": "user", "content": []}), "messages[0].content is missing"),
    (of(text="x"), "messages[0].content[0].type is missing"),
    (of(type="text"), "messages[0].content[0].text is missing"),
    (of(type="text", text=""), "messages[0].content[0].text is missing"),
    (of(type="image", data=None), "messages[0].content[0].data is missing"),
    (of(type="audio"), "messages[0].content[0].data is missing"),
    (of(type="video"), "messages[0].content[0].data is missing"),
]
MP4 = b"\0\0\0\x10ftypisom" + bytes(16)
VIDEO = base64.b64encode(MP4).decode()
INVALID: list[tuple[Any, str]] = [
    ([], "an event is a JSON object, got a list"),
    (request(messages={}), "messages: expected a list, got an object"),
    (request(*[USER] * 257), "messages: expected at most 256 messages, got 257"),
    (request({"role": "assistant", "content": "x"}), "messages: at least one user message is needed"),
    (request({"role": "robot", "content": "x"}), 'messages[0].role: expected "'),
    (
        request(USER, {"role": "user", "content": 7}),
        "messages[1].content: expected a string or a list, got 7",
    ),
    (of(type="smell"), 'messages[0].content[0].type: expected "text" or "image" or "audio"'),
    (
        of(type="video", data="AAAA", stack_frames=1),
        "messages[0].content[0].data: expected an MP4, MOV, WebM or Matroska file, got something else",
    ),
    (of(type="video", data="???"), "messages[0].content[0].data: expected base64"),
    (of(type="video", data=VIDEO, stack_frames=9), "stack_frames: expected an integer"),
    (
        request(user(*[{"type": "video", "data": VIDEO}] * 3), user(*[{"type": "video", "data": VIDEO}] * 2)),
        "messages[1].content[1]: expected at most 4 videos in all messages, got more",
    ),
    (of(type=["text"]), "messages[0].content[0].type"),
    (of(type="text", text=7), "messages[0].content[0].text: expected a string, got 7"),
    (of(type="image", data="AAAA"), "messages[0].content[0].data: expected a JPEG, PNG or WebP"),
    (request(user(*[{"type": "image", "data": "AAAA"}] * 5)), "at most 4 pictures in one message, got 5"),
    (of(type="audio", data="???"), "messages[0].content[0].data: expected base64"),
    (of(type="audio", data="AAA="), "expected a WAV file or whole float32 samples"),
    (of(type="audio", data=f32(), sample_rate=7999), "sample_rate: expected an integer"),
    (of(type="audio", data=f32(), sample_rate=48_001), "from 8000 to 48000, got 48001"),
    (of(type="audio", data=f32(0.01, level=np.nan)), "expected finite samples"),
    (of(type="audio", data=f32(0.01, level=17.0)), "not float32 PCM in [-1, 1]"),
    (request(streaming="yes"), 'streaming: expected true or false, got "yes"'),
    (request(generation=[]), "generation: expected an object, got a list"),
    (generated(max_new_tokens=0), "generation.max_new_tokens: expected an integer from 1 to 4096"),
    (generated(max_new_tokens=4097), "got 4097"),
    (generated(temperature=2.1), "generation.temperature: expected a number from 0 to 2, got 2.1"),
    (generated(top_p=0), "generation.top_p: expected a number above 0 up to 1, got 0"),
    (generated(length_penalty=0.05), "generation.length_penalty: expected a number from 0.1 to 5"),
    (request(tts={"mode": "loud"}), 'tts.mode: expected "'),
    (request(tts={"enabled": 1}), "tts.enabled: expected true or false, got 1"),
    (request(tts={"ref_audio_data": f32(0.4)}), "ref_audio_data: expected 0.5 s to 30 s of audio, got 0.4 s"),
    (request(tts={"ref_audio_path": "/etc"}), "tts.ref_audio_path: expected the id of a registered voice"),
    (request(image={"max_slice_nums": 10}), "image.max_slice_nums: expected an integer from 1 to 9, got 10"),
    (request(image={"use_image_id": "no"}), "image.use_image_id: expected true or false"),
]
REFUSED = [("missing_field", *case) for case in MISSING] + [("invalid_payload", *case) for case in INVALID]


@pytest.mark.parametrize(("code", "event", "told"), REFUSED, ids=[told for *_, told in REFUSED])
def test_field_that_is_missing_or_invalid(jar: ChatJar, code: str, event: Any, told: str) -> None:
    jar.client(event)
    refused(jar, code=code, close=1008, told=told)
    assert jar.slots == []


def test_too_much_audio_in_all_messages_or_too_much_for_the_worker(jar: ChatJar) -> None:
    clip = {"type": "audio", "data": f32(151, rate=8000), "sample_rate": 8000}
    jar.client(request(user(clip), user(clip)))
    refused(jar, code="invalid_payload", close=1008, told="at most 300 s of audio in all messages, got 302 s")
    file, large = io.BytesIO(), ChatJar()
    Image.frombytes("RGB", (580, 580), np.random.default_rng(1).bytes(580 * 580 * 3)).save(file, "PNG")
    picture = {"type": "image", "data": base64.b64encode(file.getvalue()).decode()}
    large.client(request(*[user(picture)] * (MAX_MEDIA_BYTES // len(file.getvalue()) + 1)))
    refused(large, code="invalid_payload", close=1008, told="at most 30 MiB of pictures, clips and videos")


def test_more_text_than_any_context_holds() -> None:
    half = "x" * (MAX_TEXT // 2)
    text, plain = {"type": "text", "text": half}, {"role": "user", "content": half}
    for messages, is_refused in (
        ([user(text), plain], False),
        ([user(text), {"role": "user", "content": half + "x"}], True),
        ([plain, user(text, {"type": "text", "text": "x"})], True),
    ):
        jar = ChatJar()
        jar.client(request(*messages))
        if is_refused:
            refused(jar, code="invalid_payload", close=1008, told=f"at most {MAX_TEXT} characters of text")
        assert bool(jar.slots) is not is_refused


def test_flood_of_frames(asked: ChatJar) -> None:
    for _ in range(999):
        asked.client(b"")
    assert asked.closed is None
    asked.client(b"")
    refused(asked, code="rate_limited", close=1008)


def test_large_request_is_read_beside_the_event_loop() -> None:
    jar, wrong, gone = (ChatJar(read_now=False) for _ in range(3))
    large = {"role": "user", "content": "x" * LARGE_FRAME}
    frame = json.dumps(request(large)).encode()
    jar.client(frame)
    assert jar.offload is not None
    assert jar.machine.held_bytes == len(frame)
    jar.client(request())
    assert jar.wait(30.0) == [], "the request is there, it only has to be read"
    jar.read()
    assert jar.slots == ["take"]
    assert jar.machine.held_bytes == LARGE_FRAME

    wrong.client(request(large, streaming=7))
    wrong.read()
    refused(wrong, code="invalid_payload", close=1008, told="streaming")
    gone.client(frame)
    gone.machine.disconnected()
    assert gone.read() == []
    assert gone.slots == []


def test_request_has_to_come_in_time_and_then_there_is_no_limit() -> None:
    jar, asked = ChatJar(init_timeout_s=20.0), ChatJar()
    assert jar.wait(19.9) == []
    jar.wait(0.1)
    refused(jar, code="init_timeout", close=1008, told="within 20 s")
    asked.client(request())
    assert asked.wait(10_000.0) == []
    assert asked.machine.deadline is None


def test_no_room(jar: ChatJar) -> None:
    jar.client(request(), drops_input=True)
    refused(jar, code="service_unavailable", close=1013)


INVALID_SETTINGS = (Reason.MODEL_NOT_FOUND, Reason.VOICE_NOT_FOUND, Reason.CONFIG_INVALID)
LOST = (
    *(Reason.UNIT_TIMEOUT, Reason.ENGINE_FATAL, Reason.WORKER_LOST, Reason.LEASE_REVOKED),
    Reason.MESSAGE_TOO_LARGE,
)


@pytest.mark.parametrize(
    ("reason", "code", "close"),
    [
        (Reason.MODE_UNSUPPORTED, "unsupported_mode", 1008),
        *((reason, "invalid_payload", 1008) for reason in INVALID_SETTINGS),
        (Reason.KV_EXHAUSTED, "inference_error", 1013),
        *((reason, "inference_error", 1011) for reason in LOST),
    ],
)
@pytest.mark.parametrize("state", [State.PREFILL, State.GENERATE])
def test_worker_that_fails(asked: ChatJar, reason: Reason, code: str, close: int, state: State) -> None:
    if state is State.GENERATE:
        asked.prefilled()
    asked.fail(reason)
    refused(asked, code=code, close=close)


FIELD = "messages[0].content[1]"


INVALID_INPUT = (
    *(Reason.AUDIO_INVALID, Reason.IMAGE_INVALID, Reason.VIDEO_INVALID, Reason.PARAMS_INVALID),
    *(Reason.CONTENT_UNSUPPORTED, Reason.INPUT_TOO_LONG),
)


@pytest.mark.parametrize("reason", [*INVALID_INPUT, Reason.INFERENCE_FAILED, None])
def test_turn_that_fails(asked: ChatJar, reason: Reason | None) -> None:
    asked.done(UnitEnd.FAILED if reason else UnitEnd.CANCELLED, None, failure=reason)
    is_invalid = reason in INVALID_INPUT
    code = "invalid_payload" if is_invalid else "inference_error"
    refused(asked, code=code, close=1008 if is_invalid else 1011)


@pytest.mark.parametrize(
    ("reason", "part", "problem", "told"),
    [
        (Reason.VIDEO_INVALID, "video", "is cut short", "is cut short"),
        (Reason.CONTENT_UNSUPPORTED, "image", "", "the model cannot take"),
    ],
)
def test_failed_part_is_named(asked: ChatJar, reason: Reason, part: str, problem: str, told: str) -> None:
    asked.done(UnitEnd.FAILED, None, failure=reason, field=f"turn.{FIELD}.{part}", problem=problem)
    refused(asked, code="invalid_payload", close=1008, told=f"{FIELD}.{part}: {told}")


@pytest.mark.parametrize("is_in_time", [True, False])
def test_worker_that_goes_away_ends_its_turn_or_the_session(asked: ChatJar, is_in_time: bool) -> None:
    asked.worker(GoingAway(5.0))
    if is_in_time:
        asked.say("Seven.")
        asked.done()
        assert asked.sent[-1]["type"] == "done"
    else:
        asked.fail(Reason.SESSION_LIMIT)
        refused(asked, code="service_unavailable", close=CloseCode.SERVICE_RESTART)


@pytest.mark.parametrize(("step", "close"), [("silent", 1013), ("asked", 1013), ("answered", 1012)])
def test_server_that_ends(jar: ChatJar, step: str, close: int) -> None:
    if step == "asked":
        jar.client(request())
    elif step == "answered":
        jar.ask()
    jar.do(jar.machine.shut_down())
    refused(jar, code="service_unavailable", close=close)


def test_client_that_does_not_read_and_key_that_is_withdrawn(asked: ChatJar) -> None:
    silent = ChatJar()
    asked.do(asked.machine.slow_consumer())
    refused(asked, code="slow_consumer", close=1008)
    silent.do(silent.machine.ended(errors.KEY_WITHDRAWN))
    refused(silent, code="unauthorized", close=3000)
