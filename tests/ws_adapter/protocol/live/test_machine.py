"""A Live session: sound in real time in both directions, whatever the model and the client do."""

import base64
import json
from itertools import pairwise
from typing import Any

import pytest

from antiphon.contract import Reason
from tests.support.schemas import Event
from tests.ws_adapter.support.conversation import ready_signal
from tests.ws_adapter.support.live_conversation import AUDIO, LiveConversation, append, sound, start, told
from ws_adapter.protocol.core.answer import Outcome
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.core.signals import GoingAway, TextPurpose, UnitEnd
from ws_adapter.protocol.live.conversation import MOST_SILENCE
from ws_adapter.protocol.live.events import UNSERVED
from ws_adapter.protocol.live.machine import DRAIN_S, FULL_INPUT_S
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import CloseCode

SECOND = 48_000
LISTEN, CHUNK, TURN = UnitEnd.LISTEN, UnitEnd.CHUNK, UnitEnd.TURN


def live(**options: object) -> LiveConversation:
    """A session that has begun."""
    conversation = LiveConversation(**options)  # type: ignore[arg-type]
    conversation.begin()
    return conversation


@pytest.fixture
def session() -> LiveConversation:
    return live()


def words(events: list[Event]) -> str:
    """All that was told as said by the model."""
    return "".join(event["delta"] for event in events if "transcript" in event["type"])


def test_model_speech_is_sent_as_audio_and_aligned_transcript(session: LiveConversation) -> None:
    session.talk((LISTEN, ""), (CHUNK, "Seven"), (TURN, " apples."), (LISTEN, ""), (LISTEN, ""))

    told_words = [event for event in session.sent if "transcript" in event["type"]]
    assert words(session.sent) == "Seven apples."
    assert told_words[-1]["end_ms"] - told_words[0]["start_ms"] == 2000
    assert all(one["end_ms"] == next["start_ms"] for one, next in pairwise(told_words))
    heard = sound(session.sent)
    begins = told_words[0]["start_ms"] * SECOND // 1000
    assert any(heard[begins : begins + 10])
    assert not any(heard[:begins])
    assert 2 * SECOND - 10 < len(heard.strip(b"\0")) <= 2 * SECOND
    behind = session.sent[session.sent.index(told_words[0]) + 1]
    assert behind["type"] == AUDIO
    assert any(base64.b64decode(behind["delta"]))


def test_usage_reports_context_usage_ratio(session: LiveConversation) -> None:
    session.talk(*[(LISTEN, "")] * 10)
    accounts = [event for event in session.sent if event["type"] == "session.usage.updated"]
    assert [account["usage"]["seconds"] for account in accounts] == [5.0, 10.0]
    assert accounts[0]["context_window"]["usage_ratio"] == pytest.approx(819 / 8192)


def test_the_stream_stands_still_while_the_client_does_not_read(session: LiveConversation) -> None:
    session.do(session.dialect.congested(True, session.now))
    assert session.wait(30.0) == []
    session.do(session.dialect.congested(False, session.now))
    assert len(sound(session.wait(1.0))) < 3 * SECOND


def test_the_model_stops_when_it_listens_in_the_middle_of_its_turn(session: LiveConversation) -> None:
    """At most the slice in flight and the lead of the stream are heard of what it had said."""
    session.talk((CHUNK, "Once upon a time"))
    session.client(append(1.0))
    session.finish(LISTEN)
    assert not any(sound(session.wait(5.0)))


def test_speech_over_an_answer_ends_it_and_cancels_its_next_unit(session: LiveConversation) -> None:
    session.talk((CHUNK, "Once upon a time"))
    session.client(append(1.0))
    assert len(session.runs) == 2
    for _ in range(5):
        session.client(append(0.1, 0.3))
    assert not any(sound(session.wait(1.0)))
    session.finish(CHUNK, " there was")
    assert session.cancelled == [2]
    session.talk((LISTEN, ""), level=0.3)
    assert [run.force_listen for run in session.runs] == [False, False, True]
    assert "there was" not in json.dumps(session.sent)


def test_speech_without_interrupts_on_speech_stops_no_answer() -> None:
    session = live(interrupts_on_speech=False)
    session.talk((CHUNK, "Once upon a time"))
    for _ in range(10):
        session.client(append(0.1, 0.3))
    session.finish(CHUNK, " there was")
    assert any(sound(session.wait(1.0)))
    assert not any(run.force_listen for run in session.runs)


