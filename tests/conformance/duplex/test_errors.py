"""Errors and endings of `/ws/duplex`, a row for each kind."""

import asyncio
import signal

import pytest

from inference_service.interface.engine import Failure, SessionFailed
from tests.conformance.support.client import Event
from tests.conformance.support.duplex_words import (
    LABEL,
    OMNI,
    PAUSE,
    RESUME,
    begin,
    chunk,
    error,
    listens,
    prepare,
    speaks,
    stop,
    stopped,
)
from tests.conformance.support.stack import Stack as Processes
from tests.conformance.support.stack import prompted_worker, running_stack, scripted_worker
from tests.support.scripted_engine import (
    Play,
    Script,
    context_full,
    fails,
    hang,
    listen,
    speak,
)
from ws_adapter.web.message import SMALL_MESSAGE

LEAKS = ("Traceback", "Error", "msgspec", "127.0.0.1", "/home", ".py", "$", LABEL)
LOST = [error("inference_error"), stopped("error")]


async def test_queue_full_and_longest_wait(narrow: Processes) -> None:
    options = ("--queue-capacity", "1", "--queue-max-wait-s", "1")
    with running_stack(narrow.worker, options=options) as small:
        async with small.client(OMNI) as holder, small.client(OMNI) as waiting:
            await begin(holder)
            await waiting.expect("queued")
            async with small.client(OMNI) as client:
                assert await client.end() == ([error("queue_full")], 1013)
            assert await waiting.end() == ([error("queue_timeout")], 1013)


async def test_service_unavailable() -> None:
    with scripted_worker() as worker:
        with running_stack(worker, options=("--no-worker-grace-s", "0.3")) as stack:
            worker.process.kill()
            await stack.until(ready=False)
            async with stack.client(OMNI) as client:
                events, code = await client.end()
                assert events[-1] == error("service_unavailable")
                assert {event["type"] for event in events[:-1]} <= {"queued", "queue_update"}
                assert code == 1013


async def test_config_invalid(stack: Processes) -> None:
    async with stack.client(OMNI) as client:
        await client.expect("queue_done")
        await client.send(prepare(Script(refuses=SessionFailed("CONFIG_INVALID", "Too long."))))
        assert await client.end() == ([error("invalid_payload"), stopped("error")], 1008)


@pytest.mark.parametrize("step", ["refused", "failure"])
async def test_item_error_never_ends_the_session(stack: Processes, step: str) -> None:
    play = Play(**{step: Failure("IMAGE_INVALID", "no")})  # type: ignore[arg-type]
    async with stack.client(OMNI) as client:
        await begin(client, *[play] * 4)
        await client.send(chunk(64_000), chunk())
        for unit in range(1, 5):
            assert await client.take(2) == [error("invalid_payload"), listens(unit)]
        assert await client.next() == listens(5)


async def test_inference_failed(stack: Processes) -> None:
    """An open response is over; the third failure in a row ends the session."""
    failed = error("inference_error")
    async with stack.client(OMNI) as client:
        await begin(client, speak("Well"), fails(), fails(), listen(), fails(), fails(), fails())
        await client.send(chunk(7 * 16_000))
        answers = [speaks(1, "Well", 1.0), failed, listens(2), failed, listens(3), listens(4)]
        ends = [failed, listens(5), failed, listens(6), failed, listens(7), stopped("error")]
        assert await client.end() == (answers + ends, 1011)
        assert client.events[-2]["wall_clock_ms"] > 0


async def test_context_full(stack: Processes) -> None:
    async with stack.client(OMNI) as client:
        await begin(client, listen(), context_full())
        await client.send(chunk(48_000))
        assert await client.end() == ([listens(1), listens(2), stopped("context_full")], 1000)


@pytest.mark.parametrize(
    ("reason", "close"), [("KV_EXHAUSTED", 1013), ("ENGINE_FATAL", 1011), ("INFERENCE_FAILED", 1011)]
)
async def test_session_failed(stack: Processes, reason: str, close: int) -> None:
    async with stack.client(OMNI) as client:
        await begin(client, listen(), Play(fails_session=SessionFailed(reason, "gone")))
        await client.send(chunk())
        assert await client.next() == listens(1)
        await client.send(chunk())
        events, code = await client.end()
        assert (events[-2:], code) == (LOST, close)


