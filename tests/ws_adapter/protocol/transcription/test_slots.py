"""Transcription's slot, its clocks, and what each failure means for an utterance."""

import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.conversation import ready_signal
from tests.ws_adapter.support.transcription_conversation import (
    COMMIT,
    EMPTY,
    FINAL,
    UPDATE,
    TranscriptionConversation,
    append,
    codes,
    delta,
    done,
)
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.core.signals import GoingAway, Piece, UnitEnd
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import VERDICTS, Verdict


def between_utterances() -> TranscriptionConversation:
    """One was heard, and its slot is kept."""
    talk = TranscriptionConversation()
    talk.begin()
    talk.client(FINAL)
    talk.complete()
    return talk


def test_slot_is_taken_at_the_first_effective_commit_silently() -> None:
    talk = TranscriptionConversation()
    assert talk.client(COMMIT)[0]["type"] == "error"
    talk.client(UPDATE, FINAL, append())
    assert talk.taken == 0

    assert talk.client(COMMIT) == []
    assert talk.do(talk.dialect.queued(Place(1, 30.0, "ticket_1", 1, False))) == []
    assert talk.serve() == []

    assert talk.taken == 1


def test_slot_is_kept_for_the_next_utterance() -> None:
    talk = between_utterances()
    talk.wait(29.9)

    talk.client(COMMIT, append(), FINAL)
    talk.wait()
    talk.complete()

    assert (talk.taken, talk.left, talk.slot) == (1, 0, "held")
    assert len(talk.setups) == 1
    assert [run.begins for run in talk.runs] == [True, False, True]


def test_slot_is_kept_for_half_a_minute() -> None:
    talk = between_utterances()

    talk.wait(29.999)
    assert talk.slot == "held"
    assert talk.wait(0.001) == []

    assert talk.slot == "none"
    assert talk.dialect.deadline is None
    talk.client(COMMIT, append(), FINAL)
    talk.serve()
    assert talk.runs[0].unit == 1


@pytest.mark.parametrize("waited", [0.0, 10.0])
def test_slot_is_not_kept_while_others_wait(waited: float) -> None:
    talk = between_utterances()
    talk.wait(waited)
    assert talk.slot == "held"

    talk.wait(0.1 * waited, others_wait=True)

    assert talk.slot == "none"


def test_who_has_more_to_say_waits_behind_the_others() -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.client(FINAL, COMMIT, append(), FINAL)
    talk.complete()

    talk.wait(0.0, others_wait=True)

    assert (talk.slot, talk.taken, talk.left) == ("wanted", 2, 1)
    talk.serve()
    assert codes(talk.complete("x")) == ["transcription.delta", "transcription.done"]


def test_utterance_keeps_its_slot_while_others_wait() -> None:
    talk = TranscriptionConversation()
    talk.begin()

    talk.wait(20.0, others_wait=True)

    assert talk.slot == "held"


def test_slot_is_kept_after_a_failure_too() -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.finish(1, end=UnitEnd.FAILED)

    talk.wait(29.0)
    assert talk.slot == "held"
    talk.wait(1.0)
    assert talk.slot == "none"


def test_slot_that_comes_while_the_worker_is_told_serves_the_next_utterance() -> None:
    talk = TranscriptionConversation()
    talk.client(UPDATE, COMMIT)
    talk.grant()

    assert talk.client(FINAL) == [EMPTY]
    talk.client(COMMIT, append())
    talk.wait()
    talk.worker(ready_signal())

    assert talk.samples == 16_000
    assert talk.taken == 1


def test_worker_lost_before_it_was_ready_is_replaced() -> None:
    talk = TranscriptionConversation()
    talk.client(UPDATE, COMMIT, append())
    talk.grant()

    talk.dialect.displaced()
    talk.slot = "wanted"
    talk.serve()

    assert len(talk.setups) == 2
    assert talk.samples == 16_000


def test_slot_that_is_replaced_when_nothing_is_left_to_say_is_given_back() -> None:
    talk = TranscriptionConversation()
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


