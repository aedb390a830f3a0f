"""A minimal caller of the worker's three streams, in which every wait has a deadline."""

import asyncio
import uuid
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from antiphon.contract import CLIENT_OPTIONS, METADATA_SESSION_ID
from antiphon.grpc import get_info
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub
from inference_service.session.units import Stream
from tests.support.patience import PATIENCE_S

SILENCE = np.zeros(16_000, "<f4")

Content = pb.DuplexInput | pb.TurnInput | pb.StreamInput
T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    """Return the result of `awaitable`, which must come within the deadline."""
    async with asyncio.timeout(PATIENCE_S):
        return await awaitable


async def until(condition: Any) -> None:
    """Wait until `condition()` is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.002)


async def until_free(address: str, slots: int) -> None:
    """Wait, on a separate connection, until a worker has this many free slots."""
    async with asyncio.timeout(PATIENCE_S):
        while (await get_info(address)).free_slots != slots:  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Ending:
    """How a call ended."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    domain: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    retry_after: Duration | None = None


def ending(code: grpc.StatusCode, message: str, trailing: Iterable[Any]) -> Ending:
    """Read a status with its details."""
    info, fields, retry_after = error_details_pb2.ErrorInfo(), [], None
    for key, value in trailing or ():
        if key != "grpc-status-details-bin":
            continue
        status = rpc_status.status_pb2.Status.FromString(value)
        assert (status.code, status.message) == (code.value[0], message)
        for detail in status.details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                detail.Unpack(info)
            elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                bad = error_details_pb2.BadRequest()
                detail.Unpack(bad)
                fields = [violation.field for violation in bad.field_violations]
            else:
                retry = error_details_pb2.RetryInfo()
                detail.Unpack(retry)
                retry_after = retry.retry_delay
    return Ending(code, message, info.reason, info.domain, dict(info.metadata), tuple(fields), retry_after)


