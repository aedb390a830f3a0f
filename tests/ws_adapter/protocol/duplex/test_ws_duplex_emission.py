"""Tests of a unit's event on `/ws/duplex`: one flat `result`, in order, however the unit ended."""

import base64
from typing import Any

import pytest

from tests.ws_adapter.support.conversation import SPEECH, Event
from tests.ws_adapter.support.duplex_conversation import DuplexConversation, chunk, names
from tests.ws_adapter.support.tokens import tokens
from ws_adapter.protocol.core.signals import Finalized, Piece, Prefilled, Timings, UnitDone, UnitEnd

LISTEN: Event = {
    "type": "result",
    "is_listen": True,
    "text": "",
    "audio_data": None,
    "end_of_turn": False,
    "current_time": 1,
    "kv_cache_length": 101,
    "cost_llm_ms": 0,
    "cost_tts_prep_ms": 0,
    "cost_tts_ms": 0,
    "cost_token2wav_ms": 0,
    "cost_all_ms": 0,
    "prefill_ms": 0,
    "wall_clock_ms": 0,
    "n_tokens": 1,
    "n_tts_tokens": 0,
    "vision_slices": 0,
    "vision_tokens": 0,
    "server_send_ts": 0,
}


def active(**options: Any) -> DuplexConversation:
    talk = DuplexConversation(**options)
    talk.activate()
    return talk


@pytest.fixture
def talk() -> DuplexConversation:
    return active()


def test_prepared() -> None:
    prepared = {"type": "prepared", "prompt_length": 58, "session_id": "omni_k3f9"}
    assert DuplexConversation().activate() == prepared
    recorded = DuplexConversation(recording_id="omni_k3f9-2").activate()
    assert recorded == prepared | {"recording_session_id": "omni_k3f9-2"}


def test_fields_not_honoured_are_listed() -> None:
    ignored = ("duplex.listen_top_k", "voice.llm_reference", "voice.speech_reference")
    prepared = DuplexConversation().activate({"config": {"top_k": 5, "nonsense": 1}}, ignored_fields=ignored)
    assert prepared["unsupported_fields"] == [
        "config.nonsense",
        "config.listen_top_k",
        "ref_audio_base64",
        "tts_ref_audio_base64",
    ]


def test_listening_unit(talk: DuplexConversation) -> None:
    talk.client(chunk())
    assert talk.finish(1) == [LISTEN]


def test_speaking_unit(talk: DuplexConversation) -> None:
    talk.client(chunk())
    assert talk.worker(Prefilled(1, Timings(prefill=9.1), vision_slices=1)) == []
    assert talk.worker(Piece(1, "Se", SPEECH[:400]), Piece(1, "ven", SPEECH[400:])) == []
    counts = tokens(input_audio=10, input_vision=64, output_text=6, output_audio=25)
    timings = Timings(decode=41.0, speech=88.0, vocoder=35.5, total=170.0)
    events = talk.worker(UnitDone(1, UnitEnd.TURN, 168, counts, timings))

    assert len(events) == 1
    assert base64.b64decode(events[0]["audio_data"], validate=True) == SPEECH
    events[0]["audio_data"] = None
    spoken = {"is_listen": False, "text": "Seven", "end_of_turn": True, "kv_cache_length": 168}
    costs = {"cost_llm_ms": 41.0, "cost_tts_ms": 88.0, "cost_token2wav_ms": 35.5, "cost_all_ms": 164.5}
    seen = {"prefill_ms": 9.1, "n_tokens": 6, "n_tts_tokens": 25, "vision_slices": 1, "vision_tokens": 64}
    assert events[0] == LISTEN | spoken | costs | seen


def test_speech_without_samples_has_no_audio(talk: DuplexConversation) -> None:
    talk.client(chunk())
    result = talk.finish(1, UnitEnd.CHUNK, "Seven")[0]
    assert (result["is_listen"], result["text"], result["audio_data"]) == (False, "Seven", None)
    assert not result["end_of_turn"]


def test_results_come_in_input_order(talk: DuplexConversation) -> None:
    talk.client(chunk(2.0))
    assert talk.worker(UnitDone(2, UnitEnd.LISTEN, 120), Finalized(2)) == []
    results = talk.worker(UnitDone(1, UnitEnd.LISTEN, 110), Finalized(1))
    assert [(e["current_time"], e["kv_cache_length"]) for e in results] == [(1, 110), (2, 120)]


@pytest.mark.parametrize(("text", "told"), [("Seven", "speak"), ("", "listen")])
def test_context_full_comes_behind_the_result(talk: DuplexConversation, text: str, told: str) -> None:
    talk.client(chunk(2.0))
    events = talk.finish(1, UnitEnd.CONTEXT_FULL, text)
    assert names(events) == [told, "stopped"]
    assert events[-1] == {"type": "stopped", "session_id": "omni_k3f9", "reason": "context_full"}
    assert talk.close_code == 1000


def test_dropped_units_are_answered_in_their_place(talk: DuplexConversation) -> None:
    """Two units are at the worker, and four more wait, the oldest of them too long."""
    for _ in range(6):
        talk.client(chunk())
        talk.wait(1)
    results = [*talk.finish(1), *talk.finish(2)]
    assert [result.get("dropped") for result in results] == [None, None, True]
    assert results[-1].keys() == LISTEN.keys() | {"dropped", "dropped_total"}
    assert results[-1]["dropped_total"] == 1
    assert [result["current_time"] for result in results] == [1, 2, 3]
    lengths = [result["kv_cache_length"] for result in [*results, *talk.finish(3)]]
    assert lengths == sorted(lengths)
    assert 0 not in lengths


def test_interrupt_ends_a_response_at_the_next_unit(talk: DuplexConversation) -> None:
    talk.client(chunk())
    talk.speak(1)
    talk.client({"type": "interrupt"})
    talk.client(chunk(2.0))
    assert [run.force_listen for run in talk.runs] == [False, True, False]
    assert names([*talk.finish(2), *talk.speak(3)]) == ["listen", "speak"]
    assert talk.cancelled == []


def test_interrupt_reaches_the_unit_that_waits_longest(talk: DuplexConversation) -> None:
    talk.client(chunk(4.0))
    talk.client({"type": "interrupt"})
    talk.finish(1)
    talk.finish(2)
    assert [run.force_listen for run in talk.runs] == [False, False, True, False]
