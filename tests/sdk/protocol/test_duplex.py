"""The dialect: JSON in, typed events out, and back."""

import json
from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon.audio.samples import to_base64
from antiphon.protocol.duplex import Assigned, Decoder, append, check_mode, close, init


def decode(*events: dict[str, object]) -> list[object]:
    decoder = Decoder()
    return [decoder.decode(json.dumps(event)) for event in events]


def delta(kind: str, **fields: object) -> dict[str, object]:
    return {"type": "response.output.delta", "kind": kind, "session_id": "sess_1", "metrics": {}, **fields}


def test_init_carries_only_given_options() -> None:
    assert json.loads(init(None, None, None)) == {"type": "session.init", "payload": {}}
    assert json.loads(init("Be brief.", {"length_penalty": 1.2}, 7)) == {
        "type": "session.init",
        "payload": {"system_prompt": "Be brief.", "config": {"length_penalty": 1.2}, "seed": 7},
    }


def test_init_with_a_voice_carries_its_audio_or_its_id() -> None:
    samples = np.full(8000, 0.5, np.float32)
    spoken = json.loads(init(None, None, None, antiphon.Clip(samples)))["payload"]
    named = json.loads(init(None, None, None, "amber"))["payload"]
    assert spoken == {"voice": {"ref_audio_base64": to_base64(samples)}}
    assert named == {"voice": {"ref_audio_path": "amber"}}
    with pytest.raises(antiphon.AudioError, match="have 16000 Hz, not 24000"):
        init(None, None, None, antiphon.Clip(np.zeros(24_000, np.float32), 24_000))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"instructions": 5}, "instructions"),
        ({"instructions": "x" * 32_769}, "instructions"),
        ({"settings": ["top_k"]}, "settings"),
        ({"settings": {1: 2}}, "settings"),
        ({"settings": {"top_p": object()}}, "settings"),
        ({"settings": {"top_p": float("nan")}}, "settings"),
        ({"seed": True}, "seed"),
        ({"voice": b"RIFF"}, "voice"),
        ({"voice": ""}, "voice"),
    ],
)
def test_init_argument_of_another_type_is_refused_by_name(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(antiphon.ProtocolError, match=f"`{name}` of a conversation: expected") as refused:
        init(**{"instructions": None, "settings": None, "seed": None, **arguments})
    assert (refused.value.reason, refused.value.param) == ("invalid_argument", name)
    assert len(str(refused.value)) < 350


@pytest.mark.parametrize("mode", ["chat", "", None, 1, ["audio"]])
def test_unknown_mode_is_refused(mode: object) -> None:
    with pytest.raises(antiphon.ProtocolError, match='`mode` of a conversation: expected "audio" or "video"'):
        check_mode(mode)


def test_append_and_close_carry_their_arguments() -> None:
    samples = np.array([0.5, -0.5], np.float32)
    heard = append(samples, "in-1", force_listen=False)
    seen = append(samples, "in-1", force_listen=False, frames=["AAAA"])
    silent = append(None, "in-1", force_listen=True)
    audio = {"input_id": "in-1", "audio": to_base64(samples)}
    assert json.loads(heard) == {"type": "input.append", "input": audio}
    assert json.loads(seen)["input"] == {**audio, "video_frames": ["AAAA"]}
    assert json.loads(silent)["input"] == {"input_id": "in-1", "force_listen": True}
    assert json.loads(close("done")) == {"type": "session.close", "reason": "done"}


def test_speaking_unit_and_end_of_turn() -> None:
    samples = np.array([0.25], np.float32)
    same = {"response_id": "resp_1", "input_id": "in-8"}
    text, audio, end = decode(
        delta("text", text="Seven", chunk_index=7, metrics={"kv_cache_length": 168}, **same),
        delta("audio", audio=to_base64(samples), **same),
        delta("listen", reason="turn_end", **same),
    )
    assert text == antiphon.TextDelta("Seven", "resp_1", 7, "in-8", {"kv_cache_length": 168})
    assert isinstance(audio, antiphon.AudioDelta)
    assert audio.samples.tolist() == [0.25]
    assert end == antiphon.TurnEnd("resp_1", None, "in-8")


def test_listen_inside_an_open_response_is_an_interruption() -> None:
    events = decode(
        delta("text", text="Sev", response_id="resp_1"),
        delta("listen", response_id="resp_1", chunk_index=8),
        delta("listen", chunk_index=9),
    )
    assert events[1:] == [antiphon.Interrupted("resp_1", 8, None), antiphon.Listening(9, None)]


PLACE: dict[str, object] = {
    "position": 2,
    "estimated_wait_s": 35.0,
    "ticket_id": "ticket_1",
    "queue_length": 3,
}
CREATED: dict[str, object] = {"session_id": "sess_1", "mode": "full_duplex", "metrics": {"prompt_length": 58}}
FAULT = {"code": "invalid_payload", "message": "too long", "param": "input.audio", "input_id": "in-3"}


@pytest.mark.parametrize(
    ("event", "decoded"),
    [
        ({"type": "session.queued", **PLACE}, antiphon.Queued(2, 3, 35.0, "ticket_1")),
        (
            {"type": "session.queue_update", **PLACE, "estimate_is_guess": True},
            antiphon.Queued(2, 3, 35.0, "ticket_1", estimate_is_guess=True),
        ),
        ({"type": "session.queue_done"}, Assigned()),
        (
            {"type": "session.created", **CREATED, "unsupported_fields": ["payload.config.listen_top_k"]},
            antiphon.Created("sess_1", "full_duplex", 58, ("payload.config.listen_top_k",)),
        ),
        (
            delta("listen", input_id="in-7", chunk_index=6, metrics={"kv_cache_length": 149}),
            antiphon.Listening(6, "in-7", False, {"kv_cache_length": 149}),
        ),
        (
            delta("listen", metrics={"dropped": True, "dropped_total": 1}),
            antiphon.Listening(None, None, True, {"dropped": True, "dropped_total": 1}),
        ),
        (
            {"type": "error", "error": {**FAULT, "type": "client_error"}},
            antiphon.ErrorEvent("invalid_payload", "too long", "input.audio", "in-3", False),
        ),
        (
            {
                "type": "session.closed",
                "reason": "backend_error",
                "diagnostic": {"message": "worker lost", "trace_id": "4bf92f"},
            },
            antiphon.Closed("backend_error", "worker lost", "4bf92f"),
        ),
    ],
)
def test_event_of_the_server_is_decoded(event: dict[str, object], decoded: object) -> None:
    assert decode(event) == [decoded]


@pytest.mark.parametrize(
    "event", [{"type": "session.poem"}, {}, delta("video"), {"type": "response.output.delta"}]
)
def test_unknown_event_of_newer_server_is_skipped(event: dict[str, object]) -> None:
    assert decode(event) == [None]


@pytest.mark.parametrize(
    "frame",
    [
        b"binary",
        "no json",
        "[]",
        '"text"',
        '{"type": 7}',
        '{"type":"session.created","session_id":7}',
        '{"type":"session.created","unsupported_fields":[1]}',
        '{"type":"session.queued","position":"first"}',
        '{"type":"session.queued","estimated_wait_s":true}',
        '{"type":"response.output.delta","kind":"text","metrics":[]}',
        '{"type":"response.output.delta","kind":"audio","audio":"%%%"}',
        '{"type":"error","error":"what"}',
    ],
)
def test_malformed_frame_raises_protocol_error(frame: str | bytes) -> None:
    with pytest.raises(antiphon.ProtocolError):
        Decoder().decode(frame)
