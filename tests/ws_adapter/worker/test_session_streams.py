"""The adapter's end of the gRPC contract."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from antiphon.contract import Reason
from antiphon.v1 import common_pb2
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub
from inference_service.interface import setups
from inference_service.interface.engine import SessionFailed
from inference_service.rpc import server
from tests.support.drawing import encoded, picture
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    EVERYTHING,
    Play,
    ScriptedEngine,
    hang,
    listen,
    running_worker,
    speak,
)
from tests.ws_adapter.support.stage import until
from ws_adapter.process.errors import AttachFailed
from ws_adapter.protocol.core.actions import RunUnit
from ws_adapter.protocol.core.answer import StandaloneText
from ws_adapter.protocol.core.config import DuplexConfig, Mode, SessionSetup
from ws_adapter.protocol.core.signals import (
    Failed,
    Finalized,
    GoingAway,
    Piece,
    Prefilled,
    Ready,
    Rewound,
    Signal,
    TextPurpose,
    Timings,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.media.reference_voice import Voice
from ws_adapter.worker import convert as messages
from ws_adapter.worker import session_streams
from ws_adapter.worker.failure import reason_of
from ws_adapter.worker.journal import Journals
from ws_adapter.worker.session_streams import SessionStreams
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.dialler import dialler

SETUP = SessionSetup(Mode.AUDIO, "Answer.", DuplexConfig(), Voice())
SECOND = bytes(64_000)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


JPEG = encoded(picture(), "JPEG")


@dataclass(frozen=True)
class Listener:
    """Writes down what a worker says."""

    heard: list[Signal]

    @property
    def said(self) -> Callable[[*tuple[Signal, ...]], None]:
        return lambda *signals: self.heard.extend(signals)

    def failed(self, reason: Reason) -> None:
        self.heard.append(Failed(reason))


dial = dialler()


def dialled(address: str) -> Channel:
    return dial(address, lambda: None)


class Caller:
    def __init__(self, channel: Channel, worker_id: str) -> None:
        self.channel = channel
        self.worker_id = worker_id
        self.said: list[Signal] = []

    async def attach(self, name: str = "s-1") -> SessionStreams:
        return await SessionStreams.attach(
            self.channel, self.worker_id, name, "0:1:", Listener(self.said), deadline_s=60.0
        )

    async def begin(self) -> SessionStreams:
        """A session that takes units."""
        streams = await self.attach()
        streams.open(SETUP, 600.0)
        await until(lambda: self.heard(Ready))
        return streams

    def heard(self, shape: type) -> list[Any]:
        return [signal for signal in self.said if isinstance(signal, shape)]


async def end(streams: SessionStreams) -> None:
    streams.release()
    await streams.ended()


async def id_of(channel: Channel) -> str:
    answer = await channel.ask("GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse, timeout_s=5.0)
    return answer.worker_id


@asynccontextmanager
async def worker(engine: ScriptedEngine, **options: Any) -> AsyncIterator[tuple[Caller, Any]]:
    async with running_worker(engine, **options) as running:
        channel = dialled(running.address)
        try:
            yield Caller(channel, await id_of(channel)), running
        finally:
            channel.close()
            await channel.wait_closed()


async def test_units_are_written_ahead_and_answered() -> None:
    """Output is told before the end of its unit."""
    engine = ScriptedEngine(listen(), speak("Hel", "lo"), speak("again"))
    async with worker(engine) as (caller, _):
        streams = await caller.begin()
        for unit in (1, 2, 3):
            streams.run(RunUnit(unit, SECOND, unit == 3))
        await until(lambda: len(caller.heard(Finalized)) == 3)
        ends = [(done.unit, done.end) for done in caller.heard(UnitDone)]
        assert ends == [(1, UnitEnd.LISTEN), (2, UnitEnd.CHUNK), (3, UnitEnd.LISTEN)]
        assert [p.unit for p in caller.heard(Prefilled)] == [1, 2, 3]
        assert ("generate", 3, True) in [call[:3] for call in engine.session.calls]
        pieces = caller.heard(Piece)
        assert "".join(piece.text for piece in pieces) == "Hello"
        assert sum(len(piece.audio) for piece in pieces) == 96_000
        assert caller.said.index(pieces[-1]) < caller.said.index(caller.heard(UnitDone)[1])
        await end(streams)
        assert engine.session.is_closed
        assert not caller.heard(Failed)


def unattached() -> tuple[SessionStreams, list[Signal]]:
    """Streams that a test has hear what it likes, and what they told."""
    heard: list[Signal] = []
    return SessionStreams(dialled("127.0.0.1:1"), "s-1", "0:1:", Listener(heard), 60.0, ()), heard


async def test_unit_output_is_held_until_its_prefill_is_answered() -> None:
    """Output and prefill come on two calls, of which either may be read first."""
    streams, heard = unattached()
    done = pb.UnitDone(end=pb.UNIT_END_TURN)
    streams._on_generate(pb.GenerateResponse(unit=1, text=pb.TextDelta(text="Hello")))
    streams._on_generate(pb.GenerateResponse(unit=1, text=pb.TextDelta(text=" you"), done=done))
    assert not heard
    streams._on_prefill(pb.PrefillResponse(unit=1, prefilled=pb.Prefilled(context_tokens=9)))
    assert [type(signal) for signal in heard] == [Prefilled, Piece, Piece, UnitDone]
    streams._on_generate(pb.GenerateResponse(unit=1, text=pb.TextDelta(text="!")))
    assert isinstance(heard[-1], Piece)


async def test_answer_behind_the_end_of_another_call_is_left_to_the_next_worker() -> None:
    """The session no longer gets this answer, so its unit must stay unanswered in the journal."""
    streams, heard = unattached()
    journal = Journals(30.0, 1 << 20).open()
    assert journal is not None
    streams.journal = journal
    for unit in (1, 2):
        journal.sent(unit, (b"input",))
    record = pb.UnitRecord(end=pb.UNIT_END_LISTEN)
    answers = [
        pb.GenerateResponse(unit=unit, done=pb.UnitDone(record=record), finalized=pb.FinalizeResponse())
        for unit in (1, 2)
    ]
    streams._on_generate(answers[0])
    streams._on_end(Reason.DRAINING)
    streams._on_generate(answers[1])
    assert heard[-1] == Failed(Reason.DRAINING)
    assert [unit for unit, _ in journal.unanswered] == [2]
    assert journal.numbers == [1]


@pytest.mark.parametrize("step", ["generate", "prefill"])
async def test_release_cancels_a_running_unit_and_waits_for_the_clean_slot(step: str) -> None:
    engine = ScriptedEngine(hang(step), slow_cleanup=True)
    async with worker(engine) as (caller, _):
        streams = await caller.begin()
        streams.run(RunUnit(1, SECOND, False))
        await until(lambda: engine.sessions and engine.session.heard)
        ended = asyncio.create_task(streams.ended())
        streams.release()
        await until(lambda: engine.session.is_closing)
        await asyncio.sleep(0.05)
        assert not ended.done()
        engine.session.finish_cleanup()
        await ended


async def test_refused_attach_names_its_reason_and_leaves_nothing() -> None:
    nobody = dialled("127.0.0.1:1")

    async def refused(caller: Caller) -> Reason:
        with pytest.raises(AttachFailed) as caught:
            await caller.attach("s-2")
        return caught.value.reason

    async with worker(ScriptedEngine(listen(), slots=1), slots=1) as (caller, _):
        streams = await caller.attach("s-1")
        assert await refused(caller) is Reason.NO_FREE_SLOT
        await end(streams)
        assert await refused(Caller(caller.channel, "worker-another")) is Reason.WORKER_LOST
        assert await refused(Caller(nobody, "nobody")) is Reason.WORKER_LOST
        await until_attached(caller, "s-3")
    nobody.close()
    await nobody.wait_closed()


async def test_attach_that_failed_halfway_says_nothing_later() -> None:
    async with (
        worker(ScriptedEngine(listen())) as (caller, running),
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        stub = InferenceServiceStub(channel)
        squatter = stub.Finalize(metadata=(("antiphon-session-id", "s-1"),))
        await squatter.initial_metadata()
        with pytest.raises(AttachFailed) as refused:
            await caller.attach("s-1")
        assert refused.value.reason is Reason.STREAM_EXISTS
        await asyncio.sleep(0.05)
        assert caller.said == []
        squatter.cancel()


def limited(monkeypatch: pytest.MonkeyPatch, streams: int) -> None:
    """Has workers take no more than so many streams on a connection."""
    monkeypatch.setattr(server, "max_streams", lambda slots: streams)


async def test_sessions_follow_each_other_where_calls_of_one_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker refuses some calls of the next session, since it briefly counts those that have ended."""
    limited(monkeypatch, streams=3)
    async with worker(ScriptedEngine(listen(), slots=1), slots=1) as (caller, _):
        for number in range(40):
            streams = await caller.attach(f"s-{number}")
            await end(streams)
    assert caller.said == []


