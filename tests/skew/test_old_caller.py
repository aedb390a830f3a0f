"""A caller of the release before at today's worker: what it writes is understood, and what it reads too."""

import asyncio
from collections import defaultdict
from typing import Any

import grpc
import grpc.aio

from antiphon.contract import METADATA_SESSION_ID
from tests.skew.contract import SERVICE, Contract, read_session
from tests.support.scripted_engine import EVERYTHING, TALK, ScriptedEngine, running_worker

PATIENCE_S = 30.0
STREAMS = ("Prefill", "Generate", "Finalize")


async def replay(channel: grpc.aio.Channel, contract: Contract) -> dict[str, list[Any]]:
    """Writes the recorded session; returns what is answered on each stream, read by the contract before."""
    calls, answers = {}, {}
    for name in STREAMS:
        method = contract.method(name)
        assert method is not None
        calls[name] = channel.stream_stream(
            f"/{SERVICE}/{name}",
            request_serializer=lambda data: data,
            response_deserializer=contract.message(method.output_type.name).FromString,
        )(metadata=((METADATA_SESSION_ID, "recorded"),))
        await calls[name].initial_metadata()
        answers[name] = asyncio.create_task(read(calls[name]))
    for request in read_session():
        await calls[request.stream].write(request.data)
    for call in calls.values():
        await call.done_writing()
    return {name: await task for name, task in answers.items()}


async def read(call: Any) -> list[Any]:
    return [answer async for answer in call]


async def test_recorded_session_of_the_release_before_is_answered_in_full() -> None:
    contract = Contract()
    units: dict[str, set[int]] = defaultdict(set)
    for request in read_session():
        method = contract.method(request.stream)
        assert method is not None
        units[request.stream].add(contract.message(method.input_type.name).FromString(request.data).unit)  # type: ignore[attr-defined]
    expected = units["Prefill"] - {0}
    assert len(expected) >= 4

    async with (
        running_worker(ScriptedEngine(*TALK, repeat=True, info=EVERYTHING)) as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        async with asyncio.timeout(PATIENCE_S):
            answers = await replay(channel, contract)

    prefilled, generated, finalized = (answers[name] for name in STREAMS)
    assert prefilled[0].HasField("ready")
    assert {answer.unit for answer in prefilled[1:]} == expected
    assert {answer.unit for answer in generated if answer.HasField("done")} == units["Generate"]
    assert {answer.unit for answer in finalized} == units["Finalize"]
    said = "".join(answer.text.text for answer in generated if answer.HasField("text"))
    assert said.startswith("Hello there how are you?")


async def test_caller_of_the_release_before_reads_what_today_s_worker_says_of_itself() -> None:
    contract = Contract()
    async with (
        running_worker(ScriptedEngine(info=EVERYTHING, slots=3), slots=3) as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        ask = channel.unary_unary(
            f"/{SERVICE}/GetInfo",
            request_serializer=contract.message("GetInfoRequest").SerializeToString,
            response_deserializer=contract.message("GetInfoResponse").FromString,
        )
        info: Any = await ask(contract.message("GetInfoRequest")(), timeout=PATIENCE_S)
    assert (info.model, info.slots) == ("scripted", 3)
