"""Tests of a journal's content and bounds."""

import asyncio

import numpy as np
import pytest

from antiphon import ReplayError
from antiphon.contract import Reason
from antiphon.grpc import Journal, Session, UnitDone
from antiphon.grpc.turns import audio_chunk
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from tests.inference_service.rpc.test_replay import load
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker

LISTEN, CHUNK, TURN = pb.UNIT_END_LISTEN, pb.UNIT_END_CHUNK, pb.UNIT_END_TURN
CANCELLED = pb.UNIT_END_CANCELLED
EXACT = (np.arange(-8000, 8000) / 32768).astype(np.float32)


def request(unit: int, samples: np.ndarray[tuple[int], np.dtype[np.float32]] = EXACT) -> pb.PrefillRequest:
    run = pb.GenerateUnit(force_listen=unit % 2 == 0)
    return pb.PrefillRequest(unit=unit, duplex=pb.DuplexInput(audio=audio_chunk(samples, 16_000)), run=run)


def filled(journal: Journal, *ends: pb.UnitEnd) -> list[int]:
    """Give the journal a unit for each end; return which it kept."""
    for unit, end in enumerate(ends, 1):
        journal.sent(request(unit))
        journal.done(unit, pb.UnitRecord(end=end, sampled_ids=[unit]))
    return kept(journal)


def kept(journal: Journal) -> list[int]:
    return [kept.recorded.sampled_ids[0] for kept in journal.recorded()]


def test_oldest_units_are_dropped_first() -> None:
    assert filled(Journal(3), *[LISTEN] * 5) == [3, 4, 5]


def test_journal_begins_with_a_unit_that_continues_no_turn() -> None:
    assert filled(Journal(3), LISTEN, CHUNK, TURN, LISTEN) == [2, 3, 4]
    assert filled(Journal(3), LISTEN, CHUNK, TURN, LISTEN, LISTEN) == [4, 5]
    assert filled(Journal(2), CANCELLED, CHUNK, LISTEN) == []


def test_turn_beyond_the_bounds_empties_the_journal_until_it_ends() -> None:
    assert filled(Journal(2), CHUNK, CHUNK, CHUNK, CHUNK) == []
    assert filled(Journal(2), CHUNK, CHUNK, CHUNK, TURN, LISTEN) == [5]


def test_bytes_are_bounded() -> None:
    journal = Journal(60, 3 * 2 * len(EXACT))
    assert filled(journal, *[LISTEN] * 9) == [8, 9]
    assert 0 < journal.size <= 3 * 2 * len(EXACT)


def test_units_without_a_record_are_left_out() -> None:
    journal = Journal()
    filled(journal, LISTEN)
    journal.sent(request(2))
    journal.done(2, None)
    assert kept(journal) == [1]
    assert journal.unanswered(2) == []


def test_audio_is_restored_exactly_and_stored_as_pcm16_where_possible() -> None:
    loud = np.array([1.0, 0.1, -1.5], np.float32)
    journal = Journal()
    for unit, samples in enumerate((EXACT, loud), 1):
        journal.sent(request(unit, samples))
        journal.done(unit, pb.UnitRecord(end=LISTEN))
    for got, samples in zip(journal.recorded(), (EXACT, loud), strict=True):
        assert got.duplex.audio.encoding == common.AUDIO_ENCODING_PCM_F32LE
        assert np.array_equal(np.frombuffer(got.duplex.audio.data, "<f4"), samples)
    assert journal.size < 3 * len(EXACT)
    assert [got.run.force_listen for got in journal.recorded()] == [False, True]


def test_unanswered_units_get_new_numbers_and_stay() -> None:
    journal = Journal()
    for unit in (7, 8):
        journal.sent(request(unit))
    for _ in range(2):
        assert [got.unit for got in journal.unanswered(3)] == [3, 4]


def test_settings_are_kept_with_a_seed() -> None:
    journal = Journal()
    config = journal.settle(pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO))
    assert config.records
    assert config.HasField("seed")
    assert config == journal.config


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0)])
def test_bounds_of_zero_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Journal(*bounds)


async def test_worker_without_replay_is_named_and_serves_a_fresh_start() -> None:
    journal = Journal()
    config = journal.settle(pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO))
    filled(journal, LISTEN)
    async with (
        running_worker(ScriptedEngine(listen(), repeat=True)) as worker,
        Session.open(worker.address, config) as session,
    ):
        with pytest.raises(ReplayError) as refused:
            await session.replay(journal)
        assert refused.value.reason == Reason.CONTENT_UNSUPPORTED
        assert not refused.value.retryable
        assert await session.send_unit(EXACT) == 1


async def test_record_that_is_refused_ends_the_replay() -> None:
    journal = Journal()
    config = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)
    async with running_worker(load) as worker:
        async with Session.open(worker.address, config, journal=journal) as session:
            await session.send_unit(EXACT)
            async with asyncio.timeout(PATIENCE_S):
                async for output in session:
                    if isinstance(output, UnitDone):
                        break
            assert isinstance(output, UnitDone)
            assert [kept.recorded for kept in journal.recorded()] == [output.record]
        journal.sent(request(2))
        journal.done(2, pb.UnitRecord())
        async with Session.open(worker.address, journal.config) as session:
            with pytest.raises(ReplayError) as refused:
                await session.replay(journal)
            assert refused.value.reason == Reason.PARAMS_INVALID
            assert refused.value.retryable
