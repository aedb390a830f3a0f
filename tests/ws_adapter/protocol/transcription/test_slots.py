"""Transcription's slot, its clocks, and what each failure means for an utterance."""

import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.conversation import ready_signal
from tests.ws_adapter.support.transcription_conversation import (
    COMMIT,
    EMPTY,
    FINAL,
    UPDATE,
    append,
    codes,
    delta,
    done,
)
from tests.ws_adapter.support.transcription_conversation import TranscriptionConversation as Talk
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.core.signals import Failed, GoingAway, Piece, Signal, UnitEnd
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import VERDICTS, Verdict


@pytest.fixture
def between(begun: Talk) -> Talk:
    """One was heard, and its slot is kept."""
    begun.client(FINAL)
    begun.complete()
    return begun


def test_slot_is_taken_at_the_first_effective_commit_silently(talk: Talk) -> None:
    assert talk.client(COMMIT)[0]["type"] == "error"
    talk.client(UPDATE, FINAL, append())
    assert talk.taken == 0
    assert talk.client(COMMIT) == []
    assert talk.do(talk.dialect.queued(Place(1, 30.0, "ticket_1", 1, False))) == []
    assert talk.serve() == []
    assert talk.taken == 1


def test_slot_is_kept_for_the_next_utterance(between: Talk) -> None:
    between.wait(29.9)
    between.client(COMMIT, append(), FINAL)
    between.wait()
    between.complete()
    assert (between.taken, between.left, between.slot) == (1, 0, "held")
    assert len(between.setups) == 1
    assert [run.begins for run in between.runs] == [True, False, True]


@pytest.mark.parametrize("fails", [False, True])
def test_slot_is_kept_for_half_a_minute(begun: Talk, fails: bool) -> None:
    begun.finish(1, end=UnitEnd.FAILED if fails else UnitEnd.CHUNK)
    begun.client(FINAL)
    begun.complete()
    begun.wait(29.999)
    assert begun.slot == "held"
    assert begun.wait(0.001) == []
    assert begun.slot == "none"
    assert begun.dialect.deadline is None
    begun.client(COMMIT, append(), FINAL)
    begun.serve()
    assert begun.runs[0].unit == 1


@pytest.mark.parametrize("waited", [0.0, 10.0])
def test_slot_is_not_kept_while_others_wait(between: Talk, waited: float) -> None:
    if waited:
        between.wait(waited)
        assert between.slot == "held"
    between.wait(waited / 10, others_wait=True)
    assert between.slot == "none"


def test_utterance_keeps_slot_and_next_utterance_requeues(begun: Talk) -> None:
    begun.wait(20.0, others_wait=True)
    assert begun.slot == "held"
    begun.client(FINAL, COMMIT, append(), FINAL)
    begun.complete()
    begun.wait(0.0, others_wait=True)
    assert (begun.slot, begun.taken, begun.left) == ("wanted", 2, 1)
    begun.serve()
    assert codes(begun.complete("x")) == ["transcription.delta", "transcription.done"]


def test_slot_granted_during_configuration_serves_next_utterance(talk: Talk) -> None:
    talk.client(UPDATE, COMMIT)
    talk.grant()
    assert talk.client(FINAL) == [EMPTY]
    talk.client(COMMIT, append())
    talk.wait()
    talk.worker(ready_signal())
    assert talk.samples == 16_000
    assert talk.taken == 1


def test_worker_lost_before_it_was_ready_is_replaced(talk: Talk) -> None:
    talk.client(UPDATE, COMMIT, append())
    talk.grant()
    talk.dialect.displaced()
    talk.slot = "wanted"
    talk.serve()
    assert len(talk.setups) == 2
    assert talk.samples == 16_000


