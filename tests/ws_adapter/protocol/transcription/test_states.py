"""Every cell of the state table of transcription, and the rules under it."""

import json

import pytest

from tests.ws_adapter.support.pools import catalogue as catalogue_of
from tests.ws_adapter.support.transcription_conversation import (
    COMMIT,
    CREATED_EVENT,
    EMPTY,
    FINAL,
    UPDATE,
    append,
    codes,
    delta,
    done,
)
from tests.ws_adapter.support.transcription_conversation import TranscriptionConversation as Talk
from ws_adapter.protocol.core.signals import Piece, UnitEnd
from ws_adapter.protocol.transcription.utterance import MOST_AHEAD

TWO_MODELS = catalogue_of({"antiphon-mini", "other"})
OTHER = {"type": "session.update", "model": "other"}


def test_created_comes_first_and_nothing_is_asked_for(talk: Talk) -> None:
    assert talk.sent == [CREATED_EVENT]
    assert list(talk.sent[0]) == ["type", "id", "created"]
    assert talk.slot == "none"
    assert talk.dialect.deadline is None
    assert talk.dialect.is_waiting


@pytest.mark.parametrize("commit", [COMMIT, FINAL])
def test_no_model_commit_is_refused_and_audio_kept(talk: Talk, commit: dict[str, object]) -> None:
    talk.client(append())
    (error,) = talk.client(commit)
    assert error["code"] == "model_not_validated"
    assert "session.update" in error["error"]
    assert talk.slot == "none"
    talk.client(UPDATE, COMMIT)
    talk.serve()
    assert talk.samples == 16_000


def test_unserved_model_is_rejected(talk: Talk) -> None:
    (error,) = talk.client({"type": "session.update", "model": "whisper-9"})
    assert error["code"] == "model_not_found"
    assert "whisper-9" in error["error"]
    assert "antiphon-mini" in error["error"]
    assert codes(talk.client(COMMIT)) == ["model_not_validated"]
    (error,) = talk.client({"type": "session.update", "model": "m" * 10_000})
    assert len(error["error"]) < 1000, "a long name is not repeated whole"


def test_without_a_known_worker_any_model_is_taken() -> None:
    talk = Talk(catalogue=None)
    assert talk.client({"type": "session.update", "model": "whisper-9"}, COMMIT) == []
    assert talk.slot == "wanted"


def test_ready_final_with_kept_audio_is_an_utterance(talk: Talk) -> None:
    assert talk.client(append(), UPDATE, FINAL) == [], "audio before the model is kept too"
    talk.serve()
    assert [(run.begins, run.ends) for run in talk.runs] == [(True, True)]
    assert talk.complete(" one") == [delta(" one"), done(" one", completion=1)]


def test_ready_commit_opens_with_the_kept_audio_first(talk: Talk) -> None:
    assert talk.client(UPDATE, append(level=1)) == []
    assert talk.slot == "none"
    talk.client(COMMIT, append(level=2))
    talk.serve()
    assert talk.samples == 32_000
    assert talk.levels == [1, 2]
    assert talk.runs[0].begins
    assert not any(run.ends for run in talk.runs)


def test_ready_final_without_audio_is_ignored_and_has_no_after_effect(talk: Talk) -> None:
    assert talk.client(UPDATE, FINAL, FINAL) == []
    assert talk.slot == "none"
    talk.begin()
    assert talk.complete() == []
    assert talk.client(append()) == []
    assert not any(run.ends for run in talk.runs)


def test_update_is_for_the_next_utterance() -> None:
    ready, opened = Talk(TWO_MODELS), Talk(TWO_MODELS)
    ready.client(UPDATE, OTHER, COMMIT)
    ready.grant()
    assert [setup.model for setup in ready.setups] == ["other"]
    opened.begin()
    opened.client(OTHER, FINAL)
    opened.complete()
    opened.client(COMMIT)
    opened.wait()
    assert opened.left == 1, "the worker was configured for another model"
    opened.serve()
    assert [setup.model for setup in opened.setups] == ["antiphon-mini", "other"]


def test_open_append_waits_for_a_slot_and_commit_is_ignored(talk: Talk) -> None:
    talk.client(UPDATE, COMMIT, append())
    assert talk.runs == []
    talk.serve()
    assert talk.client(append(), COMMIT, COMMIT) == []
    talk.client(FINAL)
    assert [(run.begins, run.ends) for run in talk.runs] == [(True, False), (False, False), (False, True)]
    assert codes(talk.complete()) == ["transcription.done"]
    assert talk.client(FINAL) == [], "the ignored commits have opened nothing"


