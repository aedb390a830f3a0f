"""Telemetry listens: it changes nothing of what a session says and does, and counts no unit twice."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.scripted_engine import (
    EVERYTHING,
    Play,
    ScriptedEngine,
    fails,
    listen,
    speak,
    turn_end,
    write,
)
from tests.ws_adapter.observability.test_metrics import figures, observed
from tests.ws_adapter.support import transcription_conversation as transcription
from tests.ws_adapter.support.chat_conversation import append as ask
from tests.ws_adapter.support.chat_conversation import request
from tests.ws_adapter.support.conversation import CLOSE, INIT, Event, append
from tests.ws_adapter.support.stage import Client, ManualClock, until
from ws_adapter.server import listener
from ws_adapter.session import slot

RELATED = {**INIT, "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
WRONG: Event = {"type": "no.such.event"}
UPDATE: Event = {**transcription.UPDATE, "model": EVERYTHING.name}

CONVERSATIONS: dict[str, tuple[list[Play], list[Event | str]]] = {
    "/v1/realtime?mode=audio": (
        [listen(), speak("One", "two"), fails(), turn_end("three")],
        [
            *("session.queue_done", RELATED, "session.created"),
            *(append(), "listen", append(), "text", "audio", WRONG, "error"),
            *(append(), "error", append(), "text", "audio", CLOSE, "session.closed"),
        ],
    ),
    "/ws/chat": ([write("Seven.")], [request(), "prefill_done", "chunk", "done"]),
    "/v1/realtime?mode=chat": (
        [write("Seven.")],
        [
            *("session.queue_done", INIT, "session.created", WRONG, "error"),
            *(ask(), "response.done", ask(), "response.done", CLOSE, "session.closed"),
        ],
    ),
    "/v1/transcription": (
        [write(" good"), write(" morning"), write()],
        [
            *("session.created", UPDATE, WRONG, "error", transcription.COMMIT),
            *(transcription.append(1.5), transcription.FINAL, "transcription.done"),
        ],
    ),
}
"""By the path: what the worker says, and what the client sends, and waits for, which is named."""

DRAWN = {"session_id", "response_id", "event_id", "item_id", "id", "trace_id", "input_id"}
"""Fields that are drawn by chance, and tell by their repetition."""

MEASURED = {"metrics", "server_send_ts", "created"}


class Deaf:
    """Takes the place of all that looks on while a session goes on: it hears nothing and says nothing."""

    def __init__(self, *_: Any) -> None:
        self.units = self

    def slot(self) -> "Deaf":
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass

    def ran(self, _: Any) -> str:
        return ""

    def headers(self) -> tuple[()]:
        return ()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **options: None


async def converse(path: str) -> tuple[list[Event], int | None, list[list[Any]]]:
    """Return a client's events, its close code, and the calls to the worker in each session."""
    plays, steps = CONVERSATIONS[path]
    engine = ScriptedEngine(*plays, slots=1, info=EVERYTHING, repeat=True)
    async with (
        observed(engine, clock=ManualClock()) as stage,
        stage.client(stage.address.replace("http://", "ws://") + path) as client,
    ):
        for step in steps:
            if isinstance(step, str):
                await reached(client, step)
            else:
                await client.send(step)
        await client.socket.close()
        await stage.until(free_slots=1)
    return client.events, client.close_code, [session.calls for session in engine.sessions]


async def reached(client: Client, name: str) -> None:
    while name not in ((event := await client.next())["type"], event.get("kind")):
        pass


def comparable(events: list[Event]) -> Any:
    """Return the events with drawn values replaced by their order, and without measured values."""
    drawn: dict[str, int] = {}

    def plain(told: Any) -> Any:
        if isinstance(told, list):
            return [plain(part) for part in told]
        if not isinstance(told, dict):
            return told
        return {
            name: drawn.setdefault(value, len(drawn)) if name in DRAWN else plain(value)
            for name, value in told.items()
            if name not in MEASURED
        }

    return plain(events)


@pytest.mark.parametrize("path", CONVERSATIONS)
async def test_session_without_telemetry_behaves_identically(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, code, asked = await converse(path)
    monkeypatch.setattr(listener, "SessionTelemetry", Deaf)
    unseen, unseen_code, unseen_asked = await converse(path)
    assert comparable(unseen) == comparable(events)
    assert unseen_code == code
    assert unseen_asked == asked


async def test_units_of_a_slot_outlast_the_cleaning_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat has its next slot while its last one is still cleaned: what ends there is not given up here."""
    monkeypatch.setattr(slot, "NEXT_SLOT_S", 0.0)
    held = Play((("Seven.", 0.0),), hold="generate")
    engine = ScriptedEngine(held, slots=2, info=EVERYTHING, repeat=True, slow_cleanup=True)
    async with observed(engine) as stage, stage.client(stage.url.replace("audio", "chat")) as client:
        await client.begin()
        await client.send(ask())
        await until(lambda: engine.sessions and engine.session.given)
        engine.session.release("generate", 1)
        await client.expect_until("response.done")
        await client.send(ask())
        await until(lambda: len(engine.sessions) == 2 and engine.session.given)
        await until(lambda: engine.sessions[0].is_closing)
        engine.sessions[0].finish_cleanup()
        await stage.until(free_slots=1)
        engine.session.release("generate", 1)
        await client.expect_until("response.done")
        await until(lambda: engine.session.is_closing)
        engine.session.finish_cleanup()
        await stage.until(free_slots=2)
        now = await figures(stage)

    assert now['antiphon_units_dropped_total{mode="chat",reason="session_end"}'] == 0
    assert sum(count for name, count in now.items() if name.startswith("antiphon_units_total")) == 2
