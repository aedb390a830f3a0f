"""A spoken conversation whose worker is killed goes on at another one."""

import asyncio
import os
import signal

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon import AntiphonError
from antiphon.grpc import Audio, Journal, Session, Text, UnitDone, UnitEnd
from antiphon.v1 import inference_service_pb2 as pb
from tests.e2e.conftest import Recording, Server, running_worker
from tests.support.patience import PATIENCE_S

CONFIG = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO, seed=5)


class Answer:
    def __init__(self) -> None:
        self.text = ""
        self.samples = np.zeros(0, np.float32)
        self.end = UnitEnd.UNSPECIFIED


async def answer(session: Session) -> Answer:
    said = Answer()
    async with asyncio.timeout(PATIENCE_S):
        async for output in session:
            match output:
                case Text():
                    said.text += output.text
                case Audio():
                    said.samples = np.concatenate([said.samples, output.samples])
                case UnitDone():
                    assert output.error is None
                    said.end = output.end
                    return said
    pytest.fail("the session ended before its unit")


async def talk_until_killed(
    worker: Server, units: list[NDArray[np.float32]], journal: Journal, said: list[Answer]
) -> None:
    async with Session.open(worker.address, CONFIG, journal=journal) as session:
        while not said or said[-1].end is not UnitEnd.CHUNK:
            await session.send_unit(units[len(said)])
            said.append(await answer(session))
        await session.send_unit(units[len(said)])
        os.kill(worker.process.pid, signal.SIGKILL)
        while True:
            said.append(await answer(session))


async def test_conversation_goes_on_at_another_worker(recordings: list[Recording]) -> None:
    units = recordings[0].units(6)
    expected = []
    journal = Journal()
    with running_worker(slots=2) as second:
        with running_worker(slots=2) as first:
            async with Session.open(first.address, CONFIG) as session:
                for unit in units:
                    await session.send_unit(unit)
                    expected.append(await answer(session))
            said: list[Answer] = []
            with pytest.raises(AntiphonError):
                await talk_until_killed(first, units, journal, said)
        sent = len(said) + len(journal.unanswered(1))
        async with Session.open(second.address, journal.config) as session:
            again = await session.replay(journal)
            assert again == list(range(len(said) + 1, sent + 1))
            for _ in again:
                said.append(await answer(session))
            for unit in units[sent:]:
                await session.send_unit(unit)
                said.append(await answer(session))
    assert len(journal) == len(units)
    assert [(unit.end, unit.text) for unit in said] == [(unit.end, unit.text) for unit in expected]
    for got, wanted in zip(said, expected, strict=True):
        assert got.samples.shape == wanted.samples.shape
        assert np.allclose(got.samples, wanted.samples, rtol=0, atol=1e-4)
