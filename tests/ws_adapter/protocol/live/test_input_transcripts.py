"""Speech of the user in Live: cut at its pauses, transcribed, and told with the time at which it was said."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ws_adapter.support.conversation import CATALOGUE
from tests.ws_adapter.support.live_conversation import LiveConversation, append
from ws_adapter.protocol.core.signals import UnitEnd
from ws_adapter.protocol.core.transcription import (
    InputTranscriptDelta,
    InputTranscriptDone,
    InputTranscriptFailed,
    TranscriptionCode,
)
from ws_adapter.protocol.live.input_speech import LONGEST, InputSpeech

LOUD = 0.3
KIND = "session.input_transcript.delta"


def talking(*, transcribes: bool = True, **limits: Any) -> LiveConversation:
    """A session that has begun, where a worker transcribes."""
    session = LiveConversation(replace(CATALOGUE, transcribes=transcribes), **limits)
    session.begin()
    return session


def hear(session: LiveConversation, *pieces: tuple[float, float]) -> None:
    """The user is so loud for so many seconds; each second is answered by listening."""
    for level, seconds in pieces:
        for _ in range(round(seconds * 10)):
            session.client(append(0.1, level))
            session.wait(0.1)
            session.listen_through()


def test_speech_before_pause_is_transcribed_with_its_times() -> None:
    session = talking()
    hear(session, (0.0, 2.0), (LOUD, 1.5))
    assert session.transcribing == []
    hear(session, (0.0, 1.0))
    (item,) = session.transcribing
    samples = np.frombuffer(item.audio, "<f4")
    assert abs(samples.size / 16_000 - 2.1) < 0.15
    assert (np.abs(samples) > LOUD / 2).mean() > 0.6

    events = session.transcribe(InputTranscriptDelta("how are", 0.0, 1.0))
    events += session.transcribe(InputTranscriptDelta(" you", 1.0, 1.9))
    events += session.transcribe(InputTranscriptDone("how are you", 1.9))
    assert [(event["type"], event["delta"]) for event in events] == [(KIND, "how are"), (KIND, " you")]
    assert [(event["start_ms"], event["end_ms"]) for event in events] == [(1600, 2600), (2600, 3600)]


def test_failed_input_transcript_sends_no_event() -> None:
    session = talking()
    hear(session, (LOUD, 1.0), (0.0, 1.0))
    assert session.transcribe(InputTranscriptFailed(TranscriptionCode.QUEUE_FULL, "no slot")) == []


@pytest.mark.parametrize("limits", [{"transcribes": False}, {"input_transcript_s": 0.0}])
def test_nothing_is_transcribed_without_a_transcriber(limits: Any) -> None:
    session = talking(**limits)
    hear(session, (LOUD, 1.0), (0.0, 1.0))
    assert session.transcribing == []


def test_muted_client_is_not_transcribed_and_its_speech_ends() -> None:
    session = talking()
    hear(session, (LOUD, 1.0))
    session.client({"type": "session.input_audio.mute"})
    hear(session, (LOUD, 2.0))
    (item,) = session.transcribing
    assert len(item.audio) / 64_000 < 1.5


def test_speech_over_an_answer_still_interrupts_it_and_is_transcribed() -> None:
    session = talking()
    hear(session, (0.0, 1.0))
    session.talk((UnitEnd.CHUNK, "one two three"))
    hear(session, (LOUD, 1.0))
    assert session.runs[-1].force_listen
    hear(session, (0.0, 1.0))
    assert len(session.transcribing) == 1


def test_speech_before_an_answer_does_not_interrupt_it() -> None:
    session = talking()
    hear(session, (LOUD, 2.0))
    session.talk((UnitEnd.CHUNK, "one"), (UnitEnd.CHUNK, "two"))
    assert not any(run.force_listen for run in session.runs)
    assert session.cancelled == []


def test_speech_is_taken_apart_where_it_does_not_pause() -> None:
    speech = InputSpeech()
    second = np.full(16_000, LOUD, np.float32)
    said = []
    for _ in range(70):
        speech.hear(second)
        said += speech.detected([0.9] * (16_000 // 512))
    assert [len(one.audio) // 4 for one in said] == [pytest.approx(LONGEST, abs=512)] * 2
    assert said[1].at_ms == pytest.approx(LONGEST // 16, abs=64)
    assert speech.held_bytes < 4 * LONGEST


def test_silence_is_not_held() -> None:
    speech = InputSpeech()
    for _ in range(60):
        speech.hear(np.zeros(16_000, np.float32))
        assert speech.detected([0.01] * (16_000 // 512)) == []
    assert speech.held_bytes < 4 * 2 * 16_000


def test_skipped_audio_counts_in_time_of_later_speech() -> None:
    speech = InputSpeech()

    def hear(samples: Any, score: float) -> list[Any]:
        speech.hear(samples)
        return speech.detected([score] * (samples.size // 512))

    hear(speech.skip(512_000), 0.01)
    hear(np.full(10_240, LOUD, np.float32), 0.9)
    (said,) = hear(np.zeros(10_240, np.float32), 0.01)

    assert said.at_ms == pytest.approx(32_000 - 300, abs=64)
