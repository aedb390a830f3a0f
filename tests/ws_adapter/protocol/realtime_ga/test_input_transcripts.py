"""Transcripts of what the user says: asked for, told, and part of the conversation from then on."""

import numpy as np
import pytest

from tests.support.schemas import Event
from tests.ws_adapter.support.realtime_ga_conversation import (
    NativeConversation,
    RealtimeGaConversation,
    begun,
    granted,
    message,
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


KIND = "conversation.item.input_audio_transcription"
DONE = InputTranscriptDone("how are you", 1.0)


def manual(transcription: Event | None = ON) -> RealtimeGaConversation:
    return begun(audio={"input": {"turn_detection": None, "transcription": transcription}})


def test_transcription_is_off_until_it_is_asked_for_and_echoed() -> None:
    session = manual(None)
    session.commit()
    assert session.transcribing == []
    assert session.sent[-4]["session"]["audio"]["input"]["transcription"] is None
    for given in (ON, None):
        (updated,) = session.client(update(audio={"input": {"transcription": given}}))
        assert updated["session"]["audio"]["input"]["transcription"] == given


@pytest.mark.parametrize(("transcription", "model"), [(ON, ""), ({"model": "voxtral"}, "voxtral")])
def test_transcription_committed_item_is_asked_for_with_its_audio_and_foreign_model(
    transcription: Event, model: str
) -> None:
    session = manual(transcription)
    item_id = session.commit(2.0)[0]["item_id"]
    (item,) = session.transcribing
    assert (item.item_id, item.model) == (item_id, model)
    assert abs(np.frombuffer(item.audio, "<f4").size - 32_000) < 16


def test_transcription_deltas_and_completed_name_the_item_which_can_be_retrieved() -> None:
    session = manual()
    item_id = session.commit()[0]["item_id"]
    retrieve: Event = {"type": "conversation.item.retrieve", "item_id": item_id}
    assert session.client(retrieve)[0]["item"]["content"][0]["transcript"] is None
    delta = session.transcribe(InputTranscriptDelta("how are", 0.0, 1.0))
    completed = session.transcribe(DONE)
    assert [(event["type"], event["item_id"], event["content_index"]) for event in delta + completed] == [
        (f"{KIND}.delta", item_id, 0),
        (f"{KIND}.completed", item_id, 0),
    ]
    assert delta[0]["delta"] == "how are"
    assert completed[0]["transcript"] == "how are you"
    assert completed[0]["usage"] == {"type": "duration", "seconds": 1.0}
    (part,) = session.client(retrieve)[0]["item"]["content"]
    assert part["transcript"] == "how are you"
    assert part["audio"]


def test_transcription_failure_says_why_and_answers_go_on() -> None:
    session = manual()
    item_id = session.commit()[0]["item_id"]
    (failed,) = session.transcribe(InputTranscriptFailed(TranscriptionCode.QUEUE_FULL, "no slot"))
    error = {"type": "server_error", "code": "queue_full", "message": "no slot", "param": None}
    assert (failed["type"], failed["item_id"], failed["error"]) == (f"{KIND}.failed", item_id, error)
    assert told(session.answer())[-1] == "response.done"


def test_transcription_does_not_wait_for_the_answer_nor_the_answer_for_it() -> None:
    session = manual()
    session.commit()
    session.respond()
    session.say("Seven")
    (completed,) = session.transcribe(DONE)
    assert completed["type"] == f"{KIND}.completed"
    assert told(session.finish())[-1] == "response.done"


def test_transcription_of_deleted_item_is_cancelled() -> None:
    session = manual()
    item_id = session.commit()[0]["item_id"]
    events = session.client({"type": "conversation.item.delete", "item_id": item_id})
    assert told(events) == ["conversation.item.deleted"]
    assert session.transcribing == []


def test_transcription_of_detected_turn_has_the_id_of_its_speech() -> None:
    session = granted()
    session.client(update(audio={"input": {"transcription": ON}}))
    started, *_ = session.detect(SPEAKS, 1.0) + session.detect(SILENT, 0.8)
    assert [item.item_id for item in session.transcribing] == [started["item_id"]]


def test_transcript_of_native_turn_is_in_prompt_of_next_model_session() -> None:
    heard = {"turn_detection": {"type": "semantic_vad"}, "transcription": ON}
    session = NativeConversation(audio={"input": heard})
    session.hear(SPEAKS, 1.0)
    session.hear(SILENT, 1.0)
    session.transcribe(DONE)
    session.client(message("fine", "assistant"))
    session.hear(SPEAKS, 1.0)
    assert session.configured[-1].setup.system_prompt.endswith("user: how are you\nassistant: fine")


def test_transcribed_speech_lets_the_model_take_turns_later() -> None:
    session = manual()
    session.commit()
    session.transcribe(DONE)
    session.answer("fine")
    session.client(update(audio={"input": {"turn_detection": {"type": "semantic_vad"}}}))
    detection = session.sent[-1]["session"]["audio"]["input"]["turn_detection"]
    assert detection["type"] == "semantic_vad"
