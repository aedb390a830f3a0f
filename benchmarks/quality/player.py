"""A player that sends a script to a worker over the three streams and collects the model's turns."""

import asyncio

import grpc.aio
import numpy as np

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_training.corpus.voices import SAMPLE_RATE
from benchmarks.quality.scoring import Turn
from benchmarks.quality.script import Script
from benchmarks.quality.session import Streams, answers, sound


class Player:
    """One full-duplex session, played as fast as the worker answers."""

    def __init__(self, channel: grpc.aio.Channel, script: Script, seed: int) -> None:
        self._streams = Streams(channel)
        self._script = script
        self._seed = seed
        self._turns: list[Turn] = []

    async def play(self) -> list[Turn]:
        """Send the whole script; return the model's turns. Raises `RuntimeError` if a unit fails."""
        mode = pb.SESSION_MODE_VIDEO if self._script.frames else pb.SESSION_MODE_AUDIO
        ready = await self._streams.open(pb.SessionConfig(mode=mode, seed=self._seed))
        window = asyncio.Semaphore(ready.max_units_in_flight)
        await asyncio.gather(self._send(window), self._check(), self._listen(), self._release(window))
        for turn in self._turns:
            turn.text = " ".join(turn.text.split())
        return self._turns

    async def _send(self, window: asyncio.Semaphore) -> None:
        for unit in range(1, self._script.units + 1):
            await window.acquire()
            await self._streams.send(pb.PrefillRequest(unit=unit, duplex=self._content(unit)))
        await self._streams.done()

    def _content(self, unit: int) -> pb.DuplexInput:
        samples = self._script.pcm[(unit - 1) * SAMPLE_RATE : unit * SAMPLE_RATE]
        frames = self._script.frames[unit - 1] if self._script.frames else ()
        return pb.DuplexInput(audio=sound(samples), frames=[common.Image(data=frame) for frame in frames])

    async def _check(self) -> None:
        async for answer in answers(self._streams.prefill):
            if answer.HasField("error"):
                raise RuntimeError(f"unit {answer.unit}: {answer.error.message}")

    async def _listen(self) -> None:
        speaking = False
        async for answer in answers(self._streams.generate):
            if answer.text.text and not speaking:
                self._turns.append(Turn(answer.unit - 1))
                speaking = True
            if speaking:
                turn = self._turns[-1]
                turn.text += answer.text.text
                if answer.audio.data:
                    turn.audio.append(np.frombuffer(answer.audio.data, "<f4"))
                if answer.HasField("done"):
                    if answer.done.end in (pb.UNIT_END_CHUNK, pb.UNIT_END_TURN):
                        turn.units = answer.unit - turn.first_unit
                    speaking = answer.done.end == pb.UNIT_END_CHUNK

    async def _release(self, window: asyncio.Semaphore) -> None:
        async for _ in answers(self._streams.finalize):
            window.release()