def test_slot_that_is_replaced_when_nothing_is_left_to_say_is_given_back(talk: Talk) -> None:
    talk.client(UPDATE, COMMIT)
    talk.grant()
    talk.client(FINAL)
    talk.dialect.displaced()
    talk.slot = "wanted"
    talk.grant()
    assert talk.slot == "none"
    talk.client(COMMIT, append(), FINAL)
    talk.serve()
    assert codes(talk.complete()) == ["transcription.done"]


def test_open_utterance_without_audio_is_finished_after_half_a_minute(begun: Talk) -> None:
    begun.finish(1, " good", sampled=3)
    assert begun.wait(29.999) == []
    assert begun.wait(0.001) == []
    assert begun.runs[-1].ends
    begun.finish(2, " morning", UnitEnd.TURN, sampled=2)
    assert codes(begun.sent[-3:]) == ["transcription.delta", "transcription.done", "idle_timeout"]
    assert begun.sent[-2] == done(" good morning", completion=5)
    assert begun.client(append(), FINAL) == [], "READY"
    begun.wait()
    assert codes(begun.complete()) == ["transcription.done"]

    silent = Talk()
    silent.begin(0.0)
    assert codes(silent.wait(30.0)) == ["transcription.done", "idle_timeout"]
    assert silent.heard == []
    assert silent.sent[-2] == EMPTY


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        *((event, True) for event in (append(0.01), FINAL)),
        *((event, False) for event in (COMMIT, UPDATE, {"type": "x"}, {**append(), "audio": "?"})),
    ],
)
def test_append_and_effective_commit_move_the_clock(
    begun: Talk, event: dict[str, object], counts: bool
) -> None:
    begun.wait(29.0)
    begun.client(event)
    begun.wait(1.0)
    assert begun.runs[-1].ends is (not counts or event is FINAL)
    if counts:
        assert begun.wait(28.0) == []
        assert "idle_timeout" not in codes(begun.complete())


def test_utterance_that_waits_for_a_slot_or_has_its_final_commit_is_not_idle(talk: Talk) -> None:
    talk.client(UPDATE, COMMIT, append())
    assert talk.wait(600.0) == []
    talk.serve()
    assert talk.wait(29.9) == []
    assert not any(run.ends for run in talk.runs)
    talk.client(FINAL)
    assert talk.wait(120.0) == []
    assert codes(talk.complete()) == ["transcription.done"]


def test_long_utterance_has_no_limit(talk: Talk) -> None:
    talk.begin(0.0)
    for _ in range(3600):
        talk.client(append())
        talk.wait(1.0)
        talk.complete()
    talk.client(FINAL)
    assert codes(talk.complete("end")) == ["transcription.delta", "transcription.done"]
    assert talk.samples == 3600 * 16_000
    assert len(talk.heard) == 3601


UNSERVED = [
    *((VERDICTS[reason], "queue_full") for reason in (Reason.QUEUE_FULL, Reason.NO_FREE_SLOT)),
    *((verdict, "queue_full") for verdict in (errors.QUEUE_TIMEOUT, errors.QUEUE_CANCELLED)),
    (errors.NO_WORKER, "service_unavailable"),
    *((VERDICTS[reason], "service_unavailable") for reason in (Reason.LOADING, Reason.DRAINING)),
]


@pytest.mark.parametrize(("verdict", "code"), UNSERVED)
def test_without_a_slot_the_client_commits_again(talk: Talk, verdict: Verdict, code: str) -> None:
    talk.client(UPDATE, append(0.5), COMMIT, append(0.5))
    talk.slot = "none"
    (error,) = talk.do(talk.dialect.refused(verdict))
    assert error["code"] == code
    assert "commit again" in error["error"]
    assert talk.closed is None
    assert talk.client(append(0.5), COMMIT) == []
    talk.serve()
    assert talk.samples == 24_000


