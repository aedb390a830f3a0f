"""Tests of a Realtime session's settings: reported whole, changed whole or not at all."""

from typing import Any

import pytest

from tests.support.schemas import Event
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from tests.ws_adapter.support.realtime_ga_conversation import (
    MANUAL,
    VAD,
    WEATHER,
    RealtimeGaConversation,
    append,
    begun,
    granted,
    message,
    output,
    told,
    update,
)

PCM: Event = {"type": "audio/pcm", "rate": 24000}


def heard_after(session: RealtimeGaConversation, **fields: Any) -> Event:
    """The settings of the input after these were changed."""
    (updated,) = session.client(update(audio={"input": fields}))
    told_input: Event = updated["session"]["audio"]["input"]
    return told_input


def test_session_created_comes_first_and_is_complete() -> None:
    session = RealtimeGaConversation()
    assert session.sent == []
    created, conversation = session.grant()

    heard = {"format": PCM, "transcription": None, "noise_reduction": None, "turn_detection": VAD}
    assert created["type"] == "session.created"
    assert created["session"] == {
        "type": "realtime",
        "object": "realtime.session",
        "id": "sess_0123456789ab",
        "model": "antiphon-mini",
        "expires_at": 1000 + 10_000 + 3600,
        "output_modalities": ["audio"],
        "instructions": "You are a helpful assistant.",
        "audio": {"input": heard, "output": {"format": PCM, "voice": "alloy", "speed": 1.0}},
        "include": None,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_output_tokens": "inf",
        "truncation": "auto",
        "prompt": None,
        "tracing": None,
        "reasoning": None,
    }
    assert conversation["type"] == "conversation.created"


def test_absent_setting_is_kept_and_null_setting_is_off() -> None:
    session = granted()
    session.client(update(instructions="Be brief."))
    heard_after(session, noise_reduction={"type": "near_field"})
    changed = heard_after(session, turn_detection={"type": "server_vad", "threshold": 0.8})
    assert session.sent[-1]["session"]["instructions"] == "Be brief."
    assert changed["noise_reduction"] == {"type": "near_field"}
    assert changed["turn_detection"] == {**VAD, "threshold": 0.8}
    off = heard_after(session, turn_detection=None, noise_reduction=None)
    assert off["turn_detection"] is off["noise_reduction"] is None
    # Switched on again, it has its defaults.
    assert heard_after(session, turn_detection={"type": "server_vad"})["turn_detection"] == VAD


def test_empty_clears() -> None:
    session = granted()
    session.client(update(instructions="Be brief.", tools=[WEATHER]))
    (updated,) = session.client(update(instructions="", tools=[]))
    assert (updated["session"]["instructions"], updated["session"]["tools"]) == ("", [])


def test_interrupt_response_is_always_echoed() -> None:
    detection = {"type": "server_vad", "interrupt_response": False}
    changed = heard_after(granted(), turn_detection=detection)
    assert changed["turn_detection"] == {**VAD, "interrupt_response": False}


def test_first_update_of_unmodified_clients_is_accepted() -> None:
    transcription = {"model": "gpt-4o-mini-transcribe"}
    heard = {"format": PCM, "transcription": transcription, "noise_reduction": None}
    (answer,) = granted().client(
        update(
            model="antiphon-mini",
            tracing="auto",
            audio={
                "input": {**heard, "turn_detection": {"type": "server_vad"}},
                "output": {"format": PCM, "voice": "marin", "speed": 1},
            },
            output_modalities=["audio"],
            tool_choice="auto",
            tools=[],
        )
    )
    assert told([answer]) == ["session.updated"]
    assert answer["session"]["audio"]["input"]["transcription"] == transcription
    assert answer["session"]["audio"]["output"]["voice"] == "marin"
    assert answer["session"]["tracing"] == "auto"


def turns(**detection: Any) -> Event:
    return {"audio": {"input": {"turn_detection": detection}}}


INVALID, MISSING, UNKNOWN = "invalid_value", "missing_required_parameter", "unknown_parameter"


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"model": "another"}, INVALID, "model"),
        ({"type": "transcription"}, "invalid_session_type", "type"),
        ({"type": None}, MISSING, "type"),
        ({"temperature": 0.7}, UNKNOWN, "temperature"),
        ({"instructions": 7}, "invalid_type", "instructions"),
        ({"output_modalities": ["audio", "text"]}, INVALID, "output_modalities"),
        ({"output_modalities": ["video"]}, INVALID, "output_modalities[0]"),
        ({"max_output_tokens": 5000}, INVALID, "max_output_tokens"),
        ({"prompt": {"id": "pmpt_1"}}, INVALID, "prompt"),
        ({"tools": [{"type": "mcp", "name": "x"}]}, INVALID, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, INVALID, "tools[1].name"),
        ({"tool_choice": "required"}, INVALID, "tool_choice"),
        ({"audio": {"output": {"voice": "nobody"}}}, INVALID, "audio.output.voice"),
        ({"audio": {"output": {"speed": 1.2}}}, INVALID, "audio.output.speed"),
        ({"audio": {"output": {"loud": 1}}}, UNKNOWN, "audio.output.loud"),
        ({"audio": {"input": {"format": {"type": "audio/mp3"}}}}, INVALID, "audio.input.format.type"),
        ({"audio": {"input": {"format": {**PCM, "rate": 16000}}}}, INVALID, "audio.input.format.rate"),
        (turns(type="server_vad", threshold=2), INVALID, "audio.input.turn_detection.threshold"),
        (turns(threshold=0.5), MISSING, "audio.input.turn_detection.type"),
    ],
)
def test_a_wrong_field_refuses_the_whole_update(change: Event, code: str, param: str) -> None:
    session = granted()
    (before,) = session.client(update())
    given = {"type": "realtime", "instructions": "X", **change}
    (answer,) = session.client({"type": "session.update", "event_id": "e1", "session": given})
    (after,) = session.client(update())
    assert (answer["error"]["code"], answer["error"]["param"]) == (code, f"session.{param}")
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["event_id"] == "e1"
    assert after["session"] == before["session"]


