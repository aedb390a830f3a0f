"""Sessions on a worker: the three streams, and a client that sends one unit at a time."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from antiphon.contract import CLIENT_OPTIONS, METADATA_SESSION_ID
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub
from antiphon_training.corpus.voices import SAMPLE_RATE
from benchmarks.quality.scoring import Turn


class UnitFailed(Exception):
    """The error for a failed unit, with the worker's message."""


class Streams:
    """The three streams of one session."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        stub: Any = InferenceServiceStub(channel)
        metadata = ((METADATA_SESSION_ID, f"quality-{uuid.uuid4().hex[:12]}"),)
        self.prefill, self.generate, self.finalize = (
            method(metadata=metadata) for method in (stub.Prefill, stub.Generate, stub.Finalize)
        )

    async def open(self, config: pb.SessionConfig) -> pb.SessionReady:
        """Send the configuration and wait for its answer."""
        await self.prefill.write(pb.PrefillRequest(unit=0, config=config))
        ready: pb.SessionReady = (await self.prefill.read()).ready
        return ready

    async def send(self, request: pb.PrefillRequest) -> None:
        """Send one unit: its input, and the requests to generate and finalize."""
        await self.prefill.write(request)
        await self.generate.write(pb.GenerateRequest(unit=request.unit, run=pb.GenerateUnit()))
        await self.finalize.write(pb.FinalizeRequest(unit=request.unit))

    async def done(self) -> None:
        """Half-close the streams."""
        for call in (self.prefill, self.generate, self.finalize):
            await call.done_writing()


class UnitByUnit:
    """A session that sends each unit after the end of the one before."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._streams = Streams(channel)
        self._unit = 0

    async def open(self, config: pb.SessionConfig) -> None:
        """Open the session."""
        await self._streams.open(config)

    async def play(self, request: pb.PrefillRequest) -> Turn:
        """Run one unit and return its output. This sets the unit number in `request`.

        Raises `UnitFailed` if generation fails; the session can go on. Raises `RuntimeError` if the input is
        rejected.
        """
        self._unit += 1
        request.unit = self._unit
        await self._streams.send(request)
        answer = await self._streams.prefill.read()
        if answer.HasField("error"):
            raise RuntimeError(f"unit {self._unit}: {answer.error.message}")
        turn = Turn(self._unit)
        async for piece in answers(self._streams.generate):
            turn.text += piece.text.text
            if piece.HasField("tool_call"):
                _add(turn, piece.tool_call)
            if piece.audio.data:
                turn.audio.append(np.frombuffer(piece.audio.data, "<f4"))
            if piece.HasField("done"):
                if piece.done.HasField("error"):
                    await self._streams.finalize.read()
                    raise UnitFailed(piece.done.error.message)
                break
        await self._streams.finalize.read()
        return turn

    async def close(self) -> None:
        """End the session."""
        await self._streams.done()
        async for _ in answers(self._streams.finalize):
            pass


def _add(turn: Turn, piece: pb.ToolCallDelta) -> None:
    """Add a piece of a call to a turn."""
    if piece.id:
        turn.calls.append(pb.ToolCall(id=piece.id, name=piece.name))
    turn.calls[-1].arguments_json += piece.arguments


async def answers(call: Any) -> AsyncIterator[Any]:
    """Yield every message of a stream up to its end."""
    while (answer := await call.read()) is not grpc.aio.EOF:
        yield answer


def channel_to(target: str) -> grpc.aio.Channel:
    """Return a channel to the worker at `target`."""
    return grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS)


def sound(samples: NDArray[np.float32]) -> common.AudioChunk:
    """Return float32 mono audio at 16 kHz as a message."""
    return common.AudioChunk(
        encoding=common.AUDIO_ENCODING_PCM_F32LE,
        sample_rate_hz=SAMPLE_RATE,
        data=samples.astype("<f4").tobytes(),
    )
