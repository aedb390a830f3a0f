"""Tests of `session.start`: taken whole, or refused whole with the place of the fault."""

from typing import Any

import pytest
from openai.types.live.built_in_voice import BuiltInVoice

from tests.ws_adapter.support.conversation import CATALOGUE
from tests.ws_adapter.support.live_conversation import LiveConversation, start, told
from ws_adapter.protocol.core.config import DEFAULT_PROMPT
from ws_adapter.protocol.live.events import MAX_HISTORY
from ws_adapter.protocol.live.machine import LONGEST_S
from ws_adapter.protocol.live.settings import BUILT_IN_VOICES
from ws_adapter.protocol.wire.errors import CloseCode


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_session_defaults_are_reported_at_start() -> None:
    session = LiveConversation().begin()["session"]
    assert session["instructions"] == DEFAULT_PROMPT
    assert session["audio"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert session["status"] == "active"
    assert session["model"] == "antiphon-mini"
    assert session["expires_at"] == 1000 + 10_000 + 600


@pytest.mark.parametrize("blank", [None, "", "  \n"])
def test_blank_instructions_are_none(blank: str | None) -> None:
    live = LiveConversation()
    live.begin(instructions=blank)
    assert live.configured[0].setup.system_prompt == DEFAULT_PROMPT  # type: ignore[union-attr]


def test_history_is_appended_to_instructions() -> None:
    live = LiveConversation()
    history = [said("developer", "Be brief."), said("user", "Hello!"), said("assistant", "Hi.")]
    live.begin(instructions="You are kind.", input=history)
    prompt = live.configured[0].setup.system_prompt  # type: ignore[union-attr]
    assert prompt == "You are kind.\n\nWhat was said before:\nBe brief.\nUser: Hello!\nAssistant: Hi."


@pytest.mark.parametrize(
    ("format", "rate"),
    [("audio/pcm", 16_000), ("audio/pcm", 24_000), ("audio/pcmu", 8000), ("audio/pcma", 8000)],
)
def test_each_format_can_be_had(format: str, rate: int) -> None:
    session = LiveConversation().begin(audio={"format": {"type": format, "rate": rate}})["session"]
    assert session["audio"]["format"] == {"type": format, "rate": rate}


@pytest.mark.parametrize("voice", ["amber", {"id": "amber"}])
def test_a_registered_voice_speaks(voice: Any) -> None:
    live = LiveConversation()
    session = live.begin(audio={"output": {"voice": voice}})["session"]
    assert live.configured[0].setup.voice.voice_id == "amber"  # type: ignore[union-attr]
    assert session["audio"]["output"]["voice"] == "amber"


def test_voices_of_openai_are_replaced_and_that_is_said() -> None:
    """Clients name one without being asked to; the list is that of the official types."""
    assert set(BuiltInVoice.__args__) == BUILT_IN_VOICES  # type: ignore[attr-defined]
    live = LiveConversation()
    live.begin(audio={"output": {"voice": "marin"}})
    assert live.configured[0].setup.voice.voice_id is None  # type: ignore[union-attr]
    (info,) = [event for event in live.sent if event["type"] == "info"]
    assert info["code"] == "voice_replaced"
    assert "marin" in info["message"]


MISSING, INVALID, UNKNOWN = "missing_required_parameter", "invalid_value", "unknown_parameter"


@pytest.mark.parametrize(
    ("session", "code", "place"),
    [
        (None, MISSING, ""),
        ({}, MISSING, ".model"),
        ({"model": "gpt-live-1"}, "model_not_found", ".model"),
        ({"model": 7}, INVALID, ".model"),
        ({"tools": []}, UNKNOWN, ".tools"),
        ({"audio": {"input": {}}}, UNKNOWN, ".audio.input"),
        ({"audio": {"format": {"type": "audio/opus"}}}, INVALID, ".audio.format.type"),
        ({"audio": {"format": {"type": "audio/pcm", "rate": 8000}}}, INVALID, ".audio.format.rate"),
        ({"audio": {"format": {"type": "audio/pcmu"}}}, MISSING, ".audio.format.rate"),
        ({"audio": {"output": {"voice": "nobody"}}}, INVALID, ".audio.output.voice"),
        ({"audio": {"output": {"voice": {"id": "marin"}}}}, INVALID, ".audio.output.voice.id"),
        ({"audio": {"output": {"voice": {"id": ""}}}}, MISSING, ".audio.output.voice.id"),
        ({"instructions": "x" * 32_769}, INVALID, ".instructions"),
        ({"input": [said("user", "x" * 32_769)]}, INVALID, ".input"),
        ({"input": [said("user", "x")] * (MAX_HISTORY + 1)}, INVALID, None),
        ({"input": [{"role": "user", "content": []}]}, INVALID, ".input[0].content"),
        ({"input": [{"role": "tool", "content": []}]}, INVALID, ".input[0].role"),
        (
            {"input": [said("user", "x"), {"role": "user", "content": [{"type": "input_text"}]}]},
            MISSING,
            ".input[1].content[0].text",
        ),
        ({"delegation": {"type": "decisions"}}, INVALID, ".delegation.type"),
        ({"store": True}, "unsupported", ".store"),
        ({"client": {"data_channel": {}}}, "unsupported", ".client"),
        ({"triggers": [{"type": "decisions"}]}, "unsupported", ".triggers"),
    ],
)
def test_invalid_session_settings_are_rejected_with_field(session: Any, code: str, place: str | None) -> None:
    live = LiveConversation()
    given = session if not session or "model" in session else {"model": "antiphon-mini", **session}
    (error,) = live.client({"type": "session.start", "event_id": "mine", "session": given})
    assert told([error]) == [f"error:{code}"]
    assert error["client_event_id"] == error["error"]["client_event_id"] == "mine"
    assert error["error"]["type"] == "invalid_request_error"
    if place is not None:
        assert error["error"]["param"] == f"session{place}"
    assert not live.has_slot
    assert live.close_code == CloseCode.POLICY_VIOLATION


@pytest.mark.parametrize("kind", ["client", "responses"])
def test_delegation_is_accepted_and_info_says_that_nothing_is_delegated(kind: str) -> None:
    live = LiveConversation()
    given = {"type": kind} | ({"responses": {"model": "gpt-5"}} if kind == "responses" else {})
    started = live.begin(delegation=given)
    assert started["session"]["delegation"] == given
    (info,) = [event for event in live.sent if event["type"] == "info"]
    assert info["code"] == "delegation_unused"


def test_without_a_worker_the_worker_is_left_to_judge() -> None:
    live = LiveConversation(catalogue=None)
    live.client(start(model="whatever", audio={"output": {"voice": {"id": "somebody"}}}))
    assert live.has_slot
    assert "whatever" not in CATALOGUE.models


def test_session_without_a_limit_expires_after_the_longest_time() -> None:
    session = LiveConversation(session_limit_s=0).begin()["session"]
    assert session["expires_at"] == 1000 + 10_000 + int(LONGEST_S)


def test_events_are_numbered_from_one() -> None:
    session = LiveConversation()
    session.begin()
    (second,) = session.client({"type": "session.input_audio.mute"})
    assert [session.sent[0]["event_id"], second["event_id"]] == ["event_0a1", "event_0a2"]
