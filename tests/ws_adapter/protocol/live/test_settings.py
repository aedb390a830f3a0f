"""What a `session.start` asks for: taken whole or refused whole, with the place of what is wrong."""

from typing import Any

import pytest

from tests.ws_adapter.support.conversation import CATALOGUE
from tests.ws_adapter.support.live_conversation import LiveConversation, start, told
from ws_adapter.protocol.core.config import DEFAULT_PROMPT
from ws_adapter.protocol.live.events import MAX_HISTORY
from ws_adapter.protocol.live.settings import BUILT_IN_VOICES
from ws_adapter.protocol.wire.errors import CloseCode


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_defaults_are_told() -> None:
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


def test_what_was_said_before_stands_behind_the_instructions() -> None:
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
    from openai.types.live.built_in_voice import BuiltInVoice

    assert set(BuiltInVoice.__args__) == BUILT_IN_VOICES  # type: ignore[attr-defined]
    live = LiveConversation()

    live.begin(audio={"output": {"voice": "marin"}})

    assert live.configured[0].setup.voice.voice_id is None  # type: ignore[union-attr]
    (info,) = [event for event in live.sent if event["type"] == "info"]
    assert info["code"] == "voice_replaced"
    assert "marin" in info["message"]


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        (None, "missing_required_parameter", "session"),
        ({}, "missing_required_parameter", "session.model"),
        ({"model": "gpt-live-1"}, "model_not_found", "session.model"),
        ({"model": 7}, "invalid_value", "session.model"),
        ({"tools": []}, "unknown_parameter", "session.tools"),
        ({"audio": {"input": {}}}, "unknown_parameter", "session.audio.input"),
        ({"audio": {"format": {"type": "audio/opus"}}}, "invalid_value", "session.audio.format.type"),
        (
            {"audio": {"format": {"type": "audio/pcm", "rate": 8000}}},
            "invalid_value",
            "session.audio.format.rate",
        ),
        (
            {"audio": {"format": {"type": "audio/pcmu"}}},
            "missing_required_parameter",
            "session.audio.format.rate",
        ),
        ({"audio": {"output": {"voice": "nobody"}}}, "invalid_value", "session.audio.output.voice"),
        ({"audio": {"output": {"voice": {"id": "marin"}}}}, "invalid_value", "session.audio.output.voice.id"),
        (
            {"audio": {"output": {"voice": {"id": ""}}}},
            "missing_required_parameter",
            "session.audio.output.voice.id",
        ),
        ({"instructions": "x" * 32_769}, "invalid_value", "session.instructions"),
        ({"input": [said("user", "x" * 32_769)]}, "invalid_value", "session.input"),
        ({"input": [said("user", "x")] * (MAX_HISTORY + 1)}, "invalid_value", None),
        ({"input": [{"role": "user", "content": []}]}, "invalid_value", "session.input[0].content"),
        ({"input": [{"role": "tool", "content": []}]}, "invalid_value", "session.input[0].role"),
        (
            {"input": [said("user", "x"), {"role": "user", "content": [{"type": "input_text"}]}]},
            "missing_required_parameter",
            "session.input[1].content[0].text",
        ),
        ({"delegation": {"type": "decisions"}}, "invalid_value", "session.delegation.type"),
        ({"store": True}, "unsupported", "session.store"),
        ({"client": {"data_channel": {}}}, "unsupported", "session.client"),
        ({"triggers": [{"type": "decisions"}]}, "unsupported", "session.triggers"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(session: Any, code: str, param: str | None) -> None:
    live = LiveConversation()
    given = session if not session or "model" in session else {"model": "antiphon-mini", **session}

    (error,) = live.client({"type": "session.start", "event_id": "mine", "session": given})

    assert told([error]) == [f"error:{code}"]
    assert error["client_event_id"] == error["error"]["client_event_id"] == "mine"
    assert error["error"]["type"] == "invalid_request_error"
    if param is not None:
        assert error["error"]["param"] == param
    assert not live.has_slot
    assert live.closed is not None
    assert live.closed.code is CloseCode.POLICY_VIOLATION


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
