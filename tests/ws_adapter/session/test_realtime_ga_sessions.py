"""Realtime conversations on real sockets with a real worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.scripted_engine import EVERYTHING, Play, ScriptedEngine, hang, running_worker, turn_end
from tests.ws_adapter.support.realtime_ga_conversation import append, heard, message, told, update
from tests.ws_adapter.support.stage import Client, Stage, running_adapter, until

PATH = "/v1/realtime?model=scripted"
CREATE = {"type": "response.create"}
MANUAL = update(audio={"input": {"turn_detection": None}})


@asynccontextmanager
async def talking(
    *script: Play, slots: int = 1, **options: Any
) -> AsyncIterator[tuple[Stage, ScriptedEngine]]:
    """An adapter in front of a worker that plays `script` in each session."""
    engine = ScriptedEngine(*(script or (turn_end("Seven."),)), slots=slots, info=EVERYTHING, repeat=True)
    async with (
        running_worker(engine, slots=slots) as worker,
        running_adapter(worker.address, **options) as stage,
    ):
        yield stage, engine
        await stage.until(free_slots=slots)


def url(stage: Stage, path: str = PATH) -> str:
    return stage.address.replace("http", "ws", 1) + path


async def answered(client: Client) -> list[Any]:
    """Everything up to the end of a response."""
    start = len(client.events)
    await client.expect_until("response.done")
    return client.events[start:]


async def test_a_conversation_of_turns() -> None:
    async with talking() as (stage, _), stage.client(url(stage), subprotocols=["realtime"]) as client:
        assert client.socket.subprotocol == "realtime"
        await client.send(MANUAL, append(0.5), {"type": "input_audio_buffer.commit"}, CREATE)
        events = await answered(client)

        assert told(events)[:3] == ["session.created", "conversation.created", "session.updated"]
        assert events[-1]["response"]["status"] == "completed"
        assert len(heard(events)) == 24_000
        await client.send(message("And now?"), CREATE)
        assert (await answered(client))[-1]["response"]["status"] == "completed"


async def test_a_cancelled_answer_frees_the_worker_for_the_next() -> None:
    async with (
        talking(hang("generate"), turn_end("Seven.")) as (stage, engine),
        stage.client(url(stage)) as client,
    ):
        await client.send(MANUAL, message(), CREATE)
        await client.expect_until("response.created")
        await until(lambda: engine.sessions and engine.session.given)  # else the next turn hangs in its place

        await client.send({"type": "response.cancel"})
        cancelled = (await answered(client))[-1]
        await client.send(CREATE)
        done = (await answered(client))[-1]

        assert cancelled["response"]["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        assert done["response"]["status"] == "completed"


async def test_no_slot_in_time() -> None:
    async with talking(realtime_wait_s=1.0) as (stage, _), stage.client(url(stage)) as first:
        await first.expect("session.created")
        async with stage.client(url(stage)) as second:
            events, close = await second.end()

            assert told(events) == ["error:server_overloaded"]
            assert events[0]["error"]["type"] == "server_error"
            assert (close, second.socket.close_reason) == (1013, "server_error.server_overloaded")


async def test_a_model_that_nobody_serves() -> None:
    async with talking() as (stage, _):
        for path, code in (
            ("/v1/realtime?model=", "missing_model"),
            ("/v1/realtime?model=gpt", "invalid_model"),
        ):
            async with stage.client(url(stage, path)) as client:
                events, close = await client.end()

                assert told(events) == [f"error:{code}"]
                assert (close, client.socket.close_reason) == (4000, f"invalid_request_error.{code}")