def test_queued_utterances_without_slot_retry_in_turn_and_finals_recommit() -> None:
    ahead, whole = Talk(), Talk()
    ahead.client(UPDATE, COMMIT, append(level=1), FINAL, COMMIT, append(level=2), FINAL, append(level=3))
    for _ in range(2):
        ahead.slot = "none"
        assert codes(ahead.do(ahead.dialect.refused(VERDICTS[Reason.QUEUE_FULL]))) == ["queue_full"]
    assert (ahead.slot, ahead.taken) == ("none", 2)
    ahead.client(FINAL)
    ahead.serve()
    assert ahead.levels == [1, 2, 3]

    whole.client(UPDATE, append(), FINAL)
    whole.slot = "none"
    whole.do(whole.dialect.refused(VERDICTS[Reason.QUEUE_FULL]))
    assert whole.client(FINAL) == []
    whole.serve()
    assert whole.complete("x") == [delta("x"), done("x", completion=1)]


def test_worker_that_cannot_be_reached_fails_the_utterance(talk: Talk) -> None:
    talk.client(UPDATE, COMMIT, append())
    talk.slot = "none"
    assert codes(talk.do(talk.dialect.refused(errors.CONNECT_FAILED))) == ["processing_error"]
    assert talk.client(append(), FINAL) == [], "SKIPPING"
    assert talk.dialect.held_bytes == 0
    assert talk.slot == "none"


THEIRS = [
    *(Reason.AUDIO_INVALID, Reason.IMAGE_INVALID, Reason.PARAMS_INVALID),
    *(Reason.CONTENT_UNSUPPORTED, Reason.INPUT_TOO_LONG),
]


@pytest.mark.parametrize(
    ("reason", "code"),
    [*((reason, "invalid_audio") for reason in THEIRS), (Reason.INFERENCE_FAILED, "processing_error")],
)
def test_failed_unit_fails_its_utterance_once(begun: Talk, reason: Reason, code: str) -> None:
    begun.client(append(), append())
    assert codes(begun.finish(1, end=UnitEnd.FAILED, failure=reason)) == [code]
    assert begun.finish(2, end=UnitEnd.FAILED, failure=reason) == []
    assert begun.cancelled == [3]
    assert begun.slot == "held"
    assert begun.closed is None


LOST = [
    *(Reason.KV_EXHAUSTED, Reason.UNIT_TIMEOUT, Reason.ENGINE_FATAL, Reason.WORKER_LOST),
    *(Reason.LEASE_REVOKED, Reason.CONFIG_INVALID, Reason.MODE_UNSUPPORTED, *sorted(errors.DEFECTS)),
]


@pytest.mark.parametrize("reason", LOST)
def test_failed_session_fails_the_utterance_and_not_the_socket(begun: Talk, reason: Reason) -> None:
    (error,) = begun.fail(reason)
    assert error["code"] == "processing_error"
    assert "commit again" in error["error"]
    assert begun.closed is None
    assert begun.slot == "none"
    begun.client(COMMIT, append(), FINAL)
    begun.serve()
    assert codes(begun.complete("x")) == ["transcription.delta", "transcription.done"]


@pytest.mark.parametrize("is_lost", [True, False], ids=["failed", "full context"])
def test_lost_session_continues_with_utterance_committed_ahead(begun: Talk, is_lost: bool) -> None:
    begun.client(FINAL, COMMIT, append(), FINAL)
    if is_lost:
        assert codes(begun.fail(Reason.WORKER_LOST)) == ["processing_error"]
    else:
        begun.worker(Piece(1, " good", b""))
        begun.finish(1, end=UnitEnd.CONTEXT_FULL)
        assert begun.left == 1
    assert begun.slot == "wanted"
    begun.serve()
    assert begun.runs[0].begins
    assert codes(begun.complete()) == ["transcription.done"]


def test_model_that_the_worker_does_not_have() -> None:
    talk = Talk(catalogue=None)
    talk.client({"type": "session.update", "model": "whisper-9"}, COMMIT, append())
    talk.grant()
    (error,) = talk.fail(Reason.MODEL_NOT_FOUND)
    assert error["code"] == "model_not_found"
    assert "whisper-9" in error["error"]
    assert talk.slot == "none", "otherwise another one is looked for"


