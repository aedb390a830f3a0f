"""Requests to a worker over gRPC: a listening unit, a speaking unit and a chat with a picture."""

import asyncio
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import numpy as np
from PIL import Image

from antiphon.contract import CLIENT_OPTIONS, METADATA_SESSION_ID
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub

RATE_HZ: Final = 16_000
_NEW_TOKENS: Final = 4
_SIDES: Final = (1344, 448)
"""The size of a picture that gives three slices and an overview, in pixels."""
_SPEAKS: Final = common.DuplexConfig(
    decode_mode=common.DECODE_MODE_GREEDY,
    force_listen_count=0,
    listen_prob_scale=0.0,
    max_new_speak_tokens_per_chunk=8,
)


class WrongAnswer(Exception):
    """The error for an answer that does not match the request; the message describes it."""


@dataclass(frozen=True)
class Answer:
    """The worker's answer to one request."""

    asked: str
    seconds: float
    text: str
    samples: int
    """Number of audio samples at 24 kHz."""


async def converse(address: str, patience_s: float, tell: Callable[[Answer], object]) -> list[Answer]:
    """Send the three requests in sequence, and call `tell` with each answer.

    Raises `WrongAnswer`, `grpc.RpcError` if a call fails, and `TimeoutError` after `patience_s`.
    """
    async with (
        asyncio.timeout(patience_s),
        grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS) as channel,
    ):
        session = Session(channel, "duplex")
        await session.begin(mode=pb.SESSION_MODE_AUDIO, seed=1, duplex=_SPEAKS)
        second = pb.PrefillRequest(unit=1, duplex=_second())
        listened = await session.unit("a listening unit", second, pb.GenerateUnit(force_listen=True))
        _require(listened, pb.UNIT_END_LISTEN, lambda it: not it.text and not it.samples)
        tell(listened.answer)
        second = pb.PrefillRequest(unit=2, duplex=_second())
        spoken = await session.unit("a speaking unit", second, pb.GenerateUnit())
        _require(spoken, None, lambda it: bool(it.text) and it.samples > 0)
        tell(spoken.answer)
        await session.end()
        session = Session(channel, "chat")
        sampling = common.SamplingParams(max_new_tokens=_NEW_TOKENS, temperature=0.0)
        await session.begin(mode=pb.SESSION_MODE_CHAT, seed=1, sampling=sampling)
        turn = pb.PrefillRequest(unit=1, turn=_turn())
        answered = await session.unit("a chat with a picture", turn, pb.GenerateUnit())
        _require(answered, None, lambda it: bool(it.text))
        tell(answered.answer)
        await session.end()
    return [it.answer for it in (listened, spoken, answered)]


@dataclass(frozen=True)
class _Ended:
    answer: Answer
    end: "pb.UnitEnd"
    failure: str


class Session:
    """The three streams of a session."""

    def __init__(self, channel: grpc.aio.Channel, session_id: str) -> None:
        stub: Any = InferenceServiceStub(channel)
        metadata = ((METADATA_SESSION_ID, session_id),)
        self._prefill, self._generate, self._finalize = (
            call(metadata=metadata) for call in (stub.Prefill, stub.Generate, stub.Finalize)
        )

    async def begin(self, **config: Any) -> None:
        """Send the configuration, and wait until the session accepts units."""
        for call in (self._prefill, self._generate, self._finalize):
            await call.initial_metadata()
        await self._prefill.write(pb.PrefillRequest(config=pb.SessionConfig(**config)))
        await self._prefill.read()

    async def unit(self, asked: str, given: pb.PrefillRequest, run: pb.GenerateUnit) -> _Ended:
        """Send the unit `given` with its orders, and read its answers."""
        began, number = time.monotonic(), given.unit
        await self._prefill.write(given)
        await self._generate.write(pb.GenerateRequest(unit=number, run=run))
        await self._finalize.write(pb.FinalizeRequest(unit=number))
        heard = await self._prefill.read()
        text, samples, piece = "", 0, await self._generate.read()
        while True:
            text += piece.text.text
            samples += len(piece.audio.data) // np.dtype(np.float32).itemsize
            if piece.HasField("done"):
                break
            piece = await self._generate.read()
        await self._finalize.read()
        answer = Answer(asked, time.monotonic() - began, text, samples)
        return _Ended(answer, piece.done.end, str(heard) if piece.done.end == pb.UNIT_END_FAILED else "")

    async def end(self) -> None:
        """Half-close the streams, and wait until the worker ends them."""
        calls = (self._prefill, self._generate, self._finalize)
        for call in calls:
            await call.done_writing()
        for call in calls:
            await call.code()


def _require(ended: _Ended, end: "pb.UnitEnd | None", holds: Callable[[Answer], bool]) -> None:
    if ended.failure or (end is not None and ended.end != end) or not holds(ended.answer):
        raise WrongAnswer(f"{ended.answer.asked} ended as {ended.end}: {ended.answer} {ended.failure}")


def _second() -> pb.DuplexInput:
    sound = 0.1 * np.random.default_rng(1).standard_normal(RATE_HZ)
    return pb.DuplexInput(
        audio=common.AudioChunk(
            encoding=common.AUDIO_ENCODING_PCM_F32LE,
            sample_rate_hz=RATE_HZ,
            data=sound.astype("<f4").tobytes(),
        )
    )


def _turn() -> pb.TurnInput:
    file = io.BytesIO()
    Image.radial_gradient("L").resize(_SIDES).convert("RGB").save(file, "JPEG")
    picture = pb.Content(image=common.Image(data=file.getvalue()))
    question = pb.Content(text="What do you see?")
    return pb.TurnInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, content=[picture, question])])
