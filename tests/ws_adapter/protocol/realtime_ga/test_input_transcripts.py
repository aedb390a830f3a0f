"""Transcripts of what the user says: asked for, told, and part of the conversation from then on."""

import numpy as np

from tests.support.schemas import Event
from tests.ws_adapter.support.realtime_ga_conversation import (
    NativeConversation,
    RealtimeGaConversation,
    append,
    told,
    update,
)
from ws_adapter.protocol.core.transcription import (
    InputTranscriptDelta,
    InputTranscriptDone,
    InputTranscriptFailed,
    TranscriptionCode,
)

SPEAKS, SILENT = 0.9, 0.02
ON: Event = {"model": "gpt-4o-mini-transcribe", "language": "en"}
COMMIT: Event = {"type": "input_audio_buffer.commit"}
KIND = "conversation.item.input_audio_transcription"
DONE = InputTranscriptDone("how are you", 1.0)


def manual(transcription: Event | None = ON) -> RealtimeGaConversation:
    """A session whose client commits."""
    session = RealtimeGaConversation()
    session.begin(audio={"input": {"turn_detection": None, "transcription": transcription}})
    return session


def commit(session: RealtimeGaConversation, seconds: float = 1.0) -> str:
    """The user says something; the id of the item."""
    session.client(append(seconds))
    return str(session.client(COMMIT)[0]["item_id"])


def test_transcription_is_off_until_it_is_asked_for() -> None:
    session = manual(None)
    commit(session)
    assert session.transcribing == []
    assert session.sent[-4]["session"]["audio"]["input"]["transcription"] is None


def test_transcription_session_echoes_what_was_asked_for() -> None:
    session = RealtimeGaConversation()
    asked = session.begin(audio={"input": {"turn_detection": None, "transcription": ON}})
    off = session.client(update(audio={"input": {"transcription": None}}))[-1]["session"]
    assert asked["audio"]["input"]["transcription"] == ON
    assert off["audio"]["input"]["transcription"] is None


def test_transcription_committed_item_is_asked_for_with_its_audio() -> None:
    session = manual()
    item_id = commit(session, 2.0)
    (item,) = session.transcribing
    assert item.item_id == item_id
    assert item.model == ""
    assert abs(np.frombuffer(item.audio, "<f4").size - 32_000) < 16


def test_transcription_model_that_is_none_of_openai_is_asked_for_by_name() -> None:
    session = manual({"model": "voxtral"})
    commit(session)
    assert session.transcribing[0].model == "voxtral"


def test_transcription_deltas_and_completed_name_the_item() -> None:
    session = manual()
    item_id = commit(session)

    delta = session.transcribe(InputTranscriptDelta("how are", 0.0, 1.0))
    completed = session.transcribe(DONE)

    assert [(event["type"], event["item_id"], event["content_index"]) for event in delta + completed] == [
        (f"{KIND}.delta", item_id, 0),
        (f"{KIND}.completed", item_id, 0),
    ]
    assert delta[0]["delta"] == "how are"
    assert completed[0]["transcript"] == "how are you"
    assert completed[0]["usage"] == {"type": "duration", "seconds": 1.0}


def test_transcription_completed_is_in_the_retrieved_item() -> None:
    session = manual()
    item_id = commit(session)
    retrieve: Event = {"type": "conversation.item.retrieve", "item_id": item_id}
    assert session.client(retrieve)[0]["item"]["content"][0]["transcript"] is None

    session.transcribe(DONE)
    item = session.client(retrieve)[0]["item"]

    assert item["content"][0]["transcript"] == "how are you"
    assert item["content"][0]["audio"]


def test_transcription_failure_says_why_and_answers_go_on() -> None:
    session = manual()
    item_id = commit(session)

    (failed,) = session.transcribe(InputTranscriptFailed(TranscriptionCode.QUEUE_FULL, "no slot"))

    assert (failed["type"], failed["item_id"]) == (f"{KIND}.failed", item_id)
    assert failed["error"] == {
        "type": "server_error",
        "code": "queue_full",
        "message": "no slot",
        "param": None,
    }
    assert told(session.answer())[-1] == "response.done"


def test_transcription_does_not_wait_for_the_answer_nor_the_answer_for_it() -> None:
    session = manual()
    commit(session)

    session.respond()
    session.say("Seven")
    (completed,) = session.transcribe(DONE)

    assert completed["type"] == f"{KIND}.completed"
    assert told(session.finish())[-1] == "response.done"


def test_transcription_of_deleted_item_is_cancelled() -> None:
    session = manual()
    item_id = commit(session)
    events = session.client({"type": "conversation.item.delete", "item_id": item_id})
    assert told(events) == ["conversation.item.deleted"]
    assert session.transcribing == []


def test_transcription_of_detected_turn_has_the_id_of_its_speech() -> None:
    session = RealtimeGaConversation()
    session.grant()
    session.client(update(audio={"input": {"transcription": ON}}))
    started, *_ = session.detect(SPEAKS, 1.0) + session.detect(SILENT, 0.8)
    assert [item.item_id for item in session.transcribing] == [started["item_id"]]


def test_transcription_of_native_turn_is_told_the_next_session_of_the_model() -> None:
    session = NativeConversation(
        audio={"input": {"turn_detection": {"type": "semantic_vad"}, "transcription": ON}}
    )
    session.hear(SPEAKS, 1.0)
    session.hear(SILENT, 1.0)
    session.transcribe(DONE)
    answer: Event = {"type": "output_text", "text": "fine"}
    item: Event = {"type": "message", "role": "assistant", "content": [answer]}
    session.client({"type": "conversation.item.create", "item": item})

    session.hear(SPEAKS, 1.0)

    assert session.configured[-1].setup.system_prompt.endswith("user: how are you\nassistant: fine")


def test_transcribed_speech_lets_the_model_take_turns_later() -> None:
    session = manual()
    commit(session)
    session.transcribe(DONE)
    session.answer("fine")

    session.client(update(audio={"input": {"turn_detection": {"type": "semantic_vad"}}}))

    detection = session.sent[-1]["session"]["audio"]["input"]["turn_detection"]
    assert detection["type"] == "semantic_vad"
