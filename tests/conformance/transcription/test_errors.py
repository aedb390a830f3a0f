"""Errors and endings of transcription, a row for each kind."""

import asyncio
import json
import signal
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from inference_service.interface.engine import Failure, SessionFailed
from tests.conformance.support.stack import Stack as Processes
from tests.conformance.support.stack import running_stack, scripted_worker, transcribing_worker
from tests.conformance.support.transcription_words import (
    COMMIT,
    CREATED,
    EMPTY,
    FINAL,
    PATH,
    RATE,
    TARGETS,
    TELLS,
    UPDATE,
    append,
    begin,
    delta,
    done,
    error,
    levels,
    nothing,
    opened,
    samples,
    told,
)
from tests.support.scripted_engine import (
    Play,
    context_full,
    hang,
    write,
)
from tests.ws_adapter.support.keyfile import KeyFile

GO = write(" go")
SECRET = "/home/x.py canary-4711"
LEAKS = ("Traceback", "msgspec", "127.0.0.1", "/home", ".py", "$", "canary")


async def test_queue_full(narrow_transcriber: Processes) -> None:
    worker = narrow_transcriber.worker
    worker.next(GO)
    worker.next(GO)
    worker.next(TELLS, repeat=True)
    with running_stack(worker, options=("--queue-capacity", "1")) as small:
        async with small.client(PATH) as holder, small.client(PATH) as waiting, small.client(PATH) as client:
            await begin(holder)
            await waiting.next()
            await waiting.send(UPDATE, append(), COMMIT)
            await small.until_queue(1)
            await opened(client, append(level=0.1), COMMIT)
            assert await client.next() == error("queue_full")
            await client.send(append(level=0.2))
            assert await client.ask(COMMIT) == error("queue_full")
            await holder.socket.close()
            assert await waiting.next() == delta(" go")
            await waiting.socket.close()
            await client.send(COMMIT, FINAL)
            units = await told(client)
    assert levels(units) == [0.1, 0.2]
    assert samples(units) == 2 * RATE


async def test_no_worker() -> None:
    """At connect, and for an utterance, whose audio is kept."""
    with transcribing_worker() as worker:
        with running_stack(worker, options=("--no-worker-grace-s", "0.3")) as stack:
            async with stack.client(PATH) as client:
                assert await client.next() == CREATED
                worker.process.kill()
                await stack.until(ready=False)
                await client.send(UPDATE, append(), FINAL)
                assert await client.next() == error("service_unavailable")
                assert await client.ask(FINAL) == error("service_unavailable")
            for target in TARGETS:
                async with stack.client(target) as client:
                    assert await client.end() == ([error("service_unavailable")], 1013)


@pytest.mark.parametrize("target", TARGETS[1:])
async def test_unsupported_mode(stack: Processes, target: str) -> None:
    async with stack.client(target) as client:
        assert await client.end() == ([error("unsupported_mode")], 1008)


async def test_model_is_in_the_list_of_models(transcriber: Processes) -> None:
    _, models = await transcriber.request("/v1/models")
    async with transcriber.client(PATH) as client:
        assert await client.next() == CREATED
        await client.send({**UPDATE, "model": models["data"][0]["id"]}, COMMIT, FINAL)
        assert await client.next() == EMPTY


@pytest.mark.parametrize(
    ("play", "code"),
    [
        (Play(refused=Failure("AUDIO_INVALID", SECRET)), "invalid_audio"),
        (Play(failure=Failure("AUDIO_INVALID", SECRET)), "invalid_audio"),
        (Play(failure=Failure("INFERENCE_FAILED", SECRET)), "processing_error"),
    ],
    ids=["refused", "failed", "fault"],
)
async def test_item_error_ends_its_utterance(transcriber: Processes, play: Play, code: str) -> None:
    transcriber.worker.next(GO, play, write(" two"))
    async with transcriber.client(PATH) as client:
        await begin(client)
        await client.send(append())
        failed = await client.next()
        assert failed == error(code)
        assert not any(leak in failed["error"] for leak in LEAKS)
        await client.send(FINAL, append(), FINAL)
        assert await client.take(2) == [delta(" two"), done(" two", completion=1)]


async def test_context_full(transcriber: Processes) -> None:
    transcriber.worker.next(GO, replace(context_full(), says=((" on", 0.0),)))
    async with transcriber.client(PATH) as client:
        await begin(client)
        await client.send(append())
        assert await client.take(3) == [delta(" on"), done(" go on", completion=2), error("context_full")]
        transcriber.worker.next(TELLS, repeat=True)
        await client.send(append(level=0.2), FINAL, append(level=0.3), FINAL)
        assert levels(await told(client)) == [0.3]


@pytest.mark.parametrize("reason", ["KV_EXHAUSTED", "INFERENCE_FAILED"])
async def test_session_failed(transcriber: Processes, reason: str) -> None:
    transcriber.worker.next(GO, Play(fails_session=SessionFailed(reason, "canary-4711")))
    async with transcriber.client(PATH) as client:
        await begin(client)
        await client.send(append())
        failed = await client.next()
        assert failed == error("processing_error")
        assert "canary" not in failed["error"]
        transcriber.worker.next(write(" two"))
        await client.send(FINAL, append(), FINAL)
        assert await client.take(2) == [delta(" two"), done(" two", completion=1)]


async def test_engine_lost(transcriber: Processes) -> None:
    transcriber.worker.next(GO, Play(fails_session=SessionFailed("ENGINE_FATAL", "canary-4711")))
    transcriber.worker.next(GO, write(" two"), write(" three"))
    async with transcriber.client(PATH) as client:
        await begin(client)
        await client.send(append())
        assert await client.next() == delta(" two")
        await client.send(append(), FINAL)
        assert await client.next() == delta(" three")
        assert (await client.next())["text"] == " go two three"