def test_a_second_of_small_pieces_is_one_unit(session: LiveConversation) -> None:
    for _ in range(50):
        session.client(append(0.02, 0.25))
    assert len(session.runs) <= 1
    session.client(append(0.1, 0.25))
    assert [len(run.audio) for run in session.runs] == [64_000]


def test_a_muted_session_hears_silence_and_time_goes_on(session: LiveConversation) -> None:
    muted = session.client({"type": "session.input_audio.mute", "event_id": "m"})
    for _ in range(12):
        session.client(append(0.1, 0.5))
    assert told(muted) == ["session.input_audio.muted"]
    assert muted[0]["client_event_id"] == "m"
    assert not any(session.runs[0].audio)

    assert told(session.client({"type": "session.input_audio.unmute"})) == ["session.input_audio.unmuted"]
    for _ in range(20):
        session.client(append(0.1, 0.5))
    assert any(session.runs[-1].audio)


def test_the_last_piece_is_heard_when_no_more_comes(session: LiveConversation) -> None:
    session.client(append(0.35, 0.5))
    session.wait(4.0)
    heard = b"".join(run.audio for run in session.runs)
    assert abs(sum(1 for at in range(0, len(heard), 4) if any(heard[at : at + 4])) - 5_600) < 600


@pytest.mark.parametrize(
    ("audio", "code"),
    [
        (None, "missing_required_parameter"),
        ("", "missing_required_parameter"),
        ("?", "invalid_value"),
        ("A" * 20_000_000, "invalid_value"),
    ],
    ids=["none", "empty", "no base64", "too long"],
)
def test_audio_that_cannot_be_heard_is_refused_and_changes_nothing(audio: str | None, code: str) -> None:
    session = live()
    (error,) = session.client({"type": "session.input_audio.append", "event_id": "a", "audio": audio})
    assert told([error]) == [f"error:{code}"]
    assert error["error"]["param"] == "audio"
    assert error["client_event_id"] == "a"
    session.client(append(1.1))
    assert len(session.runs) == 1


def test_long_audio_is_read_beside_the_loop(session: LiveConversation) -> None:
    session.client(append(30.0))
    assert sum(len(run.audio) for run in session.runs) > 0
    assert session.dialect.held_bytes > 25 * 64_000


def test_input_that_is_not_to_be_decoded_takes_its_time_all_the_same(session: LiveConversation) -> None:
    frame = json.dumps(append(2.0)).encode()
    session.do(session.dialect.text_frame(frame, session.now, drops_input=True))
    assert session.runs == []
    session.talk((LISTEN, ""))
    assert len(session.runs) == 1


@pytest.mark.parametrize("name", sorted(UNSERVED))
def test_unsupported_event_is_rejected_with_its_name(name: str) -> None:
    event = {"type": name, "event_id": "x", "content": "Well.", "delegation_id": None}
    (error,) = live().client(event)
    assert told([error]) == ["error:unsupported"]
    assert error["error"]["param"] == "type"
    assert error["client_event_id"] == "x"
    assert UNSERVED[name] in error["error"]["message"]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"not json", "invalid_json"),
        (b"[]", "invalid_value"),
        (b'{"type":"session.dance"}', "invalid_value"),
        (b'{"event_id":"e"}', "missing_required_parameter"),
        (b'{"type":"session.close","why":1}', "unknown_parameter"),
        (b'{"type":"session.close","event_id":7}', "invalid_value"),
    ],
)
def test_a_frame_that_is_no_event_costs_an_error_alone(frame: bytes, code: str) -> None:
    session = live()
    assert told(session.client(frame)) == [f"error:{code}"]
    assert session.closed is None


def test_delegation_can_be_changed_and_nothing_else(session: LiveConversation) -> None:
    delegation = {"type": "client", "acknowledgement_delay_ms": 5}
    updated, info = session.client({"type": "session.update", "session": {"delegation": delegation}})
    (refused,) = session.client({"type": "session.update", "session": {"instructions": "Shout."}})
    (missing,) = session.client({"type": "session.update"})
    assert updated["session"]["delegation"] == delegation
    assert (info["type"], info["code"]) == ("info", "delegation_unused")
    assert told([refused, missing]) == ["error:unknown_parameter", "error:missing_required_parameter"]


