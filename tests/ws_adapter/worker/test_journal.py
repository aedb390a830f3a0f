"""Journals of the adapter: what they keep, what they forget, and the messages that another worker gets."""

import pytest

from antiphon.v1 import common_pb2
from antiphon.v1 import inference_service_pb2 as pb
from ws_adapter.process.blocks import UNIT as BLOCK
from ws_adapter.protocol.core.actions import RunUnit
from ws_adapter.worker.convert import automatic_parts
from ws_adapter.worker.journal import Journal, Journals, PendingRewind

SECOND = bytes(64_000)
MIB = 2**20


def journal_of(journals: Journals | None = None) -> Journal:
    """A journal whose session takes units."""
    journal = (journals or Journals(60.0, 16 * MIB)).open()
    assert journal is not None
    journal.set_config(pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO))
    ready = pb.SessionReady(model="mini")
    ready.effective.records = ready.effective.automatic_units = True
    ready.unit_duration.FromSeconds(1)
    assert journal.begin(ready)
    return journal


def send(journal: Journal, unit: int, audio: bytes = SECOND) -> None:
    journal.sent(unit, automatic_parts(RunUnit(unit, audio, force_listen=False), "00-a-b-00"))


def done(
    journal: Journal, unit: int, end: pb.UnitEnd = pb.UNIT_END_LISTEN, *, has_record: bool = True
) -> None:
    answer = pb.UnitDone(end=end)
    if has_record:
        answer.record.CopyFrom(
            pb.UnitRecord(end=end, sampled_ids=[unit], text_draws=10 * unit, word_ids=[unit])
        )
    journal.done(unit, answer)


def hear(journal: Journal, *ends: pb.UnitEnd) -> None:
    """Run units from 1 on that come to these ends."""
    for unit, end in enumerate(ends, 1):
        send(journal, unit)
        done(journal, unit, end)
        journal.finalized(unit)


def replayed(journal: Journal) -> list[pb.PrefillRequest]:
    return [pb.PrefillRequest.FromString(b"".join(parts)) for parts in journal.replay("00-c-d-01")]


def test_settle_without_a_seed_draws_one_and_asks_for_records() -> None:
    journal = Journals(60.0, MIB).open()
    assert journal is not None
    message = pb.PrefillRequest.FromString(journal.set_config(pb.SessionConfig()))
    assert message.config.records
    assert message.config.HasField("seed")
    kept = pb.SessionConfig(seed=7)
    assert pb.PrefillRequest.FromString(journal.set_config(kept)).config.seed == 7
    assert Journals(0.0, MIB).open() is Journals(60.0, 0).open() is None, "without a bound there is none"


@pytest.mark.parametrize("missing", ["records", "automatic_units", "model"])
def test_begin_at_a_worker_that_cannot_replay_is_refused(missing: str) -> None:
    journal = journal_of()
    ready = pb.SessionReady(model="other" if missing == "model" else "mini")
    ready.effective.records = missing != "records"
    ready.effective.automatic_units = missing != "automatic_units"
    assert not journal.begin(ready)


def test_replay_numbers_units_anew_and_adds_their_records() -> None:
    journal = journal_of()
    hear(journal, pb.UNIT_END_LISTEN, pb.UNIT_END_CHUNK)
    send(journal, 3)
    done(journal, 3, has_record=False)
    send(journal, 4)
    done(journal, 4, pb.UNIT_END_TURN)
    send(journal, 5)
    requests = replayed(journal)
    assert [request.unit for request in requests] == [1, 2, 3]
    assert [list(request.recorded.sampled_ids) for request in requests] == [[1], [2], [4]]
    assert {request.traceparent for request in requests} == {"00-c-d-01"}
    assert {request.duplex.audio.data for request in requests} == {SECOND}
    assert (journal.next_unit, [unit for unit, _ in journal.unanswered]) == (5, [5])


