"""A transcription in OpenAI's events goes on at another adapter as if nothing had happened."""

import random

import pytest

from tests.ws_adapter.support.realtime_ga_conversation import append
from tests.ws_adapter.support.saving import NearestResampler, named
from tests.ws_adapter.support.transcription_conversation import UPDATE
from tests.ws_adapter.support.transcription_ga_conversation import TranscriptionGaConversation, update
from ws_adapter.protocol import live
from ws_adapter.protocol.core.signals import UnitEnd
from ws_adapter.protocol.core.speech import RATE_HZ, WINDOW

WHOLE_S = 22 * WINDOW / RATE_HZ
STEPS = ("vad", "manual", *["append"] * 5, "commit", "clear", "answer")
VAD = {"type": "server_vad"}
KINDS = "item|event"
"""Kinds of ids."""


@pytest.mark.parametrize("seed", range(10))
def test_session_that_is_restored_after_any_step_goes_on_as_if_nothing_had_happened(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live.sound, "Resampler", NearestResampler)
    alone, moved = TranscriptionGaConversation(), TranscriptionGaConversation()
    rng, moves = random.Random(seed), random.Random(seed)
    granted = {alone: 0, moved: 0}
    moved.move()
    for _ in range(60):
        step, level = rng.choice(STEPS), rng.choice([0.0, 0.3])
        for session in (alone, moved):
            match step:
                case "vad":
                    session.client(update(VAD))
                case "manual":
                    session.client(update())
                case "append":
                    session.client(append(WHOLE_S, level))
                case "commit" | "clear":
                    session.client({"type": f"input_audio_buffer.{step}"})
                case "answer":
                    session.write("words", end=UnitEnd.TURN)
            if session.has_slot and len(session.configured) == granted[session]:
                session.grant()
                granted[session] += 1
            session.now += 0.7
        if moves.random() < 0.3:
            moved.move()

    assert named(moved.sent, KINDS) == named(alone.sent, KINDS)
    assert b"".join(run.audio for run in moved.runs) == b"".join(run.audio for run in alone.runs)


def test_client_that_has_said_nothing_may_speak_either_protocol_to_the_next_adapter() -> None:
    for event, answers in ((update(), ["session.updated"]), (UPDATE, [])):
        session = TranscriptionGaConversation()
        for _ in range(2):
            session.move()
            assert [told["type"] for told in session.client(event)] == answers