@pytest.mark.parametrize("reason", [Reason.SESSION_LIMIT, Reason.IDLE_TIMEOUT])
def test_worker_timeout_or_session_limit_finishes_utterance(begun: Talk, reason: Reason) -> None:
    begun.finish(1, " good")
    assert codes(begun.fail(reason)) == ["transcription.done", "idle_timeout"]
    assert begun.sent[-2] == done(" good", completion=1)
    assert begun.slot == "none"
    assert begun.client(append(0.5), FINAL) == []
    begun.serve()
    assert begun.runs[0].ends


@pytest.mark.parametrize("signal", [Failed(Reason.WORKER_LOST), GoingAway(20.0)], ids=["lost", "leaves"])
def test_worker_that_goes_between_utterances_is_not_missed(between: Talk, signal: Signal) -> None:
    assert between.worker(signal) == []
    assert between.slot == "none"
    assert between.wait(30.0) == []
    between.client(COMMIT, append())
    between.serve()
    assert between.samples == 32_000


@pytest.mark.parametrize("is_ended", [False, True])
def test_full_context_finishes_utterance_with_its_text(begun: Talk, is_ended: bool) -> None:
    if is_ended:
        begun.client(FINAL)
    told = begun.worker(Piece(1, " good", b"")) + begun.finish(1, end=UnitEnd.CONTEXT_FULL, sampled=7)
    assert codes(told) == ["transcription.delta", "transcription.done", "context_full"]
    assert told[1] == done(" good", completion=7)
    assert begun.slot == "none", "the worker ends its session with it"
    begun.client(append(0.5), FINAL)
    assert begun.slot == ("wanted" if is_ended else "none"), "READY or SKIPPING"


def test_worker_that_leaves_finishes_the_utterance_and_gets_no_other(begun: Talk) -> None:
    begun.worker(GoingAway(20.0))
    begun.client(append(), FINAL, COMMIT, append(), FINAL)
    assert codes(begun.complete("x")) == ["transcription.delta", "transcription.done"]
    begun.wait()
    assert (begun.slot, begun.left) == ("wanted", 1)
    begun.serve()
    begun.wait(25.0)
    assert begun.closed is None
    assert codes(begun.complete("y")) == ["transcription.delta", "transcription.done"]


@pytest.mark.parametrize("is_early", [False, True])
def test_utterance_longer_than_its_worker_closes_without_an_event(begun: Talk, is_early: bool) -> None:
    begun.worker(GoingAway(20.0))
    begun.wait(19.9)
    assert begun.closed is None
    assert (begun.fail(Reason.DRAINING) if is_early else begun.wait(0.1)) == []
    assert begun.close_code == 1012


@pytest.mark.parametrize("is_busy", [False, True])
def test_shutdown_closes_without_an_event(talk: Talk, is_busy: bool) -> None:
    if is_busy:
        talk.begin()
    assert talk.dialect.is_waiting is not is_busy
    assert talk.do(talk.dialect.shut_down()) == []
    assert talk.close_code == 1012
    assert talk.client(UPDATE, COMMIT) == []
    assert talk.do(talk.dialect.shut_down()) == []
    assert talk.dialect.deadline is None


@pytest.mark.parametrize(
    ("verdict", "code", "close"),
    [
        (errors.KEY_WITHDRAWN, "unauthorized", 3000),
        (VERDICTS[Reason.WORKER_LOST], "processing_error", 1011),
        (None, "slow_consumer", 1008),
    ],
)
def test_session_ended_by_server_reports_reason_once(
    begun: Talk, verdict: Verdict | None, code: str, close: int
) -> None:
    told = begun.do(begun.dialect.ended(verdict) if verdict else begun.dialect.slow_consumer())
    assert codes(told) == [code]
    assert begun.close_code == close
    assert begun.do(begun.dialect.slow_consumer()) == []
