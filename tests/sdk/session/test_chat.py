"""A chat answer from the request to its end, also with a server that misbehaves."""

import asyncio
import base64
from pathlib import Path

import numpy as np
import pytest

import antiphon
from antiphon import (
    Answer,
    AntiphonError,
    AudioDelta,
    AudioError,
    Call,
    CallDelta,
    ChatEvent,
    Clip,
    ConnectError,
    Image,
    Message,
    Prefilled,
    ProtocolError,
    Queued,
    SessionClosed,
    Speech,
    TextDelta,
    ThinkingDelta,
    Tool,
    Video,
    VideoError,
)
from antiphon.audio.samples import to_base64
from tests.sdk.audio.test_wav import wav_bytes
from tests.sdk.replay import Peer, replay
from tests.support.patience import PATIENCE_S
from tests.support.schemas import check_server

pytestmark = pytest.mark.usefixtures("no_leaked_tasks")

PREFILLED = {"type": "prefill_done", "input_tokens": 27}
MP4 = b"\0\0\0\x10ftypisom"
TONE = np.array([0.5, -0.5], np.float32)
SECOND = np.full(16_000, 0.25, np.float32)


def chunk(text: str = "", audio: np.ndarray | None = None) -> dict[str, object]:
    data = None if audio is None else to_base64(audio)
    return {"type": "chunk", "text_delta": text, "audio_data": data}


def done(text: str, **fields: object) -> dict[str, object]:
    counts = {"generated_tokens": 4, "input_tokens": 27}
    return {"type": "done", "text": text, **counts, "audio_data": None, "recording_session_id": None} | fields


for proper in (PREFILLED, chunk("Sev", TONE), done("Seven.")):
    check_server("chat", proper)


async def requested(**options: object) -> dict[str, object]:
    """The request that `client.chat` sends."""
    seen = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.send(PREFILLED, done(""))

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.chat(**({"messages": "Name a prime."} | options)) as turn:  # type: ignore[arg-type]
            await turn.answer()
    return seen[0]


async def test_answer_comes_in_pieces_and_then_whole() -> None:
    """Events of a newer server are skipped."""
    places: list[Queued] = []
    place = {"position": 2, "queue_length": 3, "estimated_wait_s": 9.5, "eta_seconds": 9.5, "ticket_id": "t"}

    async def script(peer: Peer) -> None:
        assert peer.path == "/ws/chat"
        await peer.request()
        await peer.send(
            {"type": "queued", **place}, {"type": "queue_update", **place}, {"type": "queue_done"}
        )
        await peer.send({"type": "mood", "mood": "good"}, PREFILLED, chunk("Sev") | {"more": 1})
        await peer.send(chunk("en.", TONE), chunk(audio=TONE))
        await peer.send(done("Seven.", recording_session_id="rec_1", unsupported_fields=["tts.language"]))
        await peer.socket.close(1000)

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.chat("Name a prime.", on_queue=places.append) as turn:
            events: list[ChatEvent] = [event async for event in turn]

    assert places == [Queued(2, 3, 9.5, "t")] * 2
    assert events[0] == Prefilled(27)
    assert [type(event) for event in events[1:]] == [TextDelta, TextDelta, AudioDelta, AudioDelta, Answer]
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Sev", "en."]
    answer = events[-1]
    assert isinstance(answer, Answer)
    assert answer.samples.tolist() == [0.5, -0.5, 0.5, -0.5]
    assert (answer.text, answer.input_tokens, answer.generated_tokens) == ("Seven.", 27, 4)
    assert (answer.recording_session_id, answer.unsupported_fields) == ("rec_1", ("tts.language",))


async def test_answer_returns_the_whole_answer() -> None:
    async def script(peer: Peer) -> None:
        assert (await peer.request())["streaming"] is False
        await peer.send(PREFILLED, done("Seven.", audio_data=to_base64(TONE)))

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.chat("Name a prime.", streaming=False) as turn:
            answer = await turn.answer()
    assert (answer.text, answer.samples.tolist()) == ("Seven.", [0.5, -0.5])


async def test_request_contains_only_the_given_options() -> None:
    assert await requested() == {
        "messages": [{"role": "user", "content": "Name a prime."}],
        "streaming": True,
        "generation": {},
        "tts": {"enabled": False},
        "image": {},
        "omni_mode": False,
        "enable_thinking": False,
    }


async def test_request_contains_all_given_options() -> None:
    generation = {"max_new_tokens": 9, "temperature": 0.0, "top_p": 0.5, "length_penalty": 1.2}
    image = {"max_slice_nums": 2, "use_image_id": False}
    sent = await requested(
        generation=generation,
        speech=Speech(voice=Clip(SECOND), mode="audio_assistant", language="en"),
        images=image,
        omni_mode=True,
        enable_thinking=True,
    )
    spoken = {"enabled": True, "mode": "audio_assistant", "language": "en"}
    assert (sent["generation"], sent["image"]) == (generation, image)
    assert sent["tts"] == {**spoken, "ref_audio_data": to_base64(SECOND)}
    assert (sent["omni_mode"], sent["enable_thinking"]) == (True, True)