async def test_worker_lost() -> None:
    with transcribing_worker() as worker, running_stack(worker) as stack:
        worker.next(GO, hang("generate"))
        async with stack.client(PATH) as client:
            await begin(client)
            await client.send(FINAL)
            worker.process.kill()
            again = ("--listen", worker.target, "--modes", "transcribe", "--script", "reply")
            with scripted_worker(*again):
                told = await client.take(2)
                assert [event["type"] for event in told] == ["transcription.delta", "transcription.done"]
                assert told[1]["text"] == " goYes."


async def test_worker_goes_away() -> None:
    """A socket that has no utterance outlives it."""
    with transcribing_worker(2, "--drain-timeout-s", "0.3") as worker, running_stack(worker) as stack:
        worker.next(GO)
        async with stack.client(PATH) as busy, stack.client(PATH) as idle:
            await begin(idle)
            await idle.send(FINAL)
            assert await idle.next() == done(" go")
            worker.next(GO)
            await begin(busy)
            worker.process.send_signal(signal.SIGTERM)
            assert await busy.end() == ([], 1012)
            await stack.until(ready=False)
            await nothing(idle)


async def test_adapter_shutdown() -> None:
    """Idle, waiting and new clients are disconnected at once, busy clients after the drain."""
    with transcribing_worker(1) as worker:
        with running_stack(worker, options=("--drain-timeout-s", "2")) as stack:
            worker.next(GO, write(" on"))
            async with (
                stack.client(PATH) as busy,
                stack.client(PATH) as waiting,
                stack.client(PATH) as idle,
            ):
                await begin(busy)
                assert [await idle.next(), await waiting.next()] == [CREATED, CREATED]
                await waiting.send(UPDATE, append(), COMMIT)
                await stack.until_queue(1)
                stack.process.send_signal(signal.SIGTERM)
                assert await waiting.end() == ([], 1012)
                assert await idle.end() == ([], 1012)
                async with stack.client(PATH) as newcomer:
                    assert await newcomer.end() == ([error("service_unavailable")], 1013)
                await busy.send(append())
                assert await busy.next() == delta(" on")
                assert await busy.end() == ([], 1012)


async def test_slow_reader(transcriber: Processes) -> None:
    transcriber.worker.next(write("on and on " * 4000), repeat=True)
    options = ("--slow-consumer-s", "0.5", "--outbox-mib", "0.002")
    with running_stack(transcriber.worker, options=options) as strict:
        async with strict.raw_client(PATH) as client:
            await client.expect("session.created")
            await client.send(UPDATE, COMMIT, *[append()] * 60)
            await asyncio.to_thread(strict.wait_until_nothing_runs)
            events, code, _ = await client.end()
    assert code == 1008
    assert events[-1] == error("slow_consumer")
    assert all(event["type"] == "transcription.delta" for event in events[:-1])


NO_MODEL = "Missing required field: model"
_APPEND = {"type": "input_audio_buffer.append"}
MALFORMED: list[tuple[Any, str, str]] = [
    ("no json", "invalid_json", "Invalid JSON"),
    ([], "processing_error", "an event is a JSON object, got a list"),
    ({"type": "response.create"}, "unknown_event", "Unknown event type: response.create"),
    ({"type": "session.update", "session": {"model": "scripted"}}, "invalid_event", NO_MODEL),
    (_APPEND, "processing_error", "audio: expected a base64 string, got null or nothing"),
    ({**_APPEND, "audio": 5}, "processing_error", "audio: expected a string, got 5"),
    ({**_APPEND, "audio": "AA-_"}, "invalid_audio", "Invalid audio data"),
    ({**COMMIT, "final": "maybe"}, "processing_error", 'final: expected true or false, got "maybe"'),
]


async def test_malformed_event_is_one_error_and_the_utterance_goes_on(transcriber: Processes) -> None:
    transcriber.worker.next(GO, write(" on"))
    async with transcriber.client(PATH) as client:
        await begin(client)
        await client.send(append(RATE // 2))
        for event, code, text in MALFORMED:
            refused = await client.ask(event if isinstance(event, str) else json.dumps(event))
            assert refused == error(code, text)
            assert not any(leak in refused["error"] for leak in LEAKS)
        await client.send(json.dumps(UPDATE).encode())
        assert await client.next() == error("invalid_frame")
        await client.send(append(RATE // 2), FINAL)
        assert (await client.until("transcription.done"))[-1]["text"] == " go on"


async def test_more_than_1000_events_in_5_s(transcriber: Processes) -> None:
    transcriber.worker.next(TELLS, repeat=True)
    async with transcriber.client(PATH) as client:
        assert await client.next() == CREATED
        frame = json.dumps(append(480))
        await client.send(UPDATE, COMMIT, *[frame] * 2000, FINAL)
        assert samples(await told(client)) == 2000 * 480


async def test_more_small_events_than_may_come(transcriber: Processes) -> None:
    async with transcriber.client(PATH) as client:
        assert await client.next() == CREATED
        with suppress(ConnectionClosed):
            for _ in range(3000):
                await client.send(json.dumps(UPDATE))
        events, code = await client.end()
        assert (events, code) == ([error("rate_limited")], 1008)


async def test_withdrawn_key(tmp_path: Any) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "bob")
    with transcribing_worker(1) as worker:
        options = ("--auth", "keys", "--keys", str(keys.path))
        with running_stack(worker, options=options) as stack:
            async with stack.client(PATH, additional_headers=keys.bearer("alice")) as client:
                assert await client.next() == CREATED
                keys.remove("alice")
                stack.process.send_signal(signal.SIGHUP)
                assert await client.end() == ([error("unauthorized")], 3000)
