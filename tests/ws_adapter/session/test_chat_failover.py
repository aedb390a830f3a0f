"""Chats whose worker is lost in the middle of an answer: another worker goes on behind the last word."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from antiphon_service.semconv import FailoverOutcome
from inference_service.interface.engine import End
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import CONTINUING, EVERYTHING, Play, Script
from tests.ws_adapter.session.test_failover import Backend, backend
from tests.ws_adapter.support.chat_conversation import USER, append, request
from tests.ws_adapter.support.stage import Client, Stage, until

pytestmark = pytest.mark.usefixtures("patience")

CHAT = "/ws/chat"
BEGUN = ("Sev", "en,")
REST = (" and", " eleven.")
CUT = Play(says=tuple((word, 0.0) for word in BEGUN), end=End.TURN, hold="generate")
SPEAK = request(streaming=True, tts={"enabled": True})
WHOLE = Play(says=tuple((word, 0.0) for word in (*BEGUN, *REST)), end=End.TURN)


async def ws_chat(stage: Stage) -> AsyncIterator[str]:
    async with stage.client(CHAT) as client:
        await client.send(request(streaming=True, tts={"enabled": False}))
        while (event := await client.next())["type"] != "done":
            assert event["type"] in ("prefill_done", "chunk", "session.queued", "queued", "queue_done"), event
            yield event.get("text_delta") or ""
    assert [event["type"] for event in client.events].count("prefill_done") == 1


async def realtime_chat(stage: Stage) -> AsyncIterator[str]:
    async with stage.client("/v1/realtime?mode=chat") as client:
        await client.expect_until("session.queue_done")
        await client.send({"type": "session.init", "payload": {}})
        await client.expect_until("session.created")
        await client.send(append(USER))
        while (event := await client.next())["type"] != "response.done":
            assert not event["type"].startswith("error"), event
            yield event.get("text") or ""


async def realtime(stage: Stage) -> AsyncIterator[str]:
    async with stage.client(f"/v1/realtime?model={CONTINUING.name}") as client:
        await client.expect_until("session.created")
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "A prime?"}]}
        await client.send(
            {"type": "session.update", "session": {"type": "realtime", "output_modalities": ["text"]}},
            {"type": "conversation.item.create", "item": item},
            {"type": "response.create"},
        )
        while (event := await client.next())["type"] != "response.done":
            yield event["delta"] if event["type"] == "response.output_text.delta" else ""
        assert event["response"]["status"] == "completed"


async def completions(stage: Stage) -> AsyncIterator[str]:
    options: Any = {"max_retries": 0, "timeout": PATIENCE_S}
    async with AsyncOpenAI(api_key="none", base_url=f"{stage.address}/v1", **options) as client:
        messages: Any = [USER]
        stream = await client.chat.completions.create(model=CONTINUING.name, messages=messages, stream=True)
        async for chunk in stream:
            yield chunk.choices[0].delta.content or ""


async def lose_in_the_middle(home: Backend, other: Play = WHOLE) -> None:
    """Lose the worker that has begun to answer; the other one knows how the answer goes on."""
    await until(lambda: any(engine.sessions and engine.session.given for engine in home.engines))
    first = home.at
    home.engines[1 - first].script = Script((other,))
    home.lose(first)


async def fails(client: Client) -> None:
    events, code = await client.end()
    assert [event["type"] for event in events] == ["error"]
    assert code == 1011


@pytest.mark.parametrize("dialect", [ws_chat, realtime_chat, realtime, completions])
async def test_answer_goes_on_behind_its_last_word(dialect: Callable[[Stage], AsyncIterator[str]]) -> None:
    async with backend(CUT, info=CONTINUING) as home, asyncio.timeout(PATIENCE_S):
        words = []
        async for word in dialect(home.stage):
            words += [word] if word else []
            if "".join(words) == "".join(BEGUN):
                await lose_in_the_middle(home)
        assert "".join(words) == "".join((*BEGUN, *REST))
        (second,) = [engine for engine in home.engines if not engine.is_stopped]
        (turn,) = second.session.given.values()
        assert turn.begun == (0, 1)  # type: ignore[union-attr]
        assert await home.outcome(FailoverOutcome.CONTINUED) == 1
        await until(lambda: not second.sessions or second.session.is_closed)
        assert await home.value("antiphon_journal_bytes") == 0


@pytest.mark.parametrize(
    ("info", "options"),
    [(EVERYTHING, {}), (CONTINUING, {"journal_mib": 1e-5})],
    ids=["the model replays nothing", "the turn is too large for the journal"],
)
async def test_answer_that_cannot_go_on_fails_as_ever(info: Any, options: dict[str, Any]) -> None:
    async with backend(CUT, info=info, **options) as home, home.stage.client(CHAT) as client:
        await client.send(request(streaming=True))
        text = ""
        while text != "".join(BEGUN):
            text += (await client.next()).get("text_delta") or ""
        home.lose(home.at)
        await fails(client)
        assert sum(bool(engine.sessions) for engine in home.engines) == 1


def spoken(*words: str, hold: str | None = None) -> Play:
    """An answer with 0.3 s of sound for each word."""
    return Play(says=tuple((word, 0.3) for word in words), end=End.TURN, hold=hold)


async def hear(client: Client, text: str) -> bytes:
    """The sound of an answer, up to this text."""
    sound, said = b"", ""
    while said != text:
        event = await client.next()
        if event["type"] == "chunk":
            said += event.get("text_delta") or ""
            sound += base64.b64decode(event.get("audio_data") or "")
    return sound


async def test_spoken_answer_goes_on_behind_its_last_sound() -> None:
    """Another worker gives the same answer from its beginning, and nothing of it comes twice."""
    whole = spoken(*BEGUN, *REST)
    async with backend(whole, workers=1, info=CONTINUING) as home, home.stage.client(CHAT) as client:
        await client.send(SPEAK)
        expected = await hear(client, "".join((*BEGUN, *REST)))
        await client.expect_until("done")
    async with backend(spoken(*BEGUN, hold="generate"), info=CONTINUING) as home, asyncio.timeout(PATIENCE_S):
        async with home.stage.client(CHAT) as client:
            await client.send(SPEAK)
            told = await hear(client, "".join(BEGUN))
            await lose_in_the_middle(home, whole)
            told += await hear(client, "".join(REST))
            done = await client.expect_until("done")
        assert done["text"] == "".join((*BEGUN, *REST))
        assert told == expected
        assert await home.outcome(FailoverOutcome.CONTINUED) == 1


@pytest.mark.parametrize(
    "other",
    [
        spoken("Eight", " is", " none."),
        spoken("Sev"),
        Play(says=(("Sev", 0.21), ("en,", 0.39)), end=End.TURN),
    ],
    ids=["other words", "fewer words", "other sound"],
)
async def test_spoken_answer_that_another_worker_does_not_give_again_fails_as_ever(other: Play) -> None:
    async with backend(spoken(*BEGUN, hold="generate"), info=CONTINUING) as home, asyncio.timeout(PATIENCE_S):
        async with home.stage.client(CHAT) as client:
            await client.send(SPEAK)
            await hear(client, "".join(BEGUN))
            await lose_in_the_middle(home, other)
            await fails(client)
