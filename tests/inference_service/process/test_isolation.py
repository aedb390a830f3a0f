"""Faults inside the real engine, with the shipped checkpoint in a process of its own.

Whatever fails in one session fails there: those beside it say every token that they say alone, and no slot is
lost.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.audio.wav import decode_wav
from antiphon.contract import Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.session.units import Stream
from tests.conformance.support.stack import running, wait_for
from tests.inference_service.support.caller import Caller, Ending, channel_to, duplex, soon, until_free
from tests.support import faults
from tests.support.forks.process import Process
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
SLOTS = 4
SURVIVED = sorted(set(faults.FAULTS) - {*faults.ENDINGS, "settle", "rebuild"})  # a chat has no window
NO_MEMORY = ("memory", "hostmemory")
Code = grpc.StatusCode
FAILED = (Code.INTERNAL, Reason.INFERENCE_FAILED)
Said = list[tuple[str, list[int], int]]


@contextmanager
def faulty_worker(*arguments: str) -> Iterator[tuple[Process, str]]:
    """Its process and its address."""
    with running("tests.support.faulty_worker", "--slots", str(SLOTS), *arguments) as (process, log):
        yield process, wait_for(process, log, "worker ready on ")


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    """One worker for all faults of this module, which it must survive."""
    with faulty_worker() as (process, address):
        yield address
        assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def question(text: str) -> pb.TurnInput:
    """A turn whose answer is spoken."""
    message = pb.ChatMessage(role=pb.ROLE_USER, content=[pb.Content(text=text)])
    return pb.TurnInput(messages=[message], tts=pb.TtsConfig(enabled=True))


async def chat(to: grpc.aio.Channel) -> Said:
    session = await Caller(to).ready(mode=pb.SESSION_MODE_CHAT, seed=5)
    answer = await session.unit(1, question("Who are you?"))
    assert (await session.leave()).code is Code.OK
    return [(answer.text, answer.token_ids, answer.samples)]


async def talk(to: grpc.aio.Channel) -> Said:
    path = ROOT / "clients/recordings/greeting.wav"
    heard = np.concatenate([decode_wav(path.read_bytes(), path, 16_000), np.zeros(4 * 16_000, np.float32)])
    session = await Caller(to).ready(seed=5)
    answers = []
    for i in range(len(heard) // 16_000):
        answers.append(await session.unit(i + 1, duplex(heard[i * 16_000 : (i + 1) * 16_000])))
    assert (await session.leave()).code is Code.OK
    return [(answer.text, answer.token_ids, answer.samples) for answer in answers]


async def attack(to: grpc.aio.Channel, fault: str, number: int) -> Ending:
    session = await Caller(to, f"attack-{fault}-0-{number}").open()
    await session.send_config(mode=pb.SESSION_MODE_CHAT, seed=number)
    if fault in ("open", "start"):
        return await session.end()
    assert (await session.read(Stream.PREFILL)).HasField("ready")
    await session.prefill(1, question("Hello."))
    await session.generate(1)
    if fault in ("end", "finalize"):
        await session.finalize(1)
    return await session.end()


_alone: dict[str, tuple[Said, Said]] = {}


async def alone(address: str) -> tuple[Said, Said]:
    """Return the answers of both neighbours running alone."""
    if address not in _alone:
        async with channel_to(address) as to:
            _alone[address] = await chat(to), await talk(to)
    return _alone[address]


@pytest.mark.parametrize("fault", SURVIVED)
@pytest.mark.sample("begin", "hear", "think")
async def test_a_fault_ends_its_session_and_costs_the_others_nothing(worker: str, fault: str) -> None:
    expected = await alone(worker)
    assert sum(samples for said in expected for _, _, samples in said) > 0
    async with channel_to(worker) as to:
        said = asyncio.gather(chat(to), talk(to))
        endings = await asyncio.gather(attack(to, fault, 1), attack(to, fault, 2))
        assert tuple(await said) == expected
    ended = (Code.RESOURCE_EXHAUSTED, Reason.KV_EXHAUSTED) if fault in NO_MEMORY else FAILED
    assert [(ending.code, ending.reason) for ending in endings] == [ended] * 2
    assert not any("canary" in ending.message for ending in endings)
    await until_free(worker, SLOTS)


@pytest.mark.long
async def test_an_answer_of_600_letters_without_a_space_is_spoken_to_its_end(worker: str) -> None:
    expected = await alone(worker)
    async with channel_to(worker) as to:
        said = asyncio.gather(chat(to), talk(to))
        session = await Caller(to, "attack-longword-0-1").open()
        sampling = common.SamplingParams(max_new_tokens=600)
        await session.configure(mode=pb.SESSION_MODE_CHAT, sampling=sampling)
        answer = await session.unit(1, question("Hello."))
        assert answer.text == "e" * 600
        assert answer.samples > 0
        assert answer.done.end == pb.UNIT_END_TURN
        assert (await session.leave()).code is Code.OK
        assert tuple(await said) == expected


@pytest.mark.parametrize("fault", faults.ENDINGS)
@pytest.mark.sample("device")
async def test_lost_device_or_hung_engine_ends_all_sessions_and_exits_with_3(fault: str) -> None:
    with faulty_worker("--step-s", "2") as (process, address):
        async with channel_to(address) as to:
            neighbour = await Caller(to).ready()
            watch = health_pb2_grpc.HealthStub(to).Watch(health_pb2.HealthCheckRequest())
            states: Any = health_pb2.HealthCheckResponse
            assert (await soon(watch.read())).status == states.SERVING
            ending = await attack(to, fault, 1)
            for end in (ending, await neighbour.end()):
                assert (end.code, end.reason) == (Code.INTERNAL, Reason.ENGINE_FATAL)
            assert (await soon(watch.read())).status == states.NOT_SERVING
            watch.cancel()
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 3