def test_the_voice_stays_once_the_model_has_spoken() -> None:
    session = begun(audio={"input": {"turn_detection": None}, "output": {"voice": "amber"}})
    session.client(message())
    session.answer()
    (refused,) = session.client(update(audio={"output": {"voice": "marin"}}))
    (same,) = session.client(update(audio={"output": {"voice": "amber"}}))
    assert refused["error"]["code"] == "cannot_update_voice"
    assert same["type"] == "session.updated"
    assert session.configured[0].setup.voice.voice_id == "amber"  # type: ignore[union-attr]


def test_another_voice_before_the_model_speaks_takes_another_session_at_the_worker() -> None:
    session = begun()
    session.wait(20.0)
    session.ready()
    assert len(session.configured) == 1

    session.client(update(audio={"output": {"voice": "amber"}}))
    session.client({"type": "response.create"})
    session.grant()
    session.ready()

    assert [opened.setup.voice.voice_id for opened in session.configured] == [None, "amber"]  # type: ignore[union-attr]
    assert len(session.runs) == 1


def test_the_input_format_stays_once_audio_has_come() -> None:
    session = begun()
    session.client(append(0.2))
    (answer,) = session.client(update(audio={"input": {"format": {"type": "audio/pcmu"}}}))
    error = answer["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "session.audio.input.format")


def test_a_model_without_a_voice_writes() -> None:
    catalogue = catalogue_of(speaks=False, hears=False)
    session = RealtimeGaConversation(catalogue=catalogue)
    told_session = session.begin(output_modalities=["audio"])
    assert told_session["output_modalities"] == ["text"]

    (answer,) = session.client(append(0.2))
    assert (answer["error"]["code"], answer["error"]["param"]) == ("invalid_value", "audio")
    assert session.client(append(0.2)) == []

    session.client(message())
    created = session.respond(output_modalities=["audio"])[0]
    assert created["response"]["output_modalities"] == ["text"]
    assert not session.turn.speaks


def without_tools() -> RealtimeGaConversation:
    """A session whose model calls no tools."""
    session = RealtimeGaConversation(catalogue=catalogue_of(voices={"amber"}))
    session.begin()
    return session


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_update_with_tools_for_a_model_without_is_accepted_as_a_whole(choice: str) -> None:
    session = without_tools()
    vad = {"type": "server_vad", "threshold": 0.7}
    audio = {"input": {"turn_detection": vad}, "output": {"voice": "amber"}}
    (updated,) = session.client(
        update(instructions="Be brief.", tools=[WEATHER], tool_choice=choice, audio=audio)
    )
    told_session = updated["session"]
    assert (told_session["instructions"], told_session["tools"]) == ("Be brief.", [])
    assert told_session["tool_choice"] == choice
    assert told_session["audio"]["output"]["voice"] == "amber"
    assert told_session["audio"]["input"]["turn_detection"]["threshold"] == 0.7
    assert session.notes == ["tools ignored: the model calls none, so session.tools stays empty"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_forced_choice_of_a_tool_is_refused_by_a_model_without(choice: Any) -> None:
    session = without_tools()
    forced = {"tools": [WEATHER], "tool_choice": choice}
    (of_session,) = session.client(update(**forced))
    (of_response,) = session.client({"type": "response.create", "response": forced})
    for answer, path in ((of_session, "session"), (of_response, "response")):
        assert answer["error"]["param"] == f"{path}.tool_choice"
        assert "calls no tools" in answer["error"]["message"]


def test_tools_that_no_model_could_call_are_refused_by_a_model_without() -> None:
    (answer,) = without_tools().client(update(tools=[WEATHER, WEATHER]))
    assert answer["error"]["param"] == "session.tools[1].name"


def test_model_without_tools_gets_neither_tools_nor_calls() -> None:
    session = without_tools()
    session.client(update(tools=[WEATHER]))
    session.client(message("Hello"))
    call = {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "call_1"}
    session.client({"type": "conversation.item.create", "item": call})
    session.client(output("call_1"))
    session.answer(tools=[WEATHER])
    assert session.turn.tools == ()
    assert [message.role for message in session.turn.messages] == ["system", "user"]


def test_an_update_that_says_nothing_changes_nothing() -> None:
    session = RealtimeGaConversation()
    told_session = session.begin()
    (updated,) = session.client({"type": "session.update", "session": MANUAL})
    assert updated["session"] == told_session
