"""Sessions of every protocol go on over another connection, in the middle of an answer."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, running_worker, speak, write
from tests.ws_adapter.resume.test_resuming import detached, url_of
from tests.ws_adapter.support import realtime_ga_conversation as ga
from tests.ws_adapter.support.chat_conversation import append as chat_append
from tests.ws_adapter.support.chat_conversation import request
from tests.ws_adapter.support.conversation import INIT, Event
from tests.ws_adapter.support.stage import Client, ManualClock, running_adapter, until
from tests.ws_adapter.support.transcription_conversation import COMMIT, FINAL
from tests.ws_adapter.support.transcription_conversation import append as spoken

WORDS = ("One ", "two ", "three ", "four ", "five.")


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


TALKS = {
    "realtime_chat": Talk(
        "/v1/realtime?mode=chat", [INIT], "session.created", [chat_append(streaming=True)], "response.done"
    ),
    "transcription": Talk(
        "/v1/transcription?",
        [{"type": "session.update", "model": EVERYTHING.name}, COMMIT, spoken(), FINAL],
        "session.created",
        [],
        "transcription.done",
    ),
    "realtime_ga": Talk(
        f"/v1/realtime?model={EVERYTHING.name}",
        [ga.update(output_modalities=["text"]), ga.message(), {"type": "response.create"}],
        "session.created",
        [],
        "response.done",
    ),
}
RESUMABLE: dict[str, Any] = {"admin_port": 0, "resume_window_s": 60}


@pytest.mark.parametrize("name", TALKS)
async def test_answer_goes_on_where_the_connection_was_lost(name: str) -> None:
    talk = TALKS[name]
    engine = ScriptedEngine(write(*WORDS, hold="finalize"), info=EVERYTHING, repeat=True)
    async with running_worker(engine) as worker, running_adapter(worker.address, **RESUMABLE) as stage:
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
    async with running_worker(engine) as worker, running_adapter(worker.address, **RESUMABLE) as stage:
        async with stage.client(stage.address.replace("http://", "ws://") + "/ws/chat") as client:
            await client.send(request())
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
    async with running_worker(engine) as worker, running_adapter(worker.address, **RESUMABLE) as stage:
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
    async with running_worker(engine) as worker:
        async with running_adapter(worker.address, clock=clock, **RESUMABLE) as stage:
            wanted = {
                "session": {"type": "realtime", "model": EVERYTHING.name},
                "expires_after": {"anchor": "created_at", "seconds": 10},
            }
            path = "/v1/realtime/client_secrets"
            _, _, secret = await stage.request(path, "POST", body=json.dumps(wanted).encode())
            bearer: dict[str, Any] = {"additional_headers": {"Authorization": f"Bearer {secret['value']}"}}
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