async def until_attached(caller: Caller, name: str) -> None:
    """Attaches and releases a session as soon as a slot is free, under `name` and a number."""
    for number in range(100):
        try:
            streams = await caller.attach(f"{name}-{number}")
        except AttachFailed:
            await asyncio.sleep(0.02)
        else:
            await end(streams)
            return
    raise AssertionError("no slot became free")


async def test_session_beyond_the_calls_that_fit_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, streams=4)
    engine = ScriptedEngine(listen(), slots=2)
    async with worker(engine, slots=2) as (caller, _):
        # Were their calls taken in turns, each would wait for what the other holds.
        attaching_first, attaching = (asyncio.create_task(caller.attach(f"s-{n}")) for n in (1, 2))
        first = await attaching_first
        await asyncio.wait({attaching}, timeout=0.1)
        assert not attaching.done()
        await end(first)
        second = await attaching
        second.open(SETUP, 600.0)
        await until(lambda: caller.heard(Ready))
        assert not caller.heard(Failed)
        await end(second)


async def test_dead_worker_is_reported_once() -> None:
    engine = ScriptedEngine(hang("generate"))
    async with worker(engine) as (caller, running):
        streams = await caller.begin()
        streams.run(RunUnit(1, SECOND, False))
        await until(lambda: engine.sessions and engine.session.heard)
        running.worker.interrupt()
        running.worker.interrupt()
        await streams.ended()
        assert len(caller.heard(Failed)) == 1
        assert caller.said[-1] in (Failed(Reason.DRAINING), Failed(Reason.WORKER_LOST))


