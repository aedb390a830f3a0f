"""Transcription in OpenAI's events: items by commit and by voice, their words, and what goes wrong."""

import base64
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.contract import Reason
from tests.support.long import examples
from tests.support.schemas import Event
from tests.support.states import names_in, read_states
from tests.ws_adapter.support.realtime_ga_conversation import append
from tests.ws_adapter.support.transcription_ga_conversation import TranscriptionGaConversation as Talk
from tests.ws_adapter.support.transcription_ga_conversation import told, update
from ws_adapter.protocol.core.config import TranscriptionSetup
from ws_adapter.protocol.core.signals import UnitEnd
from ws_adapter.protocol.wire import errors

COMMIT: Final[Event] = {"type": "input_audio_buffer.commit"}
CLEAR: Final[Event] = {"type": "input_audio_buffer.clear"}
ITEM: Final = ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"]
VAD: Final = {"type": "server_vad"}


def begun(detection: Event | None = None, **limits: Any) -> Talk:
    session = Talk(**limits)
    assert told(session.client(update(detection))) == ["session.updated"]
    return session


@pytest.fixture
def session() -> Talk:
    return begun()


def changed(**session: Any) -> Event:
    return {"type": "session.update", "session": {"type": "transcription", **session}}


def hearing(**heard: Any) -> Event:
    return changed(audio={"input": heard})


def committed(session: Talk, seconds: float = 0.5) -> list[Event]:
    session.client(append(seconds))
    return session.client(COMMIT)


def heard(session: Talk) -> float:
    """Seconds of sound at the worker."""
    return sum(len(run.audio) for run in session.runs) / 4 / 16_000


def test_the_first_event_has_the_forms_of_both_protocols() -> None:
    (created,) = Talk().sent
    assert (created["type"], created["created"]) == ("session.created", 1_800_000_000)
    assert created["session"]["id"] == created["id"]
    assert created["session"]["type"] == "transcription"
    heard = created["session"]["audio"]["input"]
    assert (heard["transcription"], heard["noise_reduction"]) == (None, None)
    silence = {"prefix_padding_ms": 300, "silence_duration_ms": 500}
    assert heard["turn_detection"] == {"type": "server_vad", "threshold": 0.5, **silence}


def test_a_session_object_in_the_first_frame_is_openais_and_any_other_frame_vllms() -> None:
    for first in ({**update(), "event_id": "a"}, {"type": "x", "session": {}}):
        session = Talk()
        session.client(first)
        assert told(session.client({"type": "response.create"})) == ["error:None"]
    model = {"type": "session.update", "model": "antiphon-mini"}
    for other in (
        *(
            {**model, "event_id": "a"},
            {**model, "session": {}},
            COMMIT,
            {"type": "session.dance"},
            b"{",
            b"[]",
        ),
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(3200)).decode()},
    ):
        session = Talk()
        session.client(other)
        (refused,) = session.client(update())  # the second frame decides nothing any more
        assert refused["error"] == "Missing required field: model"


def test_committed_audio_becomes_item_and_transcript(session: Talk) -> None:
    answers = committed(session, 1.5)
    session.grant()
    words = session.write(" good", " morning")

    assert told(answers) == ITEM
    item_id = answers[0]["item_id"]
    assert answers[1]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert session.configured[0].setup == TranscriptionSetup("")
    assert [run.begins for run in session.runs] == [True, *[False] * (len(session.runs) - 1)]
    assert session.runs[-1].ends
    assert heard(session) == pytest.approx(1.5, abs=0.01)
    assert told(words) == ["delta", "delta", "completed"]
    assert {event["item_id"] for event in words} == {item_id}
    assert words[-1]["transcript"] == " good morning"
    assert words[-1]["usage"] == {"type": "duration", "seconds": pytest.approx(1.5, abs=0.01)}


def test_items_follow_each_other_and_each_gets_its_words(session: Talk) -> None:
    ids = [committed(session)[0]["item_id"] for _ in range(3)]
    session.grant()
    words = []
    for number in range(3):
        words += session.write(f"word {number}")
        session.do(session.dialect.tick(session.now, others_wait=False))
    previous = [event["previous_item_id"] for event in session.sent if event["type"] == ITEM[0]]
    assert previous == [None, *ids[:2]]
    completed = [event for event in words if told([event]) == ["completed"]]
    assert [(event["item_id"], event["transcript"]) for event in completed] == [
        (item_id, f"word {number}") for number, item_id in enumerate(ids)
    ]


