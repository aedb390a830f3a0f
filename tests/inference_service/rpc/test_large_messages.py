"""Messages of many megabytes: decoded beside the event loop, in their order, and never sent in one piece."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from antiphon.contract import MAX_MESSAGE_BYTES, Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.engine import Piece
from inference_service.interface.setups import StreamInput, TranscribeSetup
from inference_service.rpc.messages import requests
from inference_service.rpc.messages.replies import LARGEST_ANSWER, absorb, piece, pieces
from inference_service.rpc.messages.requests import LARGE, MOST_PARTS
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.rpc.test_parts import MESSAGES, TURN, field
from tests.inference_service.support.caller import Caller, channel_to, soon, until_free
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, running_worker, speak, write

RATE = 24_000


def dictation(samples: int) -> pb.StreamInput:
    audio = common.AudioChunk(
        encoding=common.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=16_000, data=bytes(4 * samples)
    )
    return pb.StreamInput(audio=audio)


def turn_of_nothing(count: int) -> bytes:
    """A request with so many messages that hold nothing, two bytes each."""
    return b"\x08\x01" + field(TURN, 2, field(MESSAGES, 2) * count)


async def write_bytes(channel: Any, caller: Caller, data: bytes) -> None:
    """Opens a session whose Prefill stream takes bytes as they are."""
    raw = channel.stream_stream("/antiphon.v1.InferenceService/Prefill")
    caller.calls[Stream.PREFILL] = raw(metadata=caller._metadata)
    await caller.open(Stream.GENERATE, Stream.FINALIZE)
    config = pb.SessionConfig(mode=pb.SESSION_MODE_CHAT)
    await caller.write(Stream.PREFILL, pb.PrefillRequest(config=config).SerializeToString())
    await caller.read(Stream.PREFILL)
    await caller.write(Stream.PREFILL, data)


async def test_large_message_blocks_no_other_session(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding that took for ever would cost its own session alone."""
    hold, begun, read = threading.Event(), threading.Event(), requests.speech_input

    def slow(stream: pb.StreamInput, *given: Any) -> StreamInput:
        if len(stream.audio.data) > LARGE:
            begun.set()
            assert hold.wait(PATIENCE_S)
        return read(stream, *given)

    monkeypatch.setitem(requests._INPUTS, TranscribeSetup, ("stream", "a TRANSCRIBE", slow))
    engine = ScriptedEngine(slots=2, info=EVERYTHING)
    async with served(engine) as new_caller:
        large = await new_caller().ready(mode=pb.SESSION_MODE_TRANSCRIBE)
        mine = engine.session
        try:
            await large.send_unit(1, dictation(7_000_000))
            await large.send_unit(2, dictation(100))
            assert await asyncio.to_thread(begun.wait, PATIENCE_S)
            neighbour = await new_caller().ready()
            for number in range(1, 6):
                await neighbour.unit(number)
            assert not mine.given
        finally:
            hold.set()
        answers = [await large.answers(1), await large.answers(2)]

    assert [answer.finalize.unit for answer in answers] == [1, 2]
    chunks = [mine.given[number] for number in (1, 2)]
    assert [len(chunk.chunk) for chunk in chunks] == [7_000_000, 100]  # type: ignore[union-attr,arg-type]


async def test_millions_of_empty_parts_end_their_session_alone() -> None:
    engine = ScriptedEngine(slots=2, info=EVERYTHING)
    async with running_worker(engine, slots=2) as worker, channel_to(worker.address) as channel:
        neighbour = await Caller(channel).ready()
        flooder = Caller(channel)
        await write_bytes(channel, flooder, turn_of_nothing(15_000_000))
        ending = await flooder.ending(Stream.PREFILL)
        for number in range(1, 4):
            await neighbour.unit(number)
        await flooder.end()
    assert (ending.reason, ending.fields) == (Reason.PAYLOAD_INVALID, ("request",))
    assert f"more than {MOST_PARTS} parts" in ending.message


async def test_more_ids_than_the_context_holds_are_refused_before_they_are_looked_at(served: Served) -> None:
    async with served(ScriptedEngine(write("a"), write("b"), info=EVERYTHING)) as new_caller:
        caller = await new_caller().ready(mode=pb.SESSION_MODE_TOKENS)
        ids = pb.TokenIds(ids=range(500_000))  # most of them are no ids of the model's
        refused = await caller.unit(1, pb.StreamInput(token_ids=ids))
        after = await caller.unit(2, pb.StreamInput(token_ids=pb.TokenIds(ids=[1, 2])))
    assert refused.prefill.error.reason == Reason.INPUT_TOO_LONG
    assert not after.prefill.HasField("error")