async def test_worker_says_that_it_is_going_away() -> None:
    async with worker(ScriptedEngine(listen()), drain_timeout_s=0.3) as (caller, running):
        streams = await caller.begin()
        running.worker.interrupt()
        await streams.ended()
        [away] = caller.heard(GoingAway)
        assert 0 <= away.time_left_s <= 0.3
        assert caller.heard(Failed) == [Failed(Reason.DRAINING)]


async def test_refused_config_is_a_reason() -> None:
    async with worker(ScriptedEngine(listen())) as (caller, _):
        streams = await caller.attach()
        streams.open(SessionSetup(Mode.AUDIO, "", DuplexConfig(), Voice(), "another"), 0.0)
        await streams.ended()
        assert caller.said == [Failed(Reason.MODEL_NOT_FOUND)]


async def test_cancelled_attach_leaves_nothing() -> None:
    engine = ScriptedEngine(listen(), slots=1)
    async with worker(engine, slots=1) as (caller, _):
        for delay in range(8):
            attaching = asyncio.create_task(caller.attach(f"s-{delay}"))
            for _ in range(delay):
                await asyncio.sleep(0.0005)
            attaching.cancel()
            result = (await asyncio.gather(attaching, return_exceptions=True))[0]
            if isinstance(result, SessionStreams):
                await end(result)
        await until_attached(caller, "last")


