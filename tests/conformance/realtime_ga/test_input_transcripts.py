"""The words of the user in OpenAI's Realtime: the checkpoint of the package and OpenAI's SDK for Python."""

from typing import Any

import pytest

from tests.conformance.realtime_ga.test_openai_sdk import Conversation, conversation, question
from tests.conformance.support.stack import Stack

KIND = "conversation.item.input_audio_transcription"
TRANSCRIPTION = {"model": "gpt-4o-mini-transcribe", "language": "en"}


async def listen(talk: Conversation, turn_detection: Any) -> None:
    """Asks for the user's words, and says something."""
    heard: Any = {"transcription": TRANSCRIPTION, "turn_detection": turn_detection}
    session = await talk.update(audio={"input": heard})
    assert session.audio.input.transcription.model == "gpt-4o-mini-transcribe"
    await talk.say(question("counting", silence_s=2.0 if turn_detection else 0.0))


async def transcript_of(talk: Conversation) -> str:
    """The question's words, which came in pieces and whole for the item that was committed and answered."""
    while not talk.of(f"{KIND}.completed") or not talk.of("response.done"):
        await talk.next()
    (completed,), (committed,) = talk.of(f"{KIND}.completed"), talk.of("input_audio_buffer.committed")
    deltas = talk.of(f"{KIND}.delta")
    assert completed.item_id == committed.item_id
    assert {delta.item_id for delta in deltas} == {committed.item_id}
    assert "".join(delta.delta for delta in deltas) == completed.transcript
    assert {"count", "eight"} <= set(completed.transcript.split())
    assert completed.usage.type == "duration"
    assert completed.usage.seconds > 1.0
    (done,) = talk.of("response.done")
    assert done.response.status == "completed"
    return str(completed.transcript)


async def test_transcript_of_a_turn_that_the_client_commits_is_completed_and_retrieved(
    shipped: Stack,
) -> None:
    async with conversation(shipped) as talk:
        await listen(talk, None)
        await talk.sdk.input_audio_buffer.commit()
        await talk.sdk.response.create()
        transcript = await transcript_of(talk)
        await talk.sdk.conversation.item.retrieve(item_id=talk.of(f"{KIND}.completed")[0].item_id)
        retrieved = await talk.until("conversation.item.retrieved")

    assert retrieved.item.content[0].transcript == transcript


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
@pytest.mark.sample("semantic_vad")
async def test_transcript_of_a_turn_that_is_detected_is_completed(shipped: Stack, kind: str) -> None:
    async with conversation(shipped) as talk:
        await listen(talk, {"type": kind})
        await transcript_of(talk)

    (started,) = talk.of("input_audio_buffer.speech_started")
    assert started.item_id == talk.of(f"{KIND}.completed")[0].item_id