@pytest.mark.parametrize("data", [b"\xff" * (LARGE + 1), b"\x2a\xff" + bytes(LARGE), b"\x0b" * (LARGE + 1)])
async def test_malformed_large_message_is_refused_as_small_one(data: bytes) -> None:
    engine = ScriptedEngine(slots=1, info=EVERYTHING)
    async with running_worker(engine, slots=1) as worker, channel_to(worker.address) as channel:
        endings = []
        for bad in (data[:64], data):
            caller = Caller(channel)
            await write_bytes(channel, caller, bad)
            endings.append(await caller.ending(Stream.PREFILL))
            await until_free(worker.address, 1)
    assert endings[0].reason == endings[1].reason == Reason.PAYLOAD_INVALID
    assert endings[1].fields == ("request",)


async def test_a_large_config_is_refused_as_a_small_one_is(served: Served) -> None:
    async with served(ScriptedEngine(slots=2)) as new_caller:
        endings = []
        for size in (10, LARGE):
            caller: Caller = await new_caller().open()
            await caller.send_config(mode=pb.SESSION_MODE_CHAT, system_prompt="a" * size)
            endings.append(await caller.end())
    assert endings[0].reason == endings[1].reason == Reason.MODE_UNSUPPORTED
    assert endings[0].message == endings[1].message


async def test_an_answer_beyond_what_a_caller_takes_comes_in_pieces(session_of: SessionOf) -> None:
    seconds = MAX_MESSAGE_BYTES // 4 // RATE + 60
    async with session_of(ScriptedEngine(speak("A long answer.", seconds=seconds))) as caller:
        answer = await caller.unit(1)
    assert (answer.text, answer.samples) == ("A long answer.", seconds * RATE)
    assert len(answer.pieces) > 4


def test_pieces_are_the_whole_in_order() -> None:
    samples = LARGEST_ANSWER // 2
    audio = np.linspace(-1, 1, samples, dtype=np.float32)
    text = "añ🙂" * (LARGEST_ANSWER // 8)
    parts = list(pieces(Piece(3, text, (1, 2), audio), RATE))
    assert all(part.unit == 3 and part.ByteSize() <= LARGEST_ANSWER + 1024 for part in parts)
    assert "".join(part.text.text for part in parts) == text
    assert [token for part in parts for token in part.text.token_ids] == [1, 2]
    data = b"".join(part.audio.data for part in parts)
    np.testing.assert_array_equal(np.frombuffer(data, "<f4"), audio)
    assert all(part.audio.sample_rate_hz == RATE for part in parts if part.HasField("audio"))


def test_pending_answers_are_merged_up_to_size_limit() -> None:
    part = piece(Piece(1, audio=np.zeros(LARGEST_ANSWER // 12, np.float32)), RATE)
    waiting = pb.GenerateResponse()
    waiting.CopyFrom(part)
    assert [absorb(waiting, part) for _ in range(4)] == [True, False, False, False]
    assert waiting.ByteSize() <= LARGEST_ANSWER


async def test_leaving_while_decoding_frees_the_slot(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, begun, decoded = threading.Event(), threading.Event(), requests.decoded

    def slow(kind: Any, data: bytes) -> Any:
        if len(data) > LARGE:
            begun.set()
            assert hold.wait(PATIENCE_S)
        return decoded(kind, data)

    monkeypatch.setattr(requests, "decoded", slow)
    async with running_worker(ScriptedEngine(slots=1, info=EVERYTHING), slots=1) as worker:
        try:
            async with channel_to(worker.address) as channel:
                caller = await Caller(channel).ready(mode=pb.SESSION_MODE_TRANSCRIBE)
                await caller.prefill(1, dictation(1_000_000))
                assert await asyncio.to_thread(begun.wait, PATIENCE_S)
                for call in caller.calls.values():
                    call.cancel()
                await until_free(worker.address, 1)
        finally:
            hold.set()
        async with channel_to(worker.address) as channel:
            await soon((await Caller(channel).open()).configure())