def test_fields_and_purposes_have_the_names_of_the_contract() -> None:
    names = {f"TEXT_PURPOSE_{purpose.name}": number for purpose, number in messages.PURPOSES.items()}
    assert dict(pb.TextPurpose.items()) == {"TEXT_PURPOSE_UNSPECIFIED": 0, **names}
    assert set(DuplexConfig.__struct_fields__) == set(common_pb2.DuplexConfig.DESCRIPTOR.fields_by_name)


def test_settings_are_handed_on_and_unset_ones_stay_unset() -> None:
    given = {
        "generate_audio": False,
        "ls_mode": "explicit",
        "force_listen_count": 0,
        "decode_mode": "greedy",
        "temperature": 0.0,
        "top_k": 5,
        "chunk_ms": 1000,
    }
    config = messages.duplex_config(DuplexConfig(**given))
    assert {field.name for field, _ in config.ListFields()} == set(given)
    assert config.decode_mode == common_pb2.DECODE_MODE_GREEDY
    assert config.ls_mode == common_pb2.LISTEN_SPEAK_MODE_EXPLICIT
    assert (config.generate_audio, config.force_listen_count, config.temperature) == (False, 0, 0.0)


def test_session_config() -> None:
    reference = np.full(16_000, 0.5, "<f4").tobytes()
    setup = SessionSetup(Mode.AUDIO, "Hi.", DuplexConfig(), Voice(reference, None, None), "m", 7)
    config = messages.session_config(setup, 660.0)
    told = (config.mode, config.model, config.system_prompt, config.seed)
    assert told == (pb.SESSION_MODE_AUDIO, "m", "Hi.", 7)
    assert config.voice.llm_reference.data == reference
    assert config.voice.llm_reference.sample_rate_hz == 16_000
    assert not config.voice.HasField("speech_reference")
    assert config.max_duration == Duration(seconds=660)
    assert not messages.session_config(SETUP, 0.0).HasField("seed")


def test_pcm16_and_unknown_reasons_of_a_worker_are_read() -> None:
    chunk = common_pb2.AudioChunk(
        encoding=common_pb2.AUDIO_ENCODING_PCM_S16LE, data=np.array([-32768, 16384], "<i2").tobytes()
    )
    done = pb.UnitDone(end=pb.UNIT_END_FAILED, error=common_pb2.ItemError(reason="NEW_REASON"))
    assert np.frombuffer(messages.speech(chunk), "<f4").tolist() == [-1.0, 0.5]
    failed = UnitDone(3, UnitEnd.FAILED, 0, timings=Timings(), failure=Reason.INFERENCE_FAILED)
    assert messages.unit_done(3, done) == failed


async def test_broken_call_does_not_hide_why_the_session_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = iter([Reason.WORKER_LOST])
    monkeypatch.setattr(session_streams, "reason_of", lambda error: next(ended, None) or reason_of(error))
    poisoned = Play(fails_session=SessionFailed(Reason.KV_EXHAUSTED, "It cannot go on."))
    async with worker(ScriptedEngine(poisoned)) as (caller, _):
        streams = await caller.begin()
        streams.run(RunUnit(1, SECOND, False))
        await asyncio.wait_for(streams.ended(), PATIENCE_S)
    assert caller.heard(Failed) == [Failed(Reason.KV_EXHAUSTED)]


async def test_pictures_travel_with_their_unit() -> None:
    engine = ScriptedEngine(listen(), info=EVERYTHING)
    async with worker(engine) as (caller, _):
        streams = await caller.attach()
        streams.open(SessionSetup(Mode.VIDEO, "", DuplexConfig(), Voice()), 600.0)
        await until(lambda: caller.heard(Ready))
        streams.run(RunUnit(1, SECOND, False, (JPEG, JPEG), 2))
        await until(lambda: caller.heard(Finalized))
        assert caller.heard(UnitDone)[0].end is UnitEnd.LISTEN
        assert list(engine.session.seen[1]) == [JPEG, JPEG]