@pytest.mark.parametrize("most_bytes", [16 * MIB, 2 * BLOCK], ids=["blocks for all", "too few blocks"])
def test_replay_has_the_audio_of_each_unit(most_bytes: int) -> None:
    journal = journal_of(Journals(60.0, most_bytes))
    sounds = [bytes([number]) * size for number, size in enumerate((64_000, 12_800, 64_000, 200_000), 1)]
    for unit, audio in enumerate(sounds, 1):
        send(journal, unit, audio)
    unanswered = [pb.PrefillRequest.FromString(b"".join(parts)) for _, parts in journal.unanswered]
    assert [request.duplex.audio.data for request in unanswered] == sounds
    if most_bytes == 16 * MIB:
        for unit in range(1, 5):
            done(journal, unit)
        assert [request.duplex.audio.data for request in replayed(journal)] == sounds


def test_closed_journal_gives_its_blocks_back() -> None:
    journals = Journals(60.0, 4 * BLOCK)
    for _ in range(3):
        journal = journal_of(journals)
        hear(journal, *[pb.UNIT_END_LISTEN] * 3)
        assert journals.blocks.free == 1
        journal.close()
        assert journals.blocks.free == 4


def test_units_answered_and_not_closed_are_returned_once() -> None:
    journal = journal_of()
    send(journal, 1)
    done(journal, 1)
    assert not journal.has_closed(1)
    assert journal.replayed() == [1]
    assert journal.replayed() == []
    assert journal.has_closed(1)


def test_oldest_units_go_first_up_to_one_that_continues_no_turn() -> None:
    journal = journal_of(Journals(3.0, 16 * MIB))
    hear(journal, pb.UNIT_END_CHUNK, pb.UNIT_END_TURN, pb.UNIT_END_LISTEN, pb.UNIT_END_LISTEN)
    assert journal.numbers == [3, 4]
    assert journal.suffices
    longer = journal_of(Journals(2.0, 16 * MIB))
    assert longer.suffices
    hear(longer, *[pb.UNIT_END_CHUNK] * 4)
    assert not longer.suffices, "a turn longer than the journal"


def test_journals_beyond_their_bound_keep_each_their_share() -> None:
    journals = Journals(60.0, 10 * len(SECOND))
    one, other = journal_of(journals), journal_of(journals)
    hear(one, *[pb.UNIT_END_LISTEN] * 9)
    assert len(one.numbers) == 9
    hear(other, *[pb.UNIT_END_LISTEN] * 9)
    assert len(other.numbers) == 4
    assert journals.held_bytes > 0
    one.close()
    other.close()
    other.close()
    assert (journals.held_bytes, journals.share) == (0, journals.most_bytes)


def test_rewind_silences_units_that_were_not_heard_to_their_end() -> None:
    journal = journal_of()
    hear(journal, pb.UNIT_END_CHUNK)
    send(journal, 2)
    journal.spoke(2, 100)
    done(journal, 2, pb.UNIT_END_CHUNK)
    send(journal, 3)
    done(journal, 3, pb.UNIT_END_CHUNK)
    for heard, ends in ((100, ["CHUNK", "CHUNK", "LISTEN"]), (99, ["CHUNK", "LISTEN", "LISTEN"])):
        journal.rewinds.append(PendingRewind(2, heard))
        assert not journal.has_closed(0)
        assert journal.rewound(pb.UnitsRewound(rewound_units=1)) == 2
        told = [request.recorded for request in replayed(journal)]
        assert [pb.UnitEnd.Name(record.end).removeprefix("UNIT_END_") for record in told] == ends
    assert (list(told[2].sampled_ids), told[2].text_draws, list(told[2].word_ids)) == ([], 30, [3])


def test_rewind_that_was_refused_changes_nothing() -> None:
    journal = journal_of()
    hear(journal, pb.UNIT_END_CHUNK, pb.UNIT_END_CHUNK)
    journal.rewinds.append(PendingRewind(1, None))
    journal.rewound(pb.UnitsRewound(error=common_pb2.ItemError(reason="PARAMS_INVALID")))
    assert [request.recorded.end for request in replayed(journal)] == [pb.UNIT_END_CHUNK] * 2