@dataclass(frozen=True)
class UnitAnswers:
    """The worker's answers to one unit."""

    prefill: pb.PrefillResponse
    pieces: list[pb.GenerateResponse]
    done: pb.UnitDone
    finalize: pb.FinalizeResponse

    @property
    def text(self) -> str:
        return "".join(piece.text.text for piece in self.pieces)

    @property
    def token_ids(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.text.token_ids]

    @property
    def samples(self) -> int:
        return sum(len(piece.audio.data) // 4 for piece in self.pieces)


def duplex(audio: np.ndarray[Any, Any] = SILENCE, rate: int = 16_000) -> pb.DuplexInput:
    """One unit of float32 audio."""
    return pb.DuplexInput(
        audio=common.AudioChunk(
            encoding=common.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=rate, data=audio.astype("<f4").tobytes()
        )
    )


class Caller:
    """One session. Streams are opened by `open`, all three unless said otherwise."""

    def __init__(
        self, channel: grpc.aio.Channel, session_id: str | None = None, *metadata: tuple[str, str]
    ) -> None:
        self.session_id = session_id or f"s-{uuid.uuid4().hex[:12]}"
        self._stub: Any = InferenceServiceStub(channel)
        self._metadata = ((METADATA_SESSION_ID, self.session_id), *metadata)
        self.calls: dict[Stream, Any] = {}

    async def open(self, *streams: Stream) -> "Caller":
        """Open streams and wait until they are attached."""
        for stream in streams or tuple(Stream):
            self.start(stream)
            await soon(self.calls[stream].initial_metadata())
        return self

    async def ready(self, **config: Any) -> "Caller":
        """Open all streams and configure the session."""
        await self.open()
        await self.configure(**config)
        return self

    async def leave(self) -> Ending:
        """Half-close the stream of inputs and return how the session ends."""
        await self.half_close(Stream.PREFILL)
        return await self.end()

    def start(self, stream: Stream) -> Any:
        """Open a stream without waiting."""
        self.calls[stream] = getattr(self._stub, stream.value)(metadata=self._metadata)
        return self.calls[stream]

    async def write(self, stream: Stream, message: Any) -> None:
        await soon(self.calls[stream].write(message))

    async def read(self, stream: Stream) -> Any:
        """Return the next answer, or EOF."""
        return await soon(self.calls[stream].read())

    async def settle(self) -> pb.GetInfoResponse:
        """Wait for the answer to another call, after which the worker knows that its answers were read."""
        answer: pb.GetInfoResponse = await soon(self._stub.GetInfo(pb.GetInfoRequest()))
        return answer

    async def configure(self, **config: Any) -> pb.SessionReady:
        """Send the config and wait for SessionReady."""
        await self.send_config(**config)
        response: pb.PrefillResponse = await self.read(Stream.PREFILL)
        assert response.HasField("ready"), response
        return response.ready

    async def send_config(self, unit: int = 0, **config: Any) -> None:
        message = pb.SessionConfig(**{"mode": pb.SESSION_MODE_AUDIO, **config})
        await self.write(Stream.PREFILL, pb.PrefillRequest(unit=unit, config=message))

    async def prefill(self, unit: int, content: Content | None = None, traceparent: str = "") -> None:
        message = pb.PrefillRequest(unit=unit, traceparent=traceparent)
        match content or duplex():
            case pb.DuplexInput() as heard:
                message.duplex.CopyFrom(heard)
            case pb.TurnInput() as turn:
                message.turn.CopyFrom(turn)
            case pb.StreamInput() as chunk:
                message.stream.CopyFrom(chunk)
        await self.write(Stream.PREFILL, message)

    async def generate(self, unit: int, **run: Any) -> None:
        message = pb.GenerateRequest(unit=unit, run=pb.GenerateUnit(**run))
        await self.write(Stream.GENERATE, message)

    async def cancel(self, unit: int) -> None:
        message = pb.GenerateRequest(unit=unit, cancel=pb.CancelUnits())
        await self.write(Stream.GENERATE, message)

    async def finalize(self, unit: int, **fields: Any) -> None:
        await self.write(Stream.FINALIZE, pb.FinalizeRequest(unit=unit, **fields))

    async def send_unit(
        self,
        unit: int,
        content: Content | None = None,
        *,
        keep_last_token: bool = False,
        traceparent: str = "",
        **run: Any,
    ) -> None:
        """Send all three requests of a unit without waiting for an answer."""
        await self.prefill(unit, content, traceparent)
        await self.generate(unit, **run)
        await self.finalize(unit, keep_last_token=keep_last_token)

    async def send_last_unit(self, unit: int) -> None:
        """The requests of a unit whose generation ends the session.

        Without Finalize: gRPC makes up a status for a stream that is written to when its end comes.
        """
        await self.prefill(unit)
        await self.generate(unit)

    async def answers(self, unit: int) -> UnitAnswers:
        """Return the three answers of a unit; any other answer is an error."""
        prefill = await self.read(Stream.PREFILL)
        pieces = [await self.read(Stream.GENERATE)]
        while not pieces[-1].HasField("done"):
            pieces.append(await self.read(Stream.GENERATE))
        finalize = await self.read(Stream.FINALIZE)
        assert {prefill.unit, finalize.unit, *(piece.unit for piece in pieces)} == {unit}
        return UnitAnswers(prefill, pieces, pieces[-1].done, finalize)

    async def unit(self, unit: int, content: Content | None = None, **run: Any) -> UnitAnswers:
        """Run one unit from its input to its last answer."""
        await self.send_unit(unit, content, **run)
        return await self.answers(unit)

    async def half_close(self, *streams: Stream) -> None:
        for stream in streams:
            await soon(self.calls[stream].done_writing())

    async def ending(self, stream: Stream) -> Ending:
        """Return how one call ends; earlier answers are read and dropped."""
        call = self.calls[stream]
        try:
            while await soon(call.read()) is not grpc.aio.EOF:
                pass
        except grpc.RpcError:
            pass
        return ending(await soon(call.code()), await call.details(), await call.trailing_metadata())

    async def end(self) -> Ending:
        """Return how the session ends; all open streams must end the same way."""
        endings = [await self.ending(stream) for stream in self.calls]
        assert all(other == endings[0] for other in endings), endings
        return endings[0]


def channel_to(address: str) -> grpc.aio.Channel:
    """A channel with the options of a session channel."""
    return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