@pytest.mark.parametrize("more", [4_000, 0], ids=["audio", "nothing"])
def test_open_final_finishes(talk: Talk, more: int) -> None:
    talk.begin(1.25)
    talk.client(*[append(more / 16_000)] * bool(more), FINAL)
    assert [len(run.audio) // 4 for run in talk.runs] == [20_000, more]
    assert [run.ends for run in talk.runs] == [False, True]
    assert talk.complete() == [done(completion=2)]


def test_failed_update_never_revokes_an_earlier_one(talk: Talk) -> None:
    talk.client(UPDATE)
    assert codes(talk.client({"type": "session.update", "model": "none"})) == ["model_not_found"]
    assert codes(talk.client({"type": "session.update"})) == ["invalid_event"]
    assert talk.client(COMMIT) == []
    assert talk.slot == "wanted"


@pytest.fixture
def finishing() -> Talk:
    talk = Talk(TWO_MODELS)
    talk.begin()
    talk.client(FINAL)
    return talk


@pytest.mark.parametrize("events", [(COMMIT, append(), FINAL), (append(), FINAL)], ids=["open", "kept"])
def test_finishing_final_ends_the_next(finishing: Talk, events: tuple[dict[str, object], ...]) -> None:
    finishing.client(*events)
    finishing.complete()
    finishing.wait()
    assert (finishing.runs[-1].begins, finishing.runs[-1].ends) == (True, True)
    assert codes(finishing.complete()) == ["transcription.done"]


def test_update_while_finishing_applies_to_later_commits(finishing: Talk) -> None:
    finishing.client(COMMIT, OTHER, append(), FINAL, COMMIT)
    finishing.complete()
    finishing.wait()
    assert [setup.model for setup in finishing.setups] == ["antiphon-mini"], "the second was committed before"
    finishing.complete()
    finishing.wait()
    finishing.serve()
    assert [setup.model for setup in finishing.setups] == ["antiphon-mini", "other"]


def test_utterances_ahead_are_bounded(talk: Talk) -> None:
    talk.client(UPDATE, COMMIT, append(), FINAL)
    for _ in range(MOST_AHEAD):
        assert talk.client(COMMIT, FINAL) == []
    (error,) = talk.client(COMMIT)
    assert error["code"] == "buffer_full"
    assert talk.client(FINAL) == [], "there is nothing that it could end"
    talk.serve()
    assert len(talk.complete()) == 1 + MOST_AHEAD


@pytest.fixture
def skipping() -> Talk:
    talk = Talk(TWO_MODELS)
    talk.begin()
    assert codes(talk.finish(1, end=UnitEnd.FAILED)) == ["processing_error"]
    return talk


def test_skipping_append_is_looked_at_and_discarded(skipping: Talk) -> None:
    assert codes(skipping.client({"type": "input_audio_buffer.append", "audio": "?"})) == ["invalid_audio"]
    assert skipping.client(append(2.0)) == []
    skipping.client(COMMIT, FINAL)
    assert skipping.samples == 16_000
    assert skipping.sent[-1] == EMPTY


def test_skipping_final_makes_ready_without_a_reply(skipping: Talk) -> None:
    assert skipping.client(append(), FINAL) == []
    assert skipping.client(append(0.5), FINAL) == []
    skipping.wait()
    assert skipping.samples == 24_000
    assert codes(skipping.complete()) == ["transcription.done"]


def test_skipping_update_is_for_the_next_utterance(skipping: Talk) -> None:
    skipping.client(OTHER, COMMIT)
    skipping.wait()
    skipping.serve()
    assert [setup.model for setup in skipping.setups] == ["antiphon-mini", "other"]


def test_empty_utterance_is_done_without_the_model_and_waits_for_its_turn(talk: Talk) -> None:
    assert talk.client(UPDATE, COMMIT) == []
    assert talk.client(FINAL) == [EMPTY]
    assert (talk.taken, talk.left, talk.slot) == (1, 1, "none"), "the place in the queue is given up"
    assert talk.heard == []
    talk.begin()
    assert talk.client(FINAL, COMMIT, FINAL, COMMIT, append(), FINAL) == []
    assert talk.complete("a") == [delta("a"), done("a", completion=2), EMPTY]
    talk.wait()
    assert talk.complete("b") == [delta("b"), done("b", completion=1)]


def test_done_is_the_deltas_joined_and_no_delta_is_empty(begun: Talk) -> None:
    assert begun.worker(Piece(1, "", b""), Piece(1, " good", b""), Piece(1, "", b"")) == [delta(" good")]
    assert begun.client(append()) == []
    begun.worker(Piece(1, " mor", b""))
    begun.finish(1, "ning", sampled=9)
    begun.client(FINAL)
    begun.complete()
    words = [delta(" good"), delta(" mor"), delta("ning")]
    assert begun.sent[1:] == [*words, done(" good morning", completion=11)]
    assert json.dumps(begun.sent[-1]["usage"]) == json.dumps(done(completion=11)["usage"]), "in this order"


def test_late_words_of_a_failed_utterance_are_not_those_of_the_next(talk: Talk) -> None:
    talk.begin(1.0)
    talk.client(append())
    assert len(talk.runs) == 2
    assert codes(talk.finish(1, end=UnitEnd.FAILED)) == ["processing_error"]
    assert talk.cancelled == [2]
    talk.client(COMMIT, append(), FINAL)
    talk.wait()
    assert talk.finish(2, " late", end=UnitEnd.CANCELLED) == []
    assert talk.finish(3, " new", end=UnitEnd.TURN) == [delta(" new"), done(" new", completion=1)]


def test_session_waits_until_an_utterance_has_its_worker(talk: Talk) -> None:
    talk.client(UPDATE, COMMIT)
    assert talk.dialect.is_waiting, "an utterance is open, and no worker has it"
    talk.serve()
    assert not talk.dialect.is_waiting
    talk.client(append(), FINAL)
    talk.complete(" one")
    assert talk.dialect.is_waiting, "the slot is kept, and no utterance is open"
