"""One caller's long input beside another's conversation, through a worker with the shipped checkpoint."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest

from antiphon.audio.wav import read_wav
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from clients.recordings import make
from inference_service.app import load_engine
from inference_service.engine.runtime import Runtime
from inference_service.families import antiphon_mini
from inference_service.interface.engine import Engine
from inference_service.session.base import session
from inference_service.session.machine import Limits
from inference_service.session.units import Stream
from tests.inference_service.support import caller as calling
from tests.inference_service.support.caller import Caller, UnitAnswers, channel_to, duplex
from tests.support.drawing import jpeg
from tests.support.passing import Passing
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import PATIENT, running_worker

RATE = 16_000
CHATS = 8
TICK_S = 1.0
LONG = "what is three plus four and five times six now " * 185
"""A prompt of 1,863 tokens; the context holds 2,048."""


def seconds(silence_s: int = 4) -> list[np.ndarray[Any, Any]]:
    pcm = read_wav(Path(make.__file__).parent / "joke.wav")
    padded = np.zeros((-(-len(pcm) // RATE) + silence_s) * RATE, np.float32)
    padded[: len(pcm)] = pcm
    return list(padded.reshape(-1, RATE))


def said(answers: UnitAnswers) -> tuple[object, ...]:
    return answers.text, tuple(answers.token_ids), answers.samples, answers.done.end


async def converse(caller: Caller, units: Sequence[np.ndarray[Any, Any]]) -> list[tuple[object, ...]]:
    """A whole conversation; what was said in each unit."""
    await caller.configure(seed=1)
    told = [said(await caller.unit(number, duplex(pcm))) for number, pcm in enumerate(units, 1)]
    await caller.half_close(*caller.calls)
    return told


async def open_chat(channel: grpc.aio.Channel, number: int) -> Caller:
    chat = await Caller(channel).open()
    await chat.configure(
        mode=pb.SESSION_MODE_CHAT, seed=number, sampling=common.SamplingParams(temperature=0.0)
    )
    return chat


async def ask(chat: Caller, number: int) -> None:
    text = pb.Content(text=f"{number} {LONG}")
    await chat.send_unit(1, pb.TurnInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, content=[text])]))


async def test_a_conversation_passes_eight_chats_with_long_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, think = threading.Event(), Runtime.think

    def held(runtime: Runtime, segments: list[Any]) -> list[Any]:
        assert go_on.wait(PATIENCE_S)
        return think(runtime, segments)

    monkeypatch.setattr(Runtime, "think", held)
    go_on.set()
    async with (
        running_worker(load_engine, slots=CHATS + 1, seed=1) as worker,
        channel_to(worker.address) as channel,
    ):
        alone = await converse(await Caller(channel).open(), seconds())
        first = await open_chat(channel, 0)
        await ask(first, 0)
        answer_alone = said(await first.answers(1))
        await first.leave()

        talking = await Caller(channel).ready(seed=1)
        chats = [await open_chat(channel, number) for number in range(CHATS)]
        go_on.clear()  # all of them are there before the model reads the first
        for number, chat in enumerate(chats):
            await ask(chat, number)
        answering = [asyncio.create_task(chat.answers(1)) for chat in chats]
        await talking.send_unit(1, duplex(seconds()[0]))
        go_on.set()
        told = [said(await talking.answers(1))]
        read_by_then = sum(task.done() for task in answering)
        for number, pcm in enumerate(seconds()[1:], 2):
            told.append(said(await talking.unit(number, duplex(pcm))))
        answers = [said(answer) for answer in await asyncio.gather(*answering)]

    assert told == alone
    assert any(tokens for _, tokens, *_ in told), "it never spoke"
    # Behind all of them it would have been the last; each of them takes ten times as long as a unit.
    assert read_by_then <= 2
    assert answers[0] == answer_alone
    assert all(tokens for _, tokens, *_ in answers)


async def chats_at_once(limits: Limits) -> list[UnitAnswers]:
    """Return the answers of the chats, all of which begin before the first answer."""
    async with (
        running_worker(load_engine, limits=limits, slots=CHATS, seed=1) as worker,
        channel_to(worker.address) as channel,
    ):
        engine: Any = worker.worker._engine  # has bound the clock that does not jump
        engine._clock = engine._tick._clock = lambda: time.monotonic()
        chats = [await open_chat(channel, number) for number in range(CHATS)]
        await asyncio.gather(*(ask(chat, number) for number, chat in enumerate(chats)))
        return await asyncio.gather(*(chat.answers(1) for chat in chats))


class Churn:
    """One caller whose sessions come, take a unit of silence each and go, `AT_ONCE` at a time."""

    AT_ONCE = 4

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._is_over = False
        self.count = 0
        """Sessions that came and went."""

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """As fast as they can; none of them is refused."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.AT_ONCE):
                group.create_task(self._come_and_go())
            yield
            self._is_over = True

    async def _come_and_go(self) -> None:
        while not self._is_over:
            caller = await Caller(self._channel).ready()
            await caller.unit(1, duplex(np.zeros(RATE, np.float32)))
            assert (await caller.leave()).code is grpc.StatusCode.OK
            self.count += 1


