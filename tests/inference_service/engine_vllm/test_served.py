"""The vLLM engine behind a real worker and a real adapter; a model of transformers computes."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from antiphon.contract import Reason
from antiphon.grpc import get_info
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.engine_vllm.engine import VllmEngine
from inference_service.interface.engine import Deliver, OnFatal
from inference_service.options import WorkerOptions
from inference_service.rpc.transport.outbox import BACKLOG
from inference_service.session.units import Stream
from tests.inference_service.engine_vllm.support import tiny_realtime
from tests.inference_service.engine_vllm.support.dictation import (
    SOUND,
    in_openais_events,
    speech,
    transcripts,
    written,
)
from tests.inference_service.engine_vllm.support.engines import LIMIT, SLOTS, assemble, plain_generator
from tests.inference_service.support.caller import Caller, channel_to, soon, until, until_free
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import RunningWorker, running_worker
from tests.ws_adapter.support.stage import running_adapter

UNITS = 40
GREEDY = common.SamplingParams(temperature=0.0, ignore_eos=True, max_new_tokens=4)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[RunningWorker, Any]]:
    """A worker, and the generator that computes for it."""
    generator = plain_generator(folder)

    def load(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> VllmEngine:
        return assemble(folder, generator, deliver, on_fatal)

    async with running_worker(load, slots=SLOTS) as running:
        yield running, generator


async def stream(channel: grpc.aio.Channel) -> Caller:
    return await Caller(channel).ready(mode=pb.SESSION_MODE_TOKENS, sampling=GREEDY)


def ids(*tokens: int) -> pb.StreamInput:
    return pb.StreamInput(token_ids=pb.TokenIds(ids=tokens))


def ask(address: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, **fields})
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


async def test_stream_over_grpc_says_what_generate_says(folder: Path, greedy: Any) -> None:
    async with served(folder) as (worker, _), channel_to(worker.address) as channel:
        info = await get_info(worker.address)
        assert (info.engine.name, info.context_limit) == ("vllm", LIMIT)
        assert {*info.modes} == {pb.SESSION_MODE_CHAT, pb.SESSION_MODE_TOKENS}
        caller = await stream(channel)
        first = await caller.unit(1, ids(5, 17, 42))
        second = await caller.unit(2, ids(71))
        assert first.token_ids == greedy([5, 17, 42], 4)
        assert second.token_ids == greedy([5, 17, 42, *first.token_ids[:-1], 71], 4)
        await caller.half_close(*Stream)
        await until_free(worker.address, SLOTS)


async def check_unread_answers_are_bounded(
    slow: Caller, chunk: pb.StreamInput, begun: Callable[[], int], neighbour: Callable[[int], Awaitable[None]]
) -> None:
    """Send units without reading what the model says; a neighbour is served meanwhile."""
    finalized = asyncio.Semaphore(2)

    async def send() -> None:
        for unit in range(1, UNITS + 1):
            await finalized.acquire()
            await slow.send_unit(unit, chunk)

    async def read(call: Stream) -> None:
        for _ in range(UNITS):
            await slow.calls[call].read()
            if call is Stream.FINALIZE:
                finalized.release()

    async with asyncio.TaskGroup() as tasks:
        sending = [tasks.create_task(send())]
        sending += [tasks.create_task(read(call)) for call in (Stream.PREFILL, Stream.FINALIZE)]
        await until(lambda: begun() >= BACKLOG)
        for unit in range(1, 4):
            await neighbour(unit)
        assert begun() <= 2 * (BACKLOG + 2) < UNITS
        for task in sending:
            task.cancel()
    for call in slow.calls.values():
        call.cancel()


async def test_caller_that_does_not_read_costs_a_bounded_amount(folder: Path, greedy: Any) -> None:
    async with served(folder) as (worker, generator), channel_to(worker.address) as channel:
        slow, other = await stream(channel), await stream(channel)

        def begun() -> int:
            return sum(it.ids == (5,) for it in generator.requests)

        async def neighbour(unit: int) -> None:
            chunk = pb.StreamInput(token_ids=pb.TokenIds(ids=[5, 17]), begin_utterance=True)
            assert (await other.unit(unit, chunk)).token_ids == greedy([5, 17], 4)

        chunk = pb.StreamInput(token_ids=pb.TokenIds(ids=[5]), begin_utterance=True)
        await check_unread_answers_are_bounded(slow, chunk, begun, neighbour)
        await other.half_close(*Stream)
        await until_free(worker.address, SLOTS)
        assert generator.open == 0


async def test_transcriber_that_does_not_read_costs_a_bounded_amount(tmp_path: Path) -> None:
    folder = tiny_realtime.save(tmp_path / "hearing")
    expected = written(folder, SOUND)
    async with served(folder) as (worker, generator), channel_to(worker.address) as channel:
        slow, other = [await Caller(channel).open() for _ in range(2)]
        for caller in (slow, other):
            await caller.configure(mode=pb.SESSION_MODE_TRANSCRIBE)
        of_the_neighbour = 0

        def begun() -> int:
            """Return how many utterances of the slow caller the model has begun to hear."""
            return sum(len(it.ids) > 1 for it in generator.requests) - of_the_neighbour

        async def neighbour(unit: int) -> None:
            nonlocal of_the_neighbour
            heard = await other.unit(unit, speech(SOUND, ends=True))
            of_the_neighbour += 1
            assert heard.text == expected

        await check_unread_answers_are_bounded(slow, speech(SOUND[:1600], ends=True), begun, neighbour)
        await other.half_close(*Stream)
        await until_free(worker.address, SLOTS)
        assert generator.open == 0


async def test_dead_engine_ends_sessions_and_the_worker(folder: Path) -> None:
    async with served(folder) as (worker, generator), channel_to(worker.address) as channel:
        caller = await stream(channel)
        generator.is_dead = True
        assert (await caller.end()).reason == Reason.ENGINE_FATAL
        assert await soon(asyncio.shield(worker.run)) == 3


async def test_chat_completion_through_the_adapter(folder: Path) -> None:
    async with served(folder) as (worker, generator), running_adapter(worker.address) as stage:
        answer = await asyncio.to_thread(ask, stage.address, model=folder.name, max_tokens=5)
        again = await asyncio.to_thread(ask, stage.address, model=folder.name, max_tokens=5)
    said = answer["choices"][0]["message"]["content"]
    assert said == again["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 5
    assert {it.cache_salt is not None for it in generator.requests} == {True}


async def test_transcription_through_the_adapter_in_both_protocols(tmp_path: Path) -> None:
    folder = tiny_realtime.save(tmp_path / "hearing")
    expected = written(folder, SOUND)
    async with served(folder) as (worker, generator), running_adapter(worker.address) as stage:
        assert await transcripts(stage.address, [SOUND, SOUND]) == [expected, expected]
        assert await in_openais_events(stage.address, folder.name, SOUND)
        await until_free(worker.address, SLOTS)
        assert generator.open == 0


async def test_caller_that_vanishes_in_the_middle_of_an_utterance_leaves_nothing(tmp_path: Path) -> None:
    folder = tiny_realtime.save(tmp_path / "hearing")
    async with served(folder) as (worker, generator):
        async with channel_to(worker.address) as channel:
            caller = await Caller(channel).open()
            ready = await caller.configure(mode=pb.SESSION_MODE_TRANSCRIBE, background=True)
            assert [*ready.ignored_fields] == ["background"]
            await caller.send_unit(1, speech(SOUND))
            await caller.read(Stream.GENERATE)
            for call in caller.calls.values():
                call.cancel()
        await until_free(worker.address, SLOTS)
        assert generator.open == 0