async def test_messages_carry_text_pictures_recordings_and_videos(tmp_path: Path) -> None:
    wav = wav_bytes(np.zeros(44_100, "<i2").tobytes(), rate_hz=44_100)
    (tmp_path / "circle.png").write_bytes(b"\x89PNG")
    (tmp_path / "question.wav").write_bytes(wav)
    (tmp_path / "video.mp4").write_bytes(MP4)
    sent = await requested(
        messages=[
            Message("system", "Be brief."),
            Message("user", ["Look:", Image.read(tmp_path / "circle.png"), Image(b"\xff\xd8")]),
            Message("assistant", "A circle."),
            Message("user", [Clip.read(tmp_path / "question.wav"), Clip(SECOND, 24_000)]),
            Message("user", [Video.read(tmp_path / "video.mp4", 3)]),
        ]
    )

    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image", "data": base64.b64encode(b"\x89PNG").decode()},
                {"type": "image", "data": base64.b64encode(b"\xff\xd8").decode()},
            ],
        },
        {"role": "assistant", "content": "A circle."},
        {
            "role": "user",
            "content": [
                {"type": "audio", "data": base64.b64encode(wav).decode(), "sample_rate": 16_000},
                {"type": "audio", "data": to_base64(SECOND), "sample_rate": 24_000},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "video", "data": base64.b64encode(MP4).decode(), "stack_frames": 3}],
        },
    ]


def test_bytes_that_are_no_video_are_refused(tmp_path: Path) -> None:
    (tmp_path / "old.avi").write_bytes(b"RIFF")
    with pytest.raises(VideoError, match="are those of an MP4, MOV, WebM or Matroska file"):
        Video(b"RIFF")
    with pytest.raises(VideoError, match=r"old\.avi is no MP4, .*ffmpeg -i"):
        Video.read(tmp_path / "old.avi")


async def test_voice_may_be_a_file_or_a_name_of_the_server() -> None:
    wav = wav_bytes(np.zeros(24_000, "<i2").tobytes(), rate_hz=24_000)
    by_file, by_name = await requested(speech=Speech(Clip(wav))), await requested(speech=Speech("anna"))
    assert by_file["tts"] == {"enabled": True, "ref_audio_data": base64.b64encode(wav).decode()}
    assert by_name["tts"] == {"enabled": True, "ref_audio_path": "anna"}


async def test_unsendable_content_is_refused_before_sending(tmp_path: Path) -> None:
    (tmp_path / "music.mp3").write_bytes(b"ID3")
    with pytest.raises(AudioError, match=r"ffmpeg -i .*music\.mp3"):
        Clip.read(tmp_path / "music.mp3")
    with pytest.raises(AudioError, match="those of a WAV file"):
        Clip(b"ID3")
    with pytest.raises(AudioError, match="float64"):
        Clip(SECOND.astype(np.float64))  # type: ignore[arg-type]
    with pytest.raises(AudioError, match="16000 Hz, not 24000"):
        await requested(speech=Speech(Clip(SECOND, 24_000)))
    with pytest.raises(FileNotFoundError):
        Image.read(tmp_path / "none.png")


