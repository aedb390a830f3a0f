"""Live with a model that hears and speaks in frames of 80 ms and falls silent by itself."""

import base64
from typing import Any

import numpy as np
import pytest

from tests.support.schemas import Event
from tests.ws_adapter.support.conversation import ready_signal
from tests.ws_adapter.support.live_conversation import AUDIO, LiveConversation, append, start, told
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.signals import Finalized, Piece, UnitDone, UnitEnd

FRAME_S = 0.08
FRAME = np.full(1920, 0.25, "<f4").tobytes()
CATALOGUE = catalogue_of(unit_ms=80, yields=True, modes=frozenset({Mode.AUDIO}))
PCM_16K = {"format": {"type": "audio/pcm", "rate": 16_000}}


def begun(**session: Any) -> LiveConversation:
    conversation = LiveConversation(CATALOGUE)
    conversation.begin(**session)
    return conversation


def answer(session: LiveConversation, unit: int, end: UnitEnd, text: str = "") -> list[Event]:
    pieces = [Piece(unit, text, FRAME)] if end is not UnitEnd.LISTEN else []
    return session.worker(*pieces, UnitDone(unit, end, context_tokens=unit), Finalized(unit))


def hear(session: LiveConversation, seconds: float, level: float = 0.0) -> None:
    """A microphone that sends 20 ms at a time."""
    for _ in range(round(seconds / 0.02)):
        session.client(append(0.02, level))
        session.wait(0.02)


def test_frame_runs_as_soon_as_it_has_been_heard() -> None:
    session = begun()
    assert session.configured[0].setup.unit_ms == 80  # type: ignore[union-attr]
    hear(session, 1.0)
    assert {len(run.audio) for run in session.runs} == {4 * 1280}
    # The window of two at the worker holds the rest; nothing is dropped.
    assert len(session.runs) == 2
    for unit in range(1, 11):
        answer(session, unit, UnitEnd.LISTEN)
    assert len(session.runs) == 12  # of 12.5, less the 30 ms that the resampler holds back


def test_word_is_heard_within_a_frame_and_the_lead_of_the_stream() -> None:
    session = begun()
    hear(session, 0.2)
    session.wait(0.2)
    sent = sum(event["type"] == AUDIO for event in session.sent)
    answer(session, 1, UnitEnd.CHUNK, " Hel")
    answer(session, 2, UnitEnd.TURN, "lo")
    session.wait(0.4)

    sounds = [base64.b64decode(event["delta"]) for event in session.sent if event["type"] == AUDIO]
    assert {len(sound) for sound in sounds} == {3840}  # 80 ms at 24 kHz
    assert next(i for i, sound in enumerate(sounds) if any(sound)) == sent
    words = [event for event in session.sent if event["type"] == "session.output_transcript.delta"]
    assert [event["delta"] for event in words] == [" Hel", "lo"]
    assert words[0]["end_ms"] - words[0]["start_ms"] == 80


def test_speech_over_an_answer_is_left_to_a_model_that_yields() -> None:
    session = begun()
    hear(session, 0.2)
    answer(session, 1, UnitEnd.CHUNK, "Once upon a time")
    hear(session, 2.0, level=0.5)
    assert not session.cancelled
    assert not any(run.force_listen for run in session.runs)


def test_muted_client_feeds_frames_of_silence_in_real_time() -> None:
    session = begun()
    session.client({"type": "session.input_audio.mute"})
    for _ in range(50):
        session.wait(0.04)
        session.listen_through()
    assert 24 <= session.finished <= 26  # of 2 s


def test_usage_counts_seconds_of_frames() -> None:
    session = begun()
    for _ in range(70):
        hear(session, FRAME_S)
        session.listen_through()
    (usage,) = (event for event in session.sent if event["type"] == "session.usage.updated")
    assert usage["usage"]["seconds"] == pytest.approx(5.04)


def test_frame_that_lacks_some_samples_waits_for_them() -> None:
    session = begun(audio=PCM_16K)
    samples = np.zeros(1275, "<i2").tobytes()
    session.client({"type": "session.input_audio.append", "audio": base64.b64encode(samples).decode()})
    assert told(session.wait(0.5)) == []
    assert not session.runs


def test_instructions_ignored_by_model_are_reported() -> None:
    session = LiveConversation(CATALOGUE)
    session.client(start(instructions="Be a pirate."))
    session.grant()
    events = session.worker(ready_signal(ignored_fields=("system_prompt",)))
    assert [event["code"] for event in events if event["type"] == "info"] == ["instructions_unused"]