def test_a_slot_is_taken_at_the_start_and_not_before() -> None:
    session = LiveConversation()
    assert session.wait(600.0) == []
    assert not session.has_slot

    session.client(start())
    queued = session.do(session.dialect.queued(Place(2, 12.4, "t", 3, False)))
    session.grant()
    assert session.has_slot
    assert told(queued) == ["info"]
    assert "place 2 of 3, about 12 s" in queued[0]["message"]
    assert session.dialect.is_waiting
    assert told(session.worker(ready_signal())) == ["session.started"]
    assert not session.dialect.is_waiting


def test_a_close_before_the_start_closes() -> None:
    session = LiveConversation()
    session.client({"type": "session.close"})
    assert session.close_code == CloseCode.NORMAL


def test_settings_that_the_worker_refuses_end_the_connection() -> None:
    session = LiveConversation(catalogue=None)
    session.client(start(model="unknown"))
    session.grant()
    (error,) = session.fail(Reason.MODEL_NOT_FOUND)
    assert told([error]) == ["error:invalid_value"]
    assert error["client_event_id"] == "start"
    assert session.close_code == CloseCode.POLICY_VIOLATION


def test_closing_session_finishes_its_current_speech(session: LiveConversation) -> None:
    session.talk((LISTEN, ""), (CHUNK, "Good"))
    session.client(append(1.1))
    assert session.client({"type": "session.close"}) == []
    session.finish(TURN, " bye")
    rest = session.wait(5.0)
    assert told(rest)[-2:] == ["session.usage.updated", "session.closed"]
    assert rest[-1]["reason"] == "close_requested"
    assert rest[-1]["usage"]["seconds"] == 3.0
    assert words(rest).endswith(" bye")
    assert session.close_code == CloseCode.NORMAL


def test_a_worker_that_says_no_more_does_not_hold_up_the_end(session: LiveConversation) -> None:
    """The session ignores events after the close: a client cannot know when it has arrived."""
    session.client(append(1.1))
    session.client({"type": "session.close"})
    for event in (append(1.0), {"type": "session.input_audio.mute"}, {"type": "session.close"}):
        assert session.client(event) == []
    assert len(session.runs) == 1
    assert told(session.wait(DRAIN_S + 0.1))[-1] == "session.closed"


STREAM = (AUDIO, "session.output_transcript.delta")


def test_words_leave_no_gap_in_which_a_client_ends_the_turn(session: LiveConversation) -> None:
    session.talk((CHUNK, " Hello"), (CHUNK, " there, what"), (TURN, " a day."), (LISTEN, ""))
    steps = "".join("w" if "transcript" in e["type"] else "s" for e in session.sent if e["type"] in STREAM)
    gaps = [len(slices) for slices in steps.split("w")[1:-1]]
    assert max(gaps) <= 3  # slices of 200 ms; Pipecat waits for 800 ms


def test_muted_client_that_sends_nothing_hears_the_answer_to_its_end(session: LiveConversation) -> None:
    session.talk((LISTEN, ""), (CHUNK, "One"))
    session.client({"type": "session.input_audio.mute"})
    ran = len(session.runs)
    for end, text in ((CHUNK, " two"), (TURN, " three")):
        while len(session.runs) == session.finished:
            session.wait(0.25)
        session.finish(end, text)
    rest = session.wait(8.0)

    assert len(session.runs) >= ran + 2
    assert not any(any(run.audio) for run in session.runs[ran:])
    assert any(sound(rest))


def test_unmuted_client_that_sends_nothing_is_fed_no_silence(session: LiveConversation) -> None:
    session.client({"type": "session.input_audio.mute"})
    session.wait(3.0)
    session.client({"type": "session.input_audio.unmute"})
    session.wait(0.0)
    ran = len(session.runs) + session.dialect.held_bytes // 64_000
    session.wait(5.0)
    assert len(session.runs) + session.dialect.held_bytes // 64_000 <= ran


def greeting() -> LiveConversation:
    """A session whose model was asked to speak first."""
    session = LiveConversation()
    session.begin(reads=frozenset({TextPurpose.COMMENTARY}))
    session.client({"type": "session.commentary.append", "content": "Greet the user.", "delegation_id": None})
    return session


def test_commentary_before_any_sound_is_read_at_once() -> None:
    session = greeting()
    session.wait(0.1)
    (text,) = session.runs[0].texts
    told_of = session.finish(CHUNK, "Hello")
    session.wait(1.0)
    session.finish(TURN, " there")
    ran = len(session.runs)
    session.wait(6.0)
    assert (text.purpose, text.text) == (TextPurpose.COMMENTARY, "Greet the user.")
    assert "session.commentary.appended" in told(told_of)
    assert len(session.runs) == ran