async def test_worker_lost() -> None:
    with prompted_worker(2) as worker, running_stack(worker) as stack:
        async with stack.client(OMNI) as active, stack.client(OMNI) as paused:
            await begin(active, listen(), hang("generate"))
            await begin(paused)
            await active.send(chunk(32_000))
            assert await active.next() == listens(1)
            assert await paused.ask(PAUSE) == {"type": "paused", "timeout": 60}
            worker.process.kill()
            assert await active.end() == (LOST, 1011)
            assert await paused.end() == (LOST, 1011)


async def test_worker_goes_away() -> None:
    with scripted_worker("--drain-timeout-s", "0.3", "--prompted") as worker, running_stack(worker) as stack:
        async with stack.client(OMNI) as client:
            await begin(client)
            await client.send(chunk())
            assert await client.next() == listens(1)
            worker.process.send_signal(signal.SIGTERM)
            assert await client.end() == ([stopped("server_shutdown")], 1012)


async def test_adapter_shutdown() -> None:
    with prompted_worker(1) as worker:
        with running_stack(worker, options=("--drain-timeout-s", "2")) as stack:
            async with stack.client(OMNI) as active, stack.client(OMNI) as queued:
                await begin(active)
                await queued.expect("queued")
                stack.process.send_signal(signal.SIGTERM)
                assert await queued.end() == ([error("service_unavailable")], 1013)
                await active.send(chunk())
                assert await active.next() == listens(1)
                assert await active.end() == ([stopped("server_shutdown")], 1012)


async def test_slow_reader(stack: Processes) -> None:
    script = Script((speak("On and on"),), repeat=True)
    with running_stack(stack.worker, options=("--slow-consumer-s", "0.5")) as strict:
        async with strict.raw_client(OMNI) as client:
            await client.expect("queue_done")
            await client.send(prepare(script))
            await client.expect("prepared")
            await client.send(*[chunk() for _ in range(25)])
            await asyncio.to_thread(strict.wait_until_nothing_runs)
            events, code, _ = await client.end()

    assert code == 1008
    assert events[-1] == stopped("error")
    assert all(event["type"] == "result" for event in events[:-1])


@pytest.mark.parametrize("text", ["no json", "", '{"type":"pause","timeout":NaN}'])
async def test_not_json(stack: Processes, text: str) -> None:
    async with stack.client(OMNI) as client:
        await begin(client)
        await client.send(text)
        assert await client.end() == ([error("invalid_json")], 1003)


MALFORMED: list[tuple[Event | list[Event], str, str | None]] = [
    ([], "invalid_payload", None),
    ({}, "missing_field", None),
    ({"type": "nonsense"}, "unknown_event", "Unknown message type: nonsense"),
    (chunk(force_listen="yes"), "invalid_payload", 'force_listen: expected true or false, got "yes"'),
    (chunk(frames="AAAA"), "invalid_payload", None),
    ({"type": "client_diagnostic", "x": "x" * 65_536}, "invalid_payload", None),
]


async def test_malformed_event_is_one_error_and_nothing_is_lost(stack: Processes) -> None:
    async with stack.client(OMNI) as client:
        await begin(client, speak("Well"))
        await client.send(chunk(8000))
        for event, code, text in MALFORMED:
            refused = await client.ask(event)
            assert refused == error(code, text)
            assert not any(leak in refused["error"] for leak in LEAKS)
        await client.send(chunk(8000))
        assert await client.next() == speaks(1, "Well", 1.0)
        assert await stop(client) == []


async def test_more_than_20_errors_in_a_second(stack: Processes) -> None:
    async with stack.client(OMNI) as client:
        await begin(client)
        await client.send(PAUSE, *[chunk(100)] * 25)
        assert await client.end() == (
            [
                {"type": "paused", "timeout": 60},
                *[error("paused", "Worker is paused")] * 20,
                error("rate_limited"),
            ],
            1008,
        )


async def test_more_than_1000_events_in_5_s(stack: Processes) -> None:
    async with stack.client(OMNI) as client:
        await begin(client)
        resume = RESUME | {"padding": " " * SMALL_MESSAGE}
        for _ in range(1100):
            await client.send(resume)
        for _ in range(1100):
            assert await client.expect("resumed") == {"type": "resumed"}