async def test_conversation_beside_rapid_session_churn_takes_as_many_ticks_as_alone() -> None:
    """Ticks are counted on the engine's thread: this process hears of them late where it has much to do."""
    ticks = 0

    def load(*arguments: Any) -> Engine:
        engine: Any = load_engine(*arguments)
        run = engine._tick.run

        def counted(sessions: Any, *others: Any) -> Any:
            nonlocal ticks
            ticks += any(session.slot == 0 and session.has_work for session in sessions)
            return run(sessions, *others)

        engine._tick.run = counted
        return cast(Engine, engine)

    async def talk(caller: Caller) -> tuple[list[tuple[object, ...]], int]:
        """Return the words of each unit, and the ticks in which one of them waited or ran."""
        nonlocal ticks
        ticks = 0
        told = [said(await caller.unit(number, duplex(pcm))) for number, pcm in enumerate(seconds(), 1)]
        return told, ticks

    async with (
        running_worker(load, slots=1 + Churn.AT_ONCE, seed=1) as worker,
        channel_to(worker.address) as channel,
        channel_to(worker.address) as other,
    ):
        caller = await Caller(channel).ready(seed=1)
        told_alone, took_alone = await talk(caller)
        await caller.leave()
        caller = await Caller(channel).open()
        await caller.configure(seed=1)  # has the first slot again, before others come
        churn = Churn(other)
        async with churn.going():
            told, took = await talk(caller)

    assert told == told_alone
    assert any(tokens for _, tokens, *_ in told), "it never spoke"
    assert churn.count > len(told), "others hardly came"
    assert took_alone <= took <= took_alone + 2 * len(told)


@pytest.mark.long
async def test_waiting_chat_is_not_taken_for_hung(monkeypatch: pytest.MonkeyPatch, passing: Passing) -> None:
    """The last of eight waits longer than the worker bears with a unit that does not get on."""
    think = Runtime.think

    def slow(runtime: Runtime, segments: list[Any]) -> list[Any]:
        passing(TICK_S)  # time passes with the model's steps, however fast the machine is
        return think(runtime, segments)

    monkeypatch.setattr(Runtime, "think", slow)
    monkeypatch.setattr(session, "PROGRESS_S", 0.0)
    monkeypatch.setattr(calling, "PATIENCE_S", 1e6)
    patient = await chats_at_once(replace(PATIENT, unit_s=1e6, step_s=1e6))
    longest = max(answer.done.timings.total.ToSeconds() for answer in patient)
    limits = replace(PATIENT, unit_s=0.6 * longest, step_s=1e6)

    answers = await chats_at_once(limits)

    assert all(answer.done.end == pb.UNIT_END_TURN for answer in answers)
    assert [said(answer) for answer in answers] == [said(answer) for answer in patient]


async def test_sound_never_waits_for_the_pictures_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that take for ever to decode hold up those who sent them, and nobody else."""
    hold, decode, decoding = threading.Event(), antiphon_mini.decode_frame, threading.Event()

    def slow(*given: Any, **named: Any) -> Any:
        decoding.set()
        assert hold.wait(PATIENCE_S)
        return decode(*given, **named)

    picture = common.Image(data=jpeg("red", "circle", (640, 480)))
    async with running_worker(load_engine, slots=5, seed=1) as worker, channel_to(worker.address) as channel:
        alone = await converse(await Caller(channel).open(), seconds())
        monkeypatch.setattr(antiphon_mini, "decode_frame", slow)
        flooders = [await Caller(channel).open() for _ in range(4)]
        try:
            for flooder in flooders:
                await flooder.configure(mode=pb.SESSION_MODE_VIDEO, seed=1)
                for number in (1, 2):
                    unit = duplex()
                    unit.frames.extend([picture] * 4)
                    await flooder.send_unit(number, unit)
            assert await asyncio.to_thread(decoding.wait, PATIENCE_S)
            beside = await converse(await Caller(channel).open(), seconds())
            assert all(not flooder.calls[Stream.PREFILL].done() for flooder in flooders)
        finally:
            hold.set()
        seen = [await flooder.answers(number) for flooder in flooders for number in (1, 2)]

    assert beside == alone
    assert all(answer.prefill.prefilled.vision_slices == 4 for answer in seen)
