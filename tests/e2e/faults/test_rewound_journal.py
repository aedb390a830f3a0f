"""A journal with words that were taken back, replayed by the shipped model."""

import asyncio
from typing import Any

import pytest

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from tests.e2e.conftest import Recording, running_worker
from tests.support.patience import PATIENCE_S
from ws_adapter.protocol.core.actions import RunUnit
from ws_adapter.protocol.core.signals import Finalized, Piece, Ready, Rewound, Signal, UnitDone, UnitEnd
from ws_adapter.worker.convert import automatic_parts
from ws_adapter.worker.journal import Journals, PendingRewind
from ws_adapter.worker.session_streams import SessionStreams
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.dialler import dialler

Said = tuple[UnitEnd, str, bytes]


class Talk:
    def __init__(self) -> None:
        self.signals: asyncio.Queue[Signal] = asyncio.Queue()
        self.said = self.signals.put_nowait
        self.streams: SessionStreams

    def failed(self, reason: Reason) -> None:
        raise AssertionError(reason)

    async def until(self, kind: type) -> list[Any]:
        told: list[Any] = []
        async with asyncio.timeout(PATIENCE_S):
            while not told or not isinstance(told[-1], kind):
                told.append(await self.signals.get())
        return told

    async def unit(self, number: int, audio: bytes) -> Said:
        parts = automatic_parts(RunUnit(number, audio, force_listen=False), "")
        if self.streams.journal is not None:
            self.streams.journal.sent(number, parts)
        self.streams.write_unit(number, parts)
        told = await self.until(Finalized)
        pieces = [signal for signal in told if isinstance(signal, Piece)]
        (done,) = [signal for signal in told if isinstance(signal, UnitDone)]
        return done.end, "".join(p.text for p in pieces), b"".join(p.audio for p in pieces)


async def open_session(channel: Channel, worker_id: str, lease: str, config: bytes) -> Talk:
    talk = Talk()
    talk.streams = await SessionStreams.attach(channel, worker_id, f"s-{lease[0]}", lease, talk, 600.0)
    talk.streams.open_with(config)
    await talk.until(Ready)
    return talk


@pytest.mark.long
async def test_replay_after_a_rewind_says_what_the_rewound_session_says(recordings: list[Recording]) -> None:
    recording = max(recordings[:10], key=lambda each: len(each.reply))
    units = [unit.astype("<f4").tobytes() for unit in recording.units(8)]
    journal = Journals(600.0, 2**28).open()
    assert journal is not None
    config = journal.set_config(pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO, seed=7, automatic_units=True))
    with running_worker(slots=2) as worker:
        channel = dialler()(worker.address, lambda: None)
        try:
            info = await channel.ask("GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse, timeout_s=PATIENCE_S)
            one = await open_session(channel, info.worker_id, "0:1:", config)
            assert one.streams.ready is not None
            assert journal.begin(one.streams.ready)
            one.streams.journal = journal
            number, spoken = 0, list[int]()
            while len(spoken) < 2:
                number += 1
                if (await one.unit(number, units[number - 1]))[2]:
                    spoken.append(number)
            journal.rewinds.append(PendingRewind(spoken[0], 100))
            one.streams.rewind(spoken[0], 100)
            await one.until(Rewound)
            one.streams.journal = None

            two = await open_session(channel, info.worker_id, "1:2:", journal.config)
            heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            two.streams.replay(journal, "", heard.set_result)
            async with asyncio.timeout(PATIENCE_S):
                assert await heard
            for later in range(number + 1, len(units) + 1):
                wanted, got = [await talk.unit(later, units[later - 1]) for talk in (one, two)]
                assert got[:2] == wanted[:2]
                assert len(got[2]) == len(wanted[2])  # the noise in the voice is another one
            for talk in (one, two):
                talk.streams.release()
                async with asyncio.timeout(PATIENCE_S):
                    await talk.streams.ended()
        finally:
            channel.close()
            await channel.wait_closed()
