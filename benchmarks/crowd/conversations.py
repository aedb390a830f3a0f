"""Conversations over gRPC in real time, with the times of every unit."""

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc.aio
import numpy as np

from antiphon.audio.samples import INPUT_RATE_HZ, Samples
from antiphon.audio.wav import read_wav
from antiphon.contract import CLIENT_OPTIONS
from antiphon.grpc import Session
from antiphon.grpc.outputs import Audio, Text, UnitDone, UnitEnd
from antiphon.v1 import inference_service_pb2 as pb
from benchmarks.crowd import workload
from benchmarks.crowd.worker import Spent
from benchmarks.load.processes import Process

UNIT_S: Final = 1.0
RECORDINGS: Final = Path(__file__).parents[2] / "clients/recordings"
SAID: Final = ("counting", "digits", "greeting", "how_are_you", "joke", "light", "name")
CONFIG: Final = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)
CONFIG.duplex.force_listen_count = 0


@dataclass
class Unit:
    """A unit of one second of audio; times are monotonic seconds, NaN before the event.

    `due` is the time to send it, `done` the time of the last message of its answer.
    """

    due: float
    first: float = math.nan
    """The time of its first event."""
    done: float = math.nan
    words: int = 0
    codes: int = 0

    @property
    def is_late(self) -> bool:
        """Whether its answer missed the deadline of one second after `due`, or never came."""
        return not self.done - self.due <= UNIT_S


@dataclass
class Tally:
    """The units of all sessions, and the worker's CPU time for them."""

    sessions: int
    units: list[Unit] = field(default_factory=list)
    spent: Spent = field(default_factory=lambda: Spent(0.0, 0.0, 0.0))
    seconds: float = 0.0
    ended: Counter[str] = field(default_factory=Counter)
    """The number of sessions that ended early, by the name of the exception."""

    @property
    def misses(self) -> float:
        """The share of deadline misses."""
        return sum(unit.is_late for unit in self.units) / max(1, len(self.units))

    @property
    def spoken(self) -> list[Unit]:
        """The units with output."""
        return [unit for unit in self.units if unit.codes or unit.words]

    def percentile_ms(self, share: float) -> float:
        """Return a percentile of the time from a unit's due time to its last message.

        It is infinite if too few units have an answer.
        """
        times = sorted(1000 * (unit.done - unit.due) for unit in self.units if not math.isnan(unit.done))
        at = int(share * len(self.units))
        return times[at] if at < len(times) else math.inf

    def ms_per_unit(self, seconds: float) -> float:
        """Return `seconds` divided by the number of units, in milliseconds."""
        return 1000 * seconds / max(1, len(self.units))


def seconds_of_speech() -> list[Samples]:
    """Return the recordings as units of one second, float32 [16000] each."""
    joined = np.concatenate([read_wav(RECORDINGS / f"{name}.wav") for name in SAID])
    whole = len(joined) // INPUT_RATE_HZ * INPUT_RATE_HZ
    return list(joined[:whole].astype(np.float32).reshape(-1, INPUT_RATE_HZ))


def spent(worker: Process) -> Spent:
    """Return the CPU times of a worker since its start."""
    worker.say("?")
    return Spent(**json.loads(worker.output.readline()))


class Conversation:
    """One session; `talk` sends a unit every second, whether or not the earlier ones are answered."""

    def __init__(self, number: int, phase: int, audio: Sequence[Samples]) -> None:
        self.units: list[Unit] = []
        self._id = workload.name(phase, number)
        self._audio = audio

    async def talk(self, channel: grpc.aio.Channel, begin: float, units: int) -> None:
        """Send `units` units, the first at the monotonic time `begin`. Raises errors of the SDK."""
        async with Session.open(channel, CONFIG, self._id) as session:
            listening = asyncio.create_task(self._listen(session))
            try:
                for number in range(units):
                    due = begin + number * UNIT_S
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    self.units.append(Unit(due))
                    await session.send_unit(self._audio[number % len(self._audio)])
                session.half_close()
                await listening
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, session: Session) -> None:
        async for output in session:
            match output:
                case Text(unit=unit, token_ids=said):
                    self._happened(unit).words += len(said)
                case Audio(unit=unit):
                    self._happened(unit)
                case UnitDone(unit=unit, end=end):
                    noted = self._happened(unit)
                    if end is not UnitEnd.FAILED:
                        noted.done = time.monotonic()
                    noted.codes = output.usage.output_audio_tokens

    def _happened(self, unit: int) -> Unit:
        noted = self.units[unit - 1]
        if math.isnan(noted.first):
            noted.first = time.monotonic()
        return noted


async def hold(worker: Process, sessions: int, seed: int, warm_up: int, units: int) -> Tally:
    """Hold conversations that begin at random positions of the cycle; `warm_up` seconds are not counted."""
    draw, audio = random.Random(seed), seconds_of_speech()
    talking = [Conversation(i, draw.randrange(workload.CYCLE), audio) for i in range(sessions)]
    begin = time.monotonic() + 0.5 + 0.02 * sessions
    opened = begin + warm_up * UNIT_S
    tally = Tally(sessions)
    async with grpc.aio.insecure_channel(worker.address, options=CLIENT_OPTIONS) as channel:
        tasks = [
            asyncio.create_task(one.talk(channel, begin + draw.random() * UNIT_S, warm_up + units))
            for one in talking
        ]
        await asyncio.sleep(max(0.0, opened - time.monotonic()))
        before, since = spent(worker), time.monotonic()
        await asyncio.sleep(units * UNIT_S)
        after, tally.seconds = spent(worker), time.monotonic() - since
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    tally.ended = Counter(type(end).__name__ for end in ends if isinstance(end, BaseException))
    for one in talking:
        tally.units += [unit for unit in one.units if opened <= unit.due < opened + units * UNIT_S]
        tally.units += [Unit(opened)] * max(0, warm_up + units - len(one.units))
    tally.spent = Spent(
        *(now - then for now, then in zip(vars(after).values(), vars(before).values(), strict=True))
    )
    return tally
