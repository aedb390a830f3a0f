"""A Realtime session that another adapter goes on with equals one that was never disturbed."""

import random

import pytest

from tests.ws_adapter.protocol.realtime_ga.test_native_walk import EVENTS, WORKER, work
from tests.ws_adapter.support.realtime_ga_conversation import (
    NativeConversation,
    RealtimeGaConversation,
    begun,
    message,
    sound,
    update,
)
from tests.ws_adapter.support.saving import NearestResampler, assert_torn_states_are_refused, named, save
from ws_adapter.protocol import live
from ws_adapter.protocol.core.speech import RATE_HZ, WINDOW
from ws_adapter.protocol.core.transcription import InputTranscriptDelta, InputTranscriptDone

WHOLE_S = 22 * WINDOW / RATE_HZ
"""Whole windows of the detector, so that none waits for more when an adapter dies."""

KINDS = "item|resp|turn|conv|event"
"""Kinds of ids."""


def asked(text: str = "Hello") -> RealtimeGaConversation:
    """A session whose response is at the worker."""
    talk = begun()
    talk.client(message(text))
    talk.respond()
    return talk


@pytest.mark.parametrize("seed", range(20))
def test_session_that_is_restored_after_any_step_goes_on_as_if_nothing_had_happened(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is ready whenever its adapter dies, and its work is in the journal."""
    monkeypatch.setattr(live.sound, "Resampler", NearestResampler)
    alone, moved = NativeConversation(), NativeConversation()
    rng, moves = random.Random(seed), random.Random(seed)
    for _ in range(60):
        step = rng.choice([*EVENTS, *WORKER, *["silence", "speech"] * 6])
        for session in (alone, moved):
            if session.closed is not None:
                continue
            if step in EVENTS:
                session.client(EVENTS[step])
            elif step in WORKER:
                work(session, step)
            else:
                session.detect(0.9 if step == "speech" else 0.0, WHOLE_S)
            if session.closed is None:
                session.settle()
            session.now += 0.2
        if moves.random() < 0.3 and moved.closed is None:
            moved.move()

    assert named(moved.sent, KINDS) == named(alone.sent, KINDS)
    units = [[(run.unit, run.force_listen, run.texts) for run in one.units] for one in (moved, alone)]
    assert units[0] == units[1]
    assert moved.rewinds == alone.rewinds
    assert [run.turn for run in moved.runs] == [run.turn for run in alone.runs]


def test_items_with_clips_after_failover_give_same_turn() -> None:
    session = begun()
    clip = {"type": "input_audio", "audio": sound(0.5)}
    session.client(message(role="user", content=[clip, {"type": "input_text", "text": "What is it?"}]))
    session.commit(0.3)
    session.answer("A sound.", output_modalities=["text"])
    session.client(message("And now?"))
    session.respond(output_modalities=["text"])
    turn = session.turn
    session.finish()  # with nothing that would be another item
    session.move()
    session.respond(output_modalities=["text"])
    assert session.turn == turn


def test_answer_after_failover_continues_behind_sent_text() -> None:
    session = asked()
    told = session.say("One, ")
    session.move()
    told += session.say("two.") + session.finish()
    words = [event["delta"] for event in told if event["type"] == "response.output_audio_transcript.delta"]
    assert words == ["One, ", "two."]
    assert told[-1]["response"]["status"] == "completed"
    assert told[-1]["response"]["output"][0]["content"][0]["transcript"] == "One, two."


def test_partly_sent_answer_without_journal_fails_at_failover() -> None:
    session = asked()
    session.say("One, ")
    told = session.move(has_journal=False)
    assert told[0]["type"] == "error"
    assert told[-1]["response"]["status"] == "failed"
    session.client(message())
    session.respond()
    session.grant()
    session.ready()
    assert session.is_asked


def test_unsent_answer_without_journal_is_retried_at_failover() -> None:
    session = asked()
    turn = session.turn
    assert session.move(has_journal=False) == []
    session.grant()
    session.ready()
    assert len(session.runs) == 2
    assert session.turn == turn
    session.say()
    assert session.finish()[-1]["response"]["status"] == "completed"


def test_input_transcription_is_retried_at_failover_and_sent_once() -> None:
    session = begun(audio={"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}})
    session.commit()
    audio = session.transcribing[0].audio
    session.transcribe(InputTranscriptDelta("how are", 0.0, 0.5))
    session.move()
    (item,) = session.transcribing
    assert item.audio == audio
    told = session.transcribe(InputTranscriptDelta("how are you", 0.0, 1.0))
    assert [event["delta"] for event in told] == [" you"]
    assert session.transcribe(InputTranscriptDone("how are you", 1.0))[0]["transcript"] == "how are you"


def test_settings_that_were_changed_hold_for_the_next_adapter() -> None:
    session = begun()
    session.client(update(instructions="Sing.", max_output_tokens=7, tools=[]))
    before = session.sent[-1]["session"]
    session.move()
    session.client(update(instructions="Sing."))
    assert session.sent[-1]["session"] == before


def test_state_that_is_torn_is_refused() -> None:
    session = begun()
    session.client(message())
    state, blobs = save(session.dialect, session.now, has_journal=False)
    assert_torn_states_are_refused(session.new_dialect, state, blobs, session.now)
    with pytest.raises(ValueError):
        session.new_dialect().restore(state, dict.fromkeys(blobs, b"\xc1"), session.now)