def test_model_that_never_speaks_of_commentary_is_fed_silence_for_a_bounded_time() -> None:
    session = greeting()
    for _ in range(40):
        session.wait(0.5)
        session.listen_through()
    assert len(session.runs) == MOST_SILENCE


def test_upload_far_ahead_of_the_clock_loses_no_second(session: LiveConversation) -> None:
    for _ in range(600):
        if not session.is_held:
            session.client(append(0.1, 0.5))
        session.wait(0.01)
        if session.is_held:
            session.finish(LISTEN)
    session.listen_through()
    assert len(session.runs) >= 20
    assert not any(answer.outcome is Outcome.DROPPED for answer in session.answers)


def test_microphone_that_a_network_held_up_still_interrupts(session: LiveConversation) -> None:
    session.talk((LISTEN, ""))
    session.wait(3.0)
    for _ in range(30):
        session.client(append(0.1))
    session.listen_through()
    session.talk((CHUNK, "One two three"), (CHUNK, " four"))
    for _ in range(12):
        session.client(append(0.1, 0.5))
        session.wait(0.1)
    assert any(run.force_listen for run in session.runs)


def test_client_far_ahead_is_not_read_and_bounded(session: LiveConversation) -> None:
    for _ in range(100):
        session.client(append(1.0, 0.5))
        if session.is_held:
            break
    assert session.is_held
    assert session.dialect.held_bytes <= (FULL_INPUT_S + 4) * 64_000
    while session.is_held:
        session.finish(LISTEN)
    assert session.dialect.held_bytes <= (FULL_INPUT_S / 2 + 4) * 64_000


def test_late_second_of_a_microphone_still_gives_way_to_newer_ones(session: LiveConversation) -> None:
    for _ in range(12):
        session.client(append(1.0, 0.5))
        session.wait(1.0)
    session.finish(LISTEN)
    assert any(answer.outcome is Outcome.DROPPED for answer in session.answers) or len(session.runs) < 12


@pytest.mark.parametrize(
    ("end", "error", "reason", "close"),
    [
        (lambda session: session.wait(4.1), [], "expired", 1000),
        (lambda session: session.fail(Reason.WORKER_LOST), ["inference_failed"], "connection_lost", 1011),
        (
            lambda session: session.worker(GoingAway(3.0)) + session.wait(3.1),
            ["service_unavailable"],
            "connection_lost",
            1012,
        ),
    ],
    ids=["time limit", "lost worker", "worker that leaves"],
)
def test_session_ends_with_an_account_and_a_reason(
    end: Any, error: list[str], reason: str, close: int
) -> None:
    session = live(session_limit_s=4.0)
    events = end(session)
    names = [*(f"error:{code}" for code in error), "session.usage.updated", "session.closed"]
    assert told(events)[-len(names) :] == names
    assert (events[-1]["reason"], session.close_code) == (reason, close)


def test_full_context_error_follows_last_words(session: LiveConversation) -> None:
    session.talk((CHUNK, "Seven"))
    session.client(append(1.1))
    session.finish(UnitEnd.CONTEXT_FULL, " apples", context_tokens=8192)
    rest = session.wait(5.0)
    assert words(rest).endswith(" apples")
    assert told(rest)[-3:] == ["error:context_window_full", "session.usage.updated", "session.closed"]


def test_failed_unit_sends_error_and_session_continues(session: LiveConversation) -> None:
    session.client(append(1.1))
    failed = session.finish(UnitEnd.FAILED, failure=Reason.INFERENCE_FAILED)
    assert told(failed) == ["error:inference_failed"]
    assert failed[0]["error"]["type"] == "server_error"
    assert session.closed is None


@pytest.mark.parametrize(
    ("verdict", "code", "close"),
    [
        (errors.KEY_WITHDRAWN, "invalid_api_key", 3000),
        (errors.QUEUE_TIMEOUT, "queue_timeout", 1013),
        (errors.OVERLOADED, "service_unavailable", 1013),
        (errors.ADDRESS_FLOOD, "rate_limit_exceeded", 1008),
        (errors.NOT_STARTED, "session_not_started", 1000),
    ],
)
def test_each_end_has_its_error(verdict: errors.Verdict, code: str, close: int) -> None:
    session = LiveConversation()
    assert told(session.do(session.dialect.ended(verdict))) == [f"error:{code}"]
    assert session.close_code == close
    assert session.dialect.held_bytes == 0
