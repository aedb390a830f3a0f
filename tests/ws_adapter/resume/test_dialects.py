"""Sessions of every protocol go on over another connection, in the middle of an answer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from tests.support.scripted_engine import EVERYTHING, Script, ScriptedEngine, speak, write
from tests.ws_adapter.access.test_secret_requests import secret
from tests.ws_adapter.resume.test_resuming import detached, stage_of, url_of
from tests.ws_adapter.support import chat_conversation as chat
from tests.ws_adapter.support import realtime_ga_conversation as ga
from tests.ws_adapter.support import transcription_conversation as transcription
from tests.ws_adapter.support import transcription_ga_conversation as transcription_ga
from tests.ws_adapter.support.conversation import Event
from tests.ws_adapter.support.stage import Client, ManualClock, until

WORDS = ("One ", "two ", "three.")


class Talk(NamedTuple):
    """A conversation: what the client sends before and behind the event with its token, and how the answer
    ends."""

    path: str
    sends: Sequence[Event]
    offers: str
    sends_later: Sequence[Event]
    ends: str


def text_of(event: Event) -> str:
    """The part of the answer in an event, in any protocol."""
    is_whole = event["type"].endswith(("done", "audio.delta"))
    for name in ("text_delta", "delta", "text"):
        if isinstance(event.get(name), str) and not is_whole:
            return str(event[name])
    return ""


def script(key: str) -> str:
    """A prompt: the worker says `WORDS`, and waits in the middle of the answer."""
    return Script((write(*WORDS, hold="generate"),), key=key).as_prompt()


def system(text: str) -> Event:
    return {"role": "system", "content": text}


TALKS = {
    "realtime": Talk(
        "/v1/realtime?model=scripted",
        [],
        "session.created",
        [
            ga.update(output_modalities=["text"], instructions=script("realtime")),
            ga.message(),
            {"type": "response.create"},
        ],
        "response.done",
    ),
    "chat": Talk(
        "/ws/chat?",
        [chat.request(system(script("chat")), chat.USER, streaming=True, tts={"enabled": False})],
        "prefill_done",
        [],
        "done",
    ),
    "realtime_chat": Talk(
        "/v1/realtime?mode=chat",
        [{"type": "session.init", "payload": {"system_prompt": script("realtime_chat")}}],
        "session.created",
        [chat.append(chat.USER, streaming=True)],
        "response.done",
    ),
    "transcription": Talk(
        "/v1/transcription?",
        [],
        "session.created",
        [{**transcription.UPDATE, "model": "scripted"}, transcription.append(), transcription.FINAL],
        "transcription.done",
    ),
    "transcription_ga": Talk(
        "/v1/realtime?intent=transcription",
        [],
        "session.created",
        [transcription_ga.update(), ga.append(0.5), {"type": "input_audio_buffer.commit"}],
        f"{transcription_ga.WORDS}.completed",
    ),
}


@pytest.mark.parametrize("name", sorted(TALKS.keys() - {"chat"}))  # whose connection ends with its answer
async def test_answer_goes_on_where_the_connection_was_lost(name: str) -> None:
    talk = TALKS[name]
    engine = ScriptedEngine(write(*WORDS, hold="finalize"), info=EVERYTHING, repeat=True)
    async with stage_of(engine) as stage:
        url = stage.address.replace("http://", "ws://") + talk.path
        async with stage.client(url) as client:
            await client.send(*talk.sends)
            offered = await client.expect_until(talk.offers)
            await client.send(*talk.sends_later)
            while not text_of(await client.next()):
                pass
            seen = len(client.events)
            client.vanish()
        await detached(stage)

        async with stage.client(url_of(stage, offered["resume"]["token"], seen, talk.path)) as back:
            await back.expect("session.resumed")
            engine.session.release("finalize", 1)
            await back.expect_until(talk.ends)
            events = [*client.events, *back.events[1:]]

        assert "".join(map(text_of, events)) == "".join(WORDS)
        assert sum(event["type"] == talk.ends for event in events) == 1
        assert len(engine.sessions) == 1


@pytest.mark.parametrize("is_cut_before_the_answer", [True, False])
async def test_answer_unsent_at_disconnect_is_sent_at_resume(
    is_cut_before_the_answer: bool,
) -> None:
    """Also where the server has closed the connection behind the answer, and no Close came back."""
    engine = ScriptedEngine(write(*WORDS, hold="generate"), info=EVERYTHING)
    async with stage_of(engine) as stage:
        async with stage.client(stage.address.replace("http://", "ws://") + "/ws/chat") as client:
            await client.send(chat.request())
            token = (await client.expect_until("prefill_done"))["resume"]["token"]
            client.socket.transport.pause_reading()
            if is_cut_before_the_answer:
                client.vanish()
                await detached(stage)
            engine.session.release("generate", 1)
            await until(lambda: engine.session.is_closed)
            client.vanish()
        await detached(stage)

        async with stage.client(url_of(stage, token, len(client.events), "/ws/chat?")) as back:
            await back.expect("session.resumed")
            events, code = await back.end()

        assert "".join(map(text_of, events)) == "".join(WORDS)
        assert (events[-1]["type"], code) == ("done", 1000)
        await detached(stage, 0)


async def test_live_stream_goes_on() -> None:
    engine = ScriptedEngine(speak("word"), info=EVERYTHING, repeat=True)
    async with stage_of(engine) as stage:
        path = "/v1/live/sessions?"
        async with stage.client(stage.address.replace("http://", "ws://") + path) as client:
            start = {"type": "session.start", "session": {"model": EVERYTHING.name}}
            await client.send(start)
            token = (await client.expect_until("session.started"))["resume"]["token"]
            seen = len(client.events)
            await stream_of(client)
            client.vanish()
        await detached(stage)
        async with stage.client(url_of(stage, token, seen, path)) as back:
            await back.expect("session.resumed")
            missed = client.events[seen:]
            assert [await back.next() for _ in missed] == missed
            await stream_of(back)


async def stream_of(client: Client) -> None:
    """Some of the sound that comes all the time."""
    for _ in range(3):
        await client.expect_until("session.output_audio.delta")


async def test_session_of_a_client_secret_that_has_expired_since_can_be_resumed() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(write(*WORDS), info=EVERYTHING)
    async with stage_of(engine, clock) as stage:
        session = {"type": "realtime", "model": EVERYTHING.name}
        value = await secret(stage, session=session, expires_after={"seconds": 10})
        bearer: dict[str, Any] = {"additional_headers": {"Authorization": f"Bearer {value}"}}
        url = stage.address.replace("http://", "ws://") + "/v1/realtime"
        async with stage.client(url, **bearer) as client:
            token = (await client.expect("session.created"))["resume"]["token"]
            await client.expect("conversation.created")
            client.vanish()
        await detached(stage)
        await clock.advance(20)
        async with stage.client(url, **bearer) as late:
            assert (await late.expect("error"))["error"]["code"] == "invalid_api_key"
        async with stage.client(url_of(stage, token, 2, "/v1/realtime?"), **bearer) as back:
            await back.expect("session.resumed")
            await back.send(ga.message(), {"type": "response.create"})
            await back.expect_until("response.done")