def test_open_utterance_without_audio_is_finished_after_half_a_minute() -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.finish(1, " good", sampled=3)

    assert talk.wait(29.999) == []
    assert talk.wait(0.001) == []
    assert talk.runs[-1].ends
    talk.finish(2, " morning", UnitEnd.TURN, sampled=2)

    assert codes(talk.sent[-3:]) == ["transcription.delta", "transcription.done", "idle_timeout"]
    assert talk.sent[-2] == done(" good morning", completion=5)
    assert talk.client(append(), FINAL) == [], "READY"
    talk.wait()
    assert codes(talk.complete()) == ["transcription.done"]


def test_idle_utterance_without_any_audio_is_empty() -> None:
    talk = TranscriptionConversation()
    talk.begin(0.0)

    assert codes(talk.wait(30.0)) == ["transcription.done", "idle_timeout"]

    assert talk.heard == []
    assert talk.sent[-2] == EMPTY


@pytest.mark.parametrize("event", [append(0.01), FINAL])
def test_append_and_effective_commit_count(event: dict[str, object]) -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.wait(29.0)

    talk.client(event)

    assert talk.wait(29.0) == []
    assert "idle_timeout" not in codes(talk.complete())


@pytest.mark.parametrize("event", [COMMIT, UPDATE, {"type": "x"}, {**append(), "audio": "?"}])
def test_nothing_else_counts(event: dict[str, object]) -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.wait(29.0)

    talk.client(event)
    talk.wait(1.0)

    assert talk.runs[-1].ends


def test_waiting_for_a_slot_is_not_idleness() -> None:
    talk = TranscriptionConversation()
    talk.client(UPDATE, COMMIT, append())

    assert talk.wait(600.0) == []
    talk.serve()

    assert talk.wait(29.9) == []
    assert not any(run.ends for run in talk.runs)


def test_utterance_that_has_its_final_commit_is_not_idle() -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.client(FINAL)

    assert talk.wait(120.0) == []
    assert codes(talk.complete()) == ["transcription.done"]


def test_long_utterance_has_no_limit() -> None:
    talk = TranscriptionConversation()
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
    (VERDICTS[Reason.QUEUE_FULL], "queue_full"),
    (VERDICTS[Reason.NO_FREE_SLOT], "queue_full"),
    (errors.QUEUE_TIMEOUT, "queue_full"),
    (errors.QUEUE_CANCELLED, "queue_full"),
    (errors.NO_WORKER, "service_unavailable"),
    (VERDICTS[Reason.LOADING], "service_unavailable"),
    (VERDICTS[Reason.DRAINING], "service_unavailable"),
]


@pytest.mark.parametrize(("verdict", "code"), UNSERVED)
def test_without_a_slot_the_audio_is_kept_and_the_client_commits_again(verdict: Verdict, code: str) -> None:
    talk = TranscriptionConversation()
    talk.client(UPDATE, append(0.5), COMMIT, append(0.5))

    talk.slot = "none"
    (error,) = talk.do(talk.dialect.refused(verdict))

    assert error["code"] == code
    assert "commit again" in error["error"]
    assert talk.closed is None
    assert talk.client(append(0.5), COMMIT) == []
    talk.serve()
    assert talk.samples == 24_000


def test_without_a_slot_a_whole_utterance_can_be_committed_by_its_final_again() -> None:
    talk = TranscriptionConversation()
    talk.client(UPDATE, append(), FINAL)
    talk.slot = "none"
    talk.do(talk.dialect.refused(VERDICTS[Reason.QUEUE_FULL]))

    assert talk.client(FINAL) == []
    talk.serve()

    assert talk.complete("x") == [delta("x"), done("x", completion=1)]


def test_without_a_slot_what_was_committed_ahead_tries_in_turn() -> None:
    talk = TranscriptionConversation()
    talk.client(UPDATE, COMMIT, append(level=1), FINAL, COMMIT, append(level=2), FINAL, append(level=3))

    for _ in range(2):
        talk.slot = "none"
        assert codes(talk.do(talk.dialect.refused(VERDICTS[Reason.QUEUE_FULL]))) == ["queue_full"]
    assert (talk.slot, talk.taken) == ("none", 2)

    talk.client(FINAL)
    talk.serve()
    assert talk.levels == [1, 2, 3]