@pytest.mark.parametrize(
    "run",
    [
        RunUnit(3, SECOND, False),
        RunUnit(3, bytes(4), True),
        RunUnit(3, b"", False),
        RunUnit(3, SECOND, False, (b"one", b"two"), 2),
    ],
    ids=["sound", "one sample", "nothing", "pictures"],
)
def test_parts_of_a_prefill_are_the_message(run: RunUnit) -> None:
    """The sound is not copied."""
    parts = messages.prefill_parts(run, TRACEPARENT)
    message = messages.prefill(run, TRACEPARENT)
    assert pb.PrefillRequest.FromString(b"".join(parts)) == message
    assert run.frames or not run.audio or parts[-1] is run.audio
    assert message.unit == 3
    assert tuple(frame.data for frame in message.duplex.frames) == run.frames
    assert message.duplex.HasField("max_slice_nums") is bool(run.frames)
    assert message.duplex.max_slice_nums == (2 if run.frames else 0)


async def test_rewind_is_answered_after_earlier_output() -> None:
    engine = ScriptedEngine(speak("Hello"), info=EVERYTHING)
    async with worker(engine) as (caller, _):
        streams = await caller.begin()
        streams.run(RunUnit(1, SECOND, False))
        await until(lambda: caller.heard(Finalized))
        streams.rewind(1, 480)
        streams.rewind(1, None)
        streams.rewind(2, None)
        await until(lambda: len(caller.heard(Rewound)) == 3)
        tokens = engine.session.context_tokens
        refused = Rewound(2, tokens, 0, Reason.PARAMS_INVALID)  # at once, whatever waits for the engine
        told = caller.heard(Rewound)
        assert refused in told
        assert [answer for answer in told if answer != refused] == [Rewound(1, tokens, 1)] * 2
        assert [call for call in engine.session.calls if call[0] == "rewind"] == [
            ("rewind", 1, 480),
            ("rewind", 1, None),
        ]


async def test_rewind_answer_is_held_until_pending_prefill_is_answered() -> None:
    streams, heard = unattached()
    streams._on_generate(pb.GenerateResponse(unit=2, text=pb.TextDelta(text="Hello")))
    streams._on_generate(pb.GenerateResponse(unit=1, rewound=pb.UnitsRewound(rewound_units=1)))
    assert not heard
    streams._on_prefill(pb.PrefillResponse(unit=2, prefilled=pb.Prefilled(context_tokens=9)))
    assert [type(signal) for signal in heard] == [Prefilled, Piece, Rewound]


async def test_texts_travel_with_their_unit_to_a_model_that_reads_them() -> None:
    purposes = frozenset({setups.TextPurpose.THINKING})
    engine = ScriptedEngine(info=replace(EVERYTHING, text_purposes=purposes))
    note = StandaloneText(TextPurpose.THINKING, "The user is called Ada.")
    order = StandaloneText(TextPurpose.INSTRUCTIONS, "Be brief.")
    async with worker(engine) as (caller, _):
        streams = await caller.begin()
        assert caller.heard(Ready)[0].text_purposes == {TextPurpose.THINKING}
        streams.run(RunUnit(1, SECOND, False, texts=(note,)))
        streams.run(RunUnit(2, SECOND, False, texts=(order,)))
        await until(lambda: len(caller.heard(Finalized)) == 2)
        content = engine.session.given[1]
        assert isinstance(content, setups.UnitInput)
        assert content.texts == (setups.StandaloneText(setups.TextPurpose.THINKING, note.text),)
        assert [(done.failure, done.field) for done in caller.heard(UnitDone)] == [
            (None, ""),
            (Reason.CONTENT_UNSUPPORTED, "duplex.texts[0]"),
        ]
