"""Realtime with a model that holds no chats and hears frames of 80 ms, as Moshi: all turns are its own."""

from typing import Any

import numpy as np
import pytest

from tests.support.schemas import Event
from tests.ws_adapter.support import tokens as counted
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from tests.ws_adapter.support.realtime_ga_conversation import (
    AUDIO,
    SEMANTIC,
    WEATHER,
    NativeConversation,
    RealtimeGaConversation,
    message,
    told,
    update,
)
from ws_adapter.protocol.core.config import Mode, SessionSetup
from ws_adapter.protocol.core.signals import Finalized, Piece, UnitDone, UnitEnd

FRAME = np.full(1920, 0.25, "<f4").tobytes()
FRAMES: Event = {"unit_ms": 80, "yields": True, "modes": frozenset({Mode.AUDIO})}
OWN = {"type": "semantic_vad", "eagerness": "auto", "create_response": True, "interrupt_response": True}
DETECTION = "audio.input.turn_detection"


class FrameConversation(NativeConversation):
    """A session with such a model, that has had no settings of its client."""

    def __init__(self, **capabilities: Any) -> None:
        RealtimeGaConversation.__init__(self, catalogue=catalogue_of(**{**FRAMES, **capabilities}))
        self._is_ready = True
        self.grant()

    def frame(self, end: UnitEnd = UnitEnd.LISTEN, text: str = "", score: float = 0.0) -> list[Event]:
        """A frame of the user, and what the model says in it."""
        before = len(self.sent)
        while not self.unanswered:
            self.hear(score, 0.04)
        unit = self.unanswered[0].unit
        self._answered += 1
        pieces = [Piece(unit, text, FRAME)] if end is not UnitEnd.LISTEN else []
        tokens = counted.tokens(input_audio=1, output_text=1)
        self.worker(*pieces, UnitDone(unit, end, context_tokens=unit, tokens=tokens), Finalized(unit))
        self.now += 0.08
        return self.sent[before:]

    def updated(self, **session: Any) -> Event:
        (event,) = self.client(update(**session))
        session_told: Event = event["session"]
        return session_told


def detection(session: Event) -> Event:
    found: Event = session["audio"]["input"]["turn_detection"]
    return found


def test_session_begins_with_turns_of_the_models_own_and_audio_opens_one_of_frames() -> None:
    session = FrameConversation()
    created = session.sent[0]["session"]
    assert detection(created) == OWN
    assert "unsupported_fields" not in created
    session.frame()
    (opened,) = session.configured
    assert isinstance(opened.setup, SessionSetup)
    assert (opened.setup.mode, opened.setup.unit_ms) == (Mode.AUDIO, 80)
    assert {len(unit.audio) for unit in session.units} == {4 * 1280}


def test_each_frame_of_a_turn_is_a_delta_of_80_ms() -> None:
    session = FrameConversation()
    session.frame()
    events = session.frame(UnitEnd.CHUNK, " Hel") + session.frame(UnitEnd.CHUNK, "lo")
    events += session.frame(UnitEnd.TURN)
    assert sum(event["type"] == AUDIO for event in events) == 3
    assert [event["delta"] for event in events if event["type"].endswith("transcript.delta")] == ["Hel", "lo"]
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["transcript"] == "Hello"


def test_speech_over_an_answer_is_left_to_a_model_that_yields_and_cancels_by_the_client_are_not() -> None:
    session = FrameConversation()
    session.frame(UnitEnd.CHUNK, "Once")
    events = [event for _ in range(10) for event in session.frame(UnitEnd.CHUNK, " more", score=0.9)]
    assert "input_audio_buffer.speech_started" in told(events)
    assert "response.done" not in told(events)
    assert not session.cancelled
    assert session.client({"type": "response.cancel"})[-1]["response"]["status"] == "cancelled"


def test_other_turn_detection_is_replaced_and_reported() -> None:
    session = FrameConversation()
    for given in (None, {"type": "server_vad"}, {"type": "semantic_vad", "create_response": False}):
        changed = session.updated(audio={"input": {"turn_detection": given}})
        assert detection(changed) == OWN
        assert changed["unsupported_fields"] == [DETECTION]
    assert "unsupported_fields" not in session.updated(**SEMANTIC)
    polite = session.updated(audio={"input": {"turn_detection": {**OWN, "interrupt_response": False}}})
    assert detection(polite) == {**OWN, "interrupt_response": False}
    assert "unsupported_fields" not in polite


def test_tools_and_instructions_without_effect_are_reported() -> None:
    session = FrameConversation(reads_prompts=False)
    changed = session.updated(tools=[WEATHER], instructions="Be brief.")
    assert changed["tools"] == []
    assert changed["unsupported_fields"] == ["instructions", "tools"]
    assert "unsupported_fields" not in session.updated(tools=[], instructions="")


def test_response_that_a_client_asks_for_fails_without_an_error() -> None:
    session = FrameConversation()
    session.client(message("What is your name?"))
    created, done = session.client({"type": "response.create", "response": {"metadata": {"its": "mine"}}})
    assert (created["type"], done["type"]) == ("response.created", "response.done")
    response = done["response"]
    assert response["metadata"] == {"its": "mine"}
    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"] == "unsupported"
    assert told(session.frame(UnitEnd.TURN, "Hello"))[-1] == "response.done"


@pytest.mark.parametrize("reads_prompts", [True, False])
def test_typed_item_reaches_a_model_that_reads_prompts_with_the_users_next_words(reads_prompts: bool) -> None:
    session = FrameConversation(reads_prompts=reads_prompts)
    session.frame()
    session.client(message("My name is Ada."))
    for _ in range(10):
        session.frame(score=0.9)
    setups = [opened.setup for opened in session.configured]
    assert len(setups) == (2 if reads_prompts else 1)
    assert isinstance(setups[-1], SessionSetup)
    assert ("My name is Ada." in setups[-1].system_prompt) == reads_prompts