def test_worker_that_cannot_be_reached_fails_the_utterance() -> None:
    talk = TranscriptionConversation()
    talk.client(UPDATE, COMMIT, append())
    talk.slot = "none"

    assert codes(talk.do(talk.dialect.refused(errors.CONNECT_FAILED))) == ["processing_error"]

    assert talk.client(append(), FINAL) == [], "SKIPPING"
    assert talk.dialect.held_bytes == 0
    assert talk.slot == "none"


THEIRS = [
    Reason.AUDIO_INVALID,
    Reason.IMAGE_INVALID,
    Reason.PARAMS_INVALID,
    Reason.CONTENT_UNSUPPORTED,
    Reason.INPUT_TOO_LONG,
]


@pytest.mark.parametrize(
    ("reason", "code"),
    [*((reason, "invalid_audio") for reason in THEIRS), (Reason.INFERENCE_FAILED, "processing_error")],
)
def test_failed_unit_fails_its_utterance_once(reason: Reason, code: str) -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.client(append(), append())

    assert codes(talk.finish(1, end=UnitEnd.FAILED, failure=reason)) == [code]
    assert talk.finish(2, end=UnitEnd.FAILED, failure=reason) == []

    assert talk.cancelled == [3]
    assert talk.slot == "held"
    assert talk.closed is None


LOST = [
    Reason.KV_EXHAUSTED,
    Reason.UNIT_TIMEOUT,
    Reason.ENGINE_FATAL,
    Reason.WORKER_LOST,
    Reason.LEASE_REVOKED,
    Reason.CONFIG_INVALID,
    Reason.MODE_UNSUPPORTED,
    *sorted(errors.DEFECTS),
]


@pytest.mark.parametrize("reason", LOST)
def test_failed_session_fails_the_utterance_and_not_the_socket(reason: Reason) -> None:
    talk = TranscriptionConversation()
    talk.begin()

    (error,) = talk.fail(reason)

    assert error["code"] == "processing_error"
    assert "commit again" in error["error"]
    assert talk.closed is None
    assert talk.slot == "none"
    talk.client(COMMIT, append(), FINAL)
    talk.serve()
    assert codes(talk.complete("x")) == ["transcription.delta", "transcription.done"]


def test_failed_session_goes_on_with_what_is_committed_ahead() -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.client(FINAL, COMMIT, append(), FINAL)

    assert codes(talk.fail(Reason.WORKER_LOST)) == ["processing_error"]

    assert talk.slot == "wanted"
    talk.serve()
    assert codes(talk.complete()) == ["transcription.done"]


def test_model_that_the_worker_does_not_have() -> None:
    talk = TranscriptionConversation(catalogue=None)
    talk.client({"type": "session.update", "model": "whisper-9"}, COMMIT, append())
    talk.grant()

    (error,) = talk.fail(Reason.MODEL_NOT_FOUND)

    assert error["code"] == "model_not_found"
    assert "whisper-9" in error["error"]
    assert talk.slot == "none", "otherwise another one is looked for"


@pytest.mark.parametrize("reason", [Reason.SESSION_LIMIT, Reason.IDLE_TIMEOUT])
def test_worker_whose_patience_ends_finishes_the_utterance(reason: Reason) -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.finish(1, " good")

    assert codes(talk.fail(reason)) == ["transcription.done", "idle_timeout"]

    assert talk.sent[-2] == done(" good", completion=1)
    assert talk.slot == "none"
    assert talk.client(append(0.5), FINAL) == []
    talk.serve()
    assert talk.runs[0].ends


def test_worker_that_is_lost_between_utterances_is_not_missed() -> None:
    talk = between_utterances()

    assert talk.fail(Reason.WORKER_LOST) == []

    assert talk.slot == "none"
    talk.client(COMMIT, append())
    talk.serve()
    assert talk.samples == 32_000