def test_without_a_transcriber_there_are_items_and_no_words(session: Talk) -> None:
    session.client(hearing(transcription=None))
    assert told(committed(session, 40.0)) == ITEM, "large appends are read beside the event loop"
    assert not session.has_slot


def test_less_than_100_ms_is_refused_and_audio_keeps_its_format_once_it_has_come(session: Talk) -> None:
    session.client(append(0.09))
    (refused,) = session.client({**COMMIT, "event_id": "c"})
    assert refused["error"]["code"] == "input_audio_buffer_commit_empty"
    assert "buffer only has 90.00ms" in refused["error"]["message"]
    assert refused["error"]["event_id"] == "c"
    (refused,) = session.client(hearing(format={"type": "audio/pcmu"}))
    assert refused["error"]["param"] == "session.audio.input.format"


def test_audio_over_full_buffer_is_rejected_once_and_cleared_audio_is_dropped(session: Talk) -> None:
    """The attack: whoever never commits would be told so with every piece."""
    for _ in range(4):
        assert session.client(append(30.0, 0.0)) == []
    answers = [told(session.client(append(1.0, 0.0))) for _ in range(100)]
    assert answers[0] == ["error:input_audio_buffer_full"]
    assert not any(answers[1:])
    assert session.dialect.held_bytes < 121 * 64_000
    assert told(session.client(CLEAR)) == ["input_audio_buffer.cleared"]
    assert told(session.client(COMMIT)) == ["error:input_audio_buffer_commit_empty"]
    assert session.client(append(1.0)) == []


def test_vad_reports_speech_and_commits_it() -> None:
    session = begun(VAD)
    for level in (0.0, 0.3, 0.0):
        for _ in range(10):
            session.client(append(0.1, level))
    names = told(session.sent)[2:]
    assert names == ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", *ITEM]
    started, stopped, item = session.sent[2:5]
    assert started["item_id"] == stopped["item_id"] == item["item_id"]
    assert started["audio_start_ms"] == pytest.approx(700, abs=60)
    assert stopped["audio_end_ms"] == pytest.approx(2500, abs=80)
    session.grant()
    session.write("stop")
    assert heard(session) == pytest.approx(1.8, abs=0.1)
    assert told(session.sent[-2:]) == ["delta", "completed"]
    assert session.sent[-1]["item_id"] == started["item_id"]

    for _ in range(10):
        session.client(append(0.1, 0.3))
    assert told(session.sent)[-1] == "input_audio_buffer.speech_started"
    announced = session.sent[-1]["item_id"]
    assert session.client(COMMIT)[0]["item_id"] == announced, "also of a commit while somebody speaks"


def test_a_change_that_cannot_be_changes_nothing(session: Talk) -> None:
    for heard, param in (
        ({"turn_detection": {"type": "semantic_vad"}}, "turn_detection.type"),
        ({"turn_detection": {"type": "server_vad", "threshold": 2}}, "turn_detection.threshold"),
        ({"transcription": {"model": "nobody"}}, "transcription.model"),
        ({"transcription": {"modell": "x"}}, "transcription.modell"),
    ):
        (refused,) = session.client(hearing(**heard))
        assert refused["error"]["param"] == f"session.audio.input.{param}"
    (refused,) = session.client({"type": "session.update", "session": {"type": "realtime"}})
    assert refused["error"]["code"] == "invalid_session_type"
    (updated,) = session.client(changed())
    assert updated["session"] == session.sent[1]["session"]


def test_settings_without_effect_are_listed(session: Talk) -> None:
    transcription = {"model": "whisper-1", "language": "de", "keywords": ["Bern"]}
    audio = {"input": {"transcription": transcription, "noise_reduction": {"type": "near_field"}}}
    nothing = {"input": {"transcription": None, "noise_reduction": None}}
    include = ["item.input_audio_transcription.logprobs"]
    (updated,) = session.client(changed(audio=audio, include=include))
    (plain,) = session.client(changed(audio=nothing, include=None))
    heard = ("transcription.language", "transcription.keywords", "noise_reduction")
    assert updated["session"]["unsupported_fields"] == [*(f"audio.input.{it}" for it in heard), "include"]
    assert "unsupported_fields" not in plain["session"]