async def refusal(script: object) -> AntiphonError:
    async with replay(script) as url, antiphon.connect(url) as client:  # type: ignore[arg-type]
        with pytest.raises(AntiphonError) as caught:
            async with client.chat("Name a prime."):
                pytest.fail("an answer began")
    return caught.value


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [(1013, ConnectError, True), (1008, ConnectError, False), (1009, ProtocolError, False)],
)
async def test_close_before_the_answer_raises(code: int, kind: type[AntiphonError], retryable: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.socket.close(code)

    error = await refusal(script)
    assert type(error) is kind
    assert error.retryable is retryable
    assert str(code) in str(error)


async def test_error_of_a_server_that_does_not_read_the_request_is_raised() -> None:
    async def shut_down(peer: Peer) -> None:
        await peer.send({"type": "error", "error": "Shutting down.", "code": "service_unavailable"})
        await peer.socket.close(1013)

    async def refuse_the_size(peer: Peer) -> None:
        await peer.socket.wait_closed()

    assert (await refusal(shut_down)).reason == "service_unavailable"
    async with replay(refuse_the_size, max_message_bytes=1000) as url, antiphon.connect(url) as client:
        with pytest.raises(ProtocolError, match="1009") as caught:
            async with client.chat([Message("user", [Image(bytes(2**23))])]):
                pytest.fail("an answer began")
    assert caught.value.reason == "too_large"


async def test_failed_answer_raises_after_the_received_events() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(PREFILLED, chunk("Sev"))
        await peer.send({"type": "error", "error": "The worker was lost.", "code": "inference_error"})
        await peer.socket.close(1011)

    async with replay(script, headers={"antiphon-trace-id": "4bf92f"}) as url:
        async with antiphon.connect(url) as client, client.chat("Name a prime.") as turn:
            assert [await anext(turn), await anext(turn)] == [Prefilled(27), TextDelta("Sev")]
            for _ in range(2):
                with pytest.raises(SessionClosed, match="The worker was lost") as caught:
                    await anext(turn)
    assert (caught.value.reason, caught.value.trace_id) == ("backend_error", "4bf92f")
    assert caught.value.retryable


async def test_leaving_the_block_stops_the_answer() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(PREFILLED, chunk("One, "))
        await peer.socket.wait_closed()
        gone.set()

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.chat("Count.") as turn:
            assert [await anext(turn), await anext(turn)] == [Prefilled(27), TextDelta("One, ")]
        await asyncio.wait_for(gone.wait(), PATIENCE_S)
        assert [event async for event in turn] == []
        with pytest.raises(SessionClosed, match="user_stop"):
            await turn.answer()


async def test_leaving_the_client_stops_the_answers_of_other_tasks() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(PREFILLED)
        await peer.socket.wait_closed()

    async def read(client: antiphon.Client, begun: asyncio.Event) -> list[ChatEvent]:
        async with client.chat("Count.") as turn:
            begun.set()
            return [event async for event in turn]

    async with replay(script) as url:
        begun = asyncio.Event()
        async with antiphon.connect(url) as client:
            reader = asyncio.create_task(read(client, begun))
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
        assert await asyncio.wait_for(reader, PATIENCE_S) == [Prefilled(27)]


async def test_late_reader_loses_no_event() -> None:
    everything_sent = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(PREFILLED, *[chunk("a") for _ in range(4096)], done("a" * 4096))
        everything_sent.set()

    async with replay(script) as url, antiphon.connect(url) as client, client.chat("Say a.") as turn:
        await asyncio.wait_for(everything_sent.wait(), PATIENCE_S)
        events = [event async for event in turn]
    assert len(events) == 4098


async def test_audio_for_a_worker_is_decoded_here() -> None:
    clip = Clip(wav_bytes(np.array([0, 16384], "<i2").tobytes()))
    assert clip.samples(16_000).tolist() == [0.0, 0.5]
    assert Clip(SECOND).samples(16_000) is SECOND
    for unfit in (clip, Clip(SECOND)):
        with pytest.raises(AudioError, match="24000 Hz"):
            unfit.samples(24_000)


WEATHER = Tool("weather", "Of a city.", {"type": "object", "properties": {"city": {"type": "string"}}})
CALLED = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
}


def called(arguments: str, *, complete: bool = False) -> dict[str, object]:
    """A chunk with more of a call."""
    call = {"index": 0, "id": "call_1", "name": "weather", "arguments": arguments, "complete": complete}
    return {"type": "chunk", "text_delta": "", "audio_data": None, "tool_call": call}


async def test_a_call_is_carried_out_and_its_result_sent_back() -> None:
    """As the documentation shows it."""
    requests = []

    async def script(peer: Peer) -> None:
        requests.append(await peer.request())
        if len(requests) == 1:
            thought = {"type": "chunk", "text_delta": "", "audio_data": None, "thinking_delta": "Hm."}
            pieces = (thought, called('{"city": '), called('"Bern"}'), called("", complete=True))
            end = done("") | {"tool_calls": [CALLED], "thinking": "Hm."}
            await peer.send(PREFILLED, *pieces, end)
        else:
            await peer.send(PREFILLED, done("It rains."))

    chat = [Message("user", "Weather in Bern?")]
    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.chat(chat, tools=[WEATHER], tool_choice=WEATHER, parallel_tool_calls=False) as turn:
            *events, answer = [event async for event in turn]
        assert isinstance(answer, Answer)
        assert (answer.calls, answer.thinking) == ((Call("call_1", "weather", '{"city": "Bern"}'),), "Hm.")
        chat.append(Message("assistant", answer.text, answer.calls))
        chat += [Message("tool", "Rain.", call_id=call.id) for call in answer.calls]
        async with client.chat(chat, tools=[WEATHER]) as turn:
            assert (await turn.answer()).text == "It rains."

    assert [event for event in events if isinstance(event, ThinkingDelta)] == [ThinkingDelta("Hm.")]
    deltas = [event for event in events if isinstance(event, CallDelta)]
    assert "".join(it.arguments for it in deltas) == '{"city": "Bern"}'
    assert [it.complete for it in deltas] == [False, False, True]
    first, second = requests
    function = {"name": "weather", "description": "Of a city.", "parameters": dict(WEATHER.parameters or {})}
    assert first["tools"] == second["tools"] == [{"type": "function", "function": function}]
    assert first["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (first["parallel_tool_calls"], second["tool_choice"]) == (False, "auto")
    assert second["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [CALLED]},
        {"role": "tool", "content": "Rain.", "tool_call_id": "call_1"},
    ]