@pytest.mark.parametrize("is_ended", [False, True])
def test_full_context_ends_the_utterance_with_what_was_heard(is_ended: bool) -> None:
    talk = TranscriptionConversation()
    talk.begin()
    if is_ended:
        talk.client(FINAL)

    told = talk.worker(Piece(1, " good", b"")) + talk.finish(1, end=UnitEnd.CONTEXT_FULL, sampled=7)

    assert codes(told) == ["transcription.delta", "transcription.done", "context_full"]
    assert told[1] == done(" good", completion=7)
    assert talk.slot == "none", "the worker ends its session with it"
    talk.client(append(0.5), FINAL)
    assert talk.slot == ("wanted" if is_ended else "none"), "READY or SKIPPING"


def test_full_context_goes_on_with_what_is_committed_ahead() -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.client(FINAL, COMMIT, append())

    talk.worker(Piece(1, " good", b""))
    talk.finish(1, end=UnitEnd.CONTEXT_FULL)

    assert (talk.slot, talk.left) == ("wanted", 1)
    talk.serve()
    assert talk.runs[0].begins


def test_worker_that_leaves_finishes_the_utterance_and_gets_no_other() -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.worker(GoingAway(20.0))
    talk.client(append(), FINAL, COMMIT, append(), FINAL)
    assert codes(talk.complete("x")) == ["transcription.delta", "transcription.done"]

    talk.wait()

    assert (talk.slot, talk.left) == ("wanted", 1)
    talk.serve()
    talk.wait(25.0)
    assert talk.closed is None
    assert codes(talk.complete("y")) == ["transcription.delta", "transcription.done"]


def test_worker_that_leaves_is_let_go_between_utterances() -> None:
    talk = between_utterances()

    assert talk.worker(GoingAway(20.0)) == []

    assert talk.slot == "none"
    assert talk.wait(30.0) == []


@pytest.mark.parametrize("is_early", [False, True])
def test_utterance_that_outlasts_a_leaving_worker_closes_without_an_event(is_early: bool) -> None:
    talk = TranscriptionConversation()
    talk.begin()
    talk.worker(GoingAway(20.0))

    talk.wait(19.9)
    assert talk.closed is None
    assert (talk.fail(Reason.DRAINING) if is_early else talk.wait(0.1)) == []

    assert talk.closed is not None
    assert talk.closed.code == 1012


@pytest.mark.parametrize("is_busy", [False, True])
def test_shutdown_closes_without_an_event(is_busy: bool) -> None:
    talk = TranscriptionConversation()
    if is_busy:
        talk.begin()
    assert talk.dialect.is_waiting is not is_busy

    assert talk.do(talk.dialect.shut_down()) == []

    assert talk.closed is not None
    assert talk.closed.code == 1012
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
def test_session_that_the_server_ends_is_told_why_once(
    verdict: Verdict | None, code: str, close: int
) -> None:
    talk = TranscriptionConversation()
    talk.begin()

    told = talk.do(talk.dialect.ended(verdict) if verdict else talk.dialect.slow_consumer())

    assert codes(told) == [code]
    assert talk.closed is not None
    assert talk.closed.code == close
    assert talk.do(talk.dialect.slow_consumer()) == []


def test_nothing_follows_a_disconnect() -> None:
    talk = TranscriptionConversation()
    talk.begin()

    talk.dialect.disconnected()

    assert talk.finish(1, " late") == []
    assert talk.client(FINAL) == []
    dialect, now = talk.dialect, talk.now
    for actions in (
        dialect.binary_frame(now),
        dialect.congested(False, now),
        dialect.withdrawn([]),
        dialect.granted(now),
        dialect.refused(errors.NO_WORKER),
        dialect.tick(now + 60, others_wait=True),
        dialect.slow_consumer(),
        dialect.ended(errors.KEY_WITHDRAWN),
        dialect.shut_down(),
    ):
        assert actions == []
    assert dialect.deadline is None