def test_the_model_may_be_named_and_silence_is_no_words(session: Talk) -> None:
    session.client(hearing(transcription={"model": "antiphon-mini"}))
    committed(session)
    session.grant()
    (completed,) = session.write()
    assert session.configured[0].setup == TranscriptionSetup("antiphon-mini")
    assert (completed["transcript"], completed["usage"]["type"]) == ("", "duration")


@pytest.mark.parametrize(
    ("done", "code"),
    [
        ({"end": UnitEnd.FAILED, "failure": Reason.INFERENCE_FAILED}, "processing_error"),
        ({"end": UnitEnd.CONTEXT_FULL}, "context_full"),
    ],
)
def test_failed_item_is_reported_and_next_item_is_transcribed(session: Talk, done: Event, code: str) -> None:
    for _ in range(2):
        committed(session)
    session.grant()
    (failed,) = [event for event in session.write(**done) if told([event]) != ["delta"]]
    assert (told([failed]), failed["error"]["code"]) == (["failed"], code)
    session.do(session.dialect.tick(session.now, others_wait=False))
    if session.has_slot and not session.runs[1:]:
        session.grant()
    assert "completed" in told(session.write("next"))


def test_a_lost_worker_costs_the_item_it_had_and_without_a_worker_items_fail() -> None:
    session = begun()
    committed(session)
    session.grant()
    assert told(session.fail(Reason.WORKER_LOST)) == ["failed"]
    session = begun()
    committed(session)
    session.has_slot = False  # as its holder has it
    (failed,) = session.do(session.dialect.refused(errors.QUEUE_TIMEOUT))
    assert (told([failed]), failed["error"]["code"]) == (["failed"], "queue_full")
    assert session.closed is None


def test_held_audio_is_counted_and_close_reasons_follow_protocol(session: Talk) -> None:
    session.client(append(2.0))
    assert session.dialect.held_bytes == pytest.approx(2 * 64_000, rel=0.1)
    session.dialect.disconnected()
    assert session.dialect.held_bytes == 0
    for verdict, reason in (
        (errors.SLOW, "invalid_request_error.slow_consumer"),
        (errors.SERVER_SHUTDOWN, "server_error.server_overloaded"),
    ):
        session = begun()
        session.do(session.dialect.ended(verdict))
        assert session.closed is not None
        assert session.closed.reason == reason


ANYTHING_ELSE: Final = "anything else"
EVENTS: Final[dict[str, Event]] = {
    "session.update": update(),
    "input_audio_buffer.append": append(0.2),
    "input_audio_buffer.commit": COMMIT,
    "input_audio_buffer.clear": CLEAR,
    "response.create": {"type": "response.create"},
    ANYTHING_ELSE: {"type": "session.dance"},
}
WORKER: Final = "the worker writes"


TABLE: Final = {key: names_in(cell) for key, cell in read_states("Realtime for transcription").items()}


def test_the_table_is_whole() -> None:
    assert TABLE.keys() == {(event, state) for event in EVENTS for state in ("empty", "audio waits")}


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from([*EVENTS, WORKER]), max_size=14))
def test_each_event_does_what_the_table_says(steps: list[str]) -> None:
    session, state, items, completed = begun(), "empty", 0, 0

    def write() -> int:
        if session.has_slot and not session.runs:
            session.grant()
        words = told(session.write(" so"))
        session.do(session.dialect.tick(session.now, others_wait=False))
        return words.count("completed")

    for step in steps:
        if step == WORKER:
            completed += write()
            continue
        answers = told(session.client(EVENTS[step]))
        assert [name.removeprefix("error:") for name in answers] == TABLE[step, state]
        if step == "input_audio_buffer.append":
            state = "audio waits"
        elif step in ("input_audio_buffer.commit", "input_audio_buffer.clear"):
            items += state == "audio waits" and step.endswith("commit")
            state = "empty"
    assert completed <= items
    for _ in range(2 * items + 1):
        completed += write()
    assert completed == items
