"""Tests of the events of a unit: the nine emission rules and the shape of every event."""

import base64

import numpy as np
import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.conversation import SPEECH, Conversation, Event, active, append, codes, kinds
from tests.ws_adapter.support.tokens import tokens
from ws_adapter.protocol.core.signals import Piece, Prefilled, Timings, UnitDone, UnitEnd


@pytest.fixture
def talk() -> Conversation:
    return active()


def samples_of(event: Event) -> np.ndarray:
    return np.frombuffer(base64.b64decode(event["audio"], validate=True), "<f4")


def test_session_created() -> None:
    counts = {"text_tokens": 58, "audio_tokens": 0, "vision_tokens": 0, "cached_tokens": 0}
    assert Conversation().activate() == {
        "type": "session.created",
        "session_id": "sess_0123456789ab",
        "mode": "full_duplex",
        "metrics": {"prompt_length": 58, "n_past_max": 8192},
        "usage": {
            "total_tokens": 58,
            "input_tokens": 58,
            "output_tokens": 0,
            "input_token_details": counts,
            "output_token_details": {"text_tokens": 0, "audio_tokens": 0},
        },
    }


def test_fields_not_honoured_are_listed() -> None:
    payload = {"config": {"top_k": 5, "nonsense": 1}, "tools": [{"name": "x"}]}

    created = Conversation().activate(
        payload, ignored_fields=("duplex.listen_top_k", "voice.llm_reference", "seed")
    )

    assert created["unsupported_fields"] == [
        "config.nonsense",
        "tools",
        "config.listen_top_k",
        "voice.ref_audio_base64",
        "seed",
    ]


def test_unit_is_rendered_when_it_is_done_and_one_kind_per_frame(talk: Conversation) -> None:
    talk.client(append())
    assert talk.worker(Piece(1, "Se", SPEECH[:400]), Piece(1, "ven", SPEECH[400:])) == []
    events = talk.worker(UnitDone(1, UnitEnd.CHUNK, 200))
    assert kinds(events) == ["text", "audio"]
    assert events[0]["text"] == "Seven"
    assert samples_of(events[1]).tobytes() == SPEECH
    assert [("text" in e) + ("audio" in e) for e in events] == [1, 1]


def test_listening_unit_is_one_listen(talk: Conversation) -> None:
    talk.client(append(input_id="in-7"))
    events = talk.finish(1)
    assert kinds(events) == ["listen"]
    assert events[0]["session_id"] == "sess_0123456789ab"
    assert events[0]["input_id"] == "in-7"
    assert "response_id" not in events[0]
    assert "reason" not in events[0]


def test_speaking_unit_without_text_or_samples_sends_audio_all_the_same(talk: Conversation) -> None:
    talk.client(append(2.0))
    assert kinds(talk.speak(1, text="")) == ["audio"]
    events = talk.finish(2, UnitEnd.CHUNK, "Seven")
    assert kinds(events) == ["text", "audio"]
    assert samples_of(events[1]).tolist() == [0.0] * 480


@pytest.mark.parametrize("text", ["Seven", ""])
def test_without_audio_output_each_speaking_unit_sends_one_text(text: str) -> None:
    talk = Conversation(silence_tail_units=0)
    talk.activate({"use_tts": False}, generate_audio=False)
    talk.client(append())
    events = talk.finish(1, UnitEnd.CHUNK, text)
    assert [(event["kind"], event["text"]) for event in events] == [("text", text)]


def test_end_of_turn_adds_a_listen_and_closes_the_response(talk: Conversation) -> None:
    talk.client(append(4.0))
    turn = [*talk.speak(1), *talk.speak(2, end=UnitEnd.TURN)]
    assert kinds(turn) == ["text", "audio", "text", "audio", "listen"]
    assert turn[4]["reason"] == "turn_end"
    assert len({e["response_id"] for e in turn}) == 1
    assert turn[0]["response_id"].startswith("resp_")
    assert "response_id" not in talk.finish(3)[0]
    assert talk.speak(4)[0]["response_id"] != turn[0]["response_id"]


def test_every_event_of_a_unit_has_its_metrics_and_the_first_its_tokens(talk: Conversation) -> None:
    talk.client(append(2.0))
    talk.finish(1)
    first, *rest = talk.speak(2, end=UnitEnd.TURN)
    assert first["chunk_index"] == 1
    assert first["chunk_usage"]["total_tokens"] == 11
    assert first["usage"]["total_tokens"] == 58 + 22
    assert first["metrics"]["kv_cache_length"] == 102
    for event in rest:
        assert event["metrics"] == first["metrics"]
        assert not {"chunk_index", "usage", "chunk_usage"} & event.keys()


def test_usage_and_metrics_of_a_unit(talk: Conversation) -> None:
    talk.client(append())
    talk.worker(Prefilled(1, Timings(prefill=9.1)))
    counts = tokens(input_text=2, input_audio=10, cached=3, output_text=1)
    timings = Timings(queue=0.5, decode=12.0, total=21.0)
    event = talk.worker(UnitDone(1, UnitEnd.LISTEN, 149, counts, timings))[0]

    assert event["chunk_usage"] == {
        "total_tokens": 13,
        "input_tokens": 12,
        "output_tokens": 1,
        "input_token_details": {"text_tokens": 2, "audio_tokens": 10, "vision_tokens": 0, "cached_tokens": 3},
        "output_token_details": {"text_tokens": 1, "audio_tokens": 0},
    }
    assert event["metrics"] == {
        "kv_cache_length": 149,
        "n_past_max": 8192,
        "queue_ms": 0.5,
        "prefill_ms": 9.1,
        "generate_ms": 21.0,
        "cost_llm_ms": 12.0,
        "n_tokens": 1,
        "n_tts_tokens": 0,
    }


def test_input_id_is_that_of_the_append_that_completed_the_unit(talk: Conversation) -> None:
    talk.client(append(0.5, input_id="a"))
    talk.client(append(0.5, input_id="b"))
    talk.client(append(2.0, input_id="c"))
    talk.client(append())
    ids = [talk.finish(unit)[0]["input_id"] for unit in (1, 2, 3, 4)]
    assert ids[:3] == ["b", "c", "c"]
    assert ids[3].startswith("input_")


def test_failed_unit_is_an_error_and_a_listen(talk: Conversation) -> None:
    talk.client(append(2.0, input_id="in-1"))
    opened = talk.speak(1)[0]["response_id"]
    events = talk.finish(2, UnitEnd.FAILED, "half a wo", failure=Reason.INFERENCE_FAILED)
    assert kinds(events) == ["error:inference_error", "listen"]
    assert events[0]["error"]["type"] == "server_error"
    assert events[0]["error"]["input_id"] == "in-1"
    assert events[1]["response_id"] == opened
    assert talk.dialect.is_over is False


def test_input_refused_by_the_worker_is_the_clients_fault(talk: Conversation) -> None:
    reasons = [
        Reason.AUDIO_INVALID,
        Reason.IMAGE_INVALID,
        Reason.PARAMS_INVALID,
        Reason.CONTENT_UNSUPPORTED,
        Reason.INPUT_TOO_LONG,
    ]
    talk.client(append(5.0))
    for unit, reason in enumerate(reasons, 1):
        assert kinds(talk.finish(unit, UnitEnd.FAILED, failure=reason)) == ["error:invalid_payload", "listen"]
    assert talk.dialect.is_over is False


def test_three_failures_in_a_row_end_the_session(talk: Conversation) -> None:
    talk.client(append(8.0))
    for unit in (1, 2, 4, 5):
        talk.finish(unit, UnitEnd.FAILED, failure=Reason.INFERENCE_FAILED)
        if unit == 2:
            talk.finish(3)
    assert talk.dialect.is_over is False
    events = talk.finish(6, UnitEnd.FAILED, failure=Reason.INFERENCE_FAILED)
    assert kinds(events) == ["error:inference_error", "listen", "session.closed"]
    assert events[-1]["reason"] == "backend_error"
    assert talk.close_code == 1011


def test_session_closed_answers_everything_that_was_open(talk: Conversation) -> None:
    talk.client(append(4.0))
    talk.client({"type": "session.close"})
    talk.finish(1)
    assert [e["type"] for e in talk.sent].index("session.closed") == len(talk.sent) - 1


@pytest.mark.parametrize(
    ("text", "audio", "told"),
    [
        ("Seven", SPEECH, ["text", "audio"]),
        ("Seven", b"", ["text", "audio"]),
        ("", SPEECH, ["audio"]),
        ("", b"", ["listen"]),
    ],
)
def test_full_context_ends_the_session_behind_the_units_events(
    talk: Conversation, text: str, audio: bytes, told: list[str]
) -> None:
    talk.client(append(3.0))
    events = talk.finish(1, UnitEnd.CONTEXT_FULL, text, audio)
    assert kinds(events) == [*told, "session.closed"]
    assert events[-1]["reason"] == "context_full"
    assert talk.close_code == 1000


@pytest.mark.parametrize(("limit", "length"), [(8192, 8192), (0, 10**6)])
def test_context_that_rolls_at_its_limit_or_has_none_goes_on(limit: int, length: int) -> None:
    talk = Conversation(silence_tail_units=0)
    created = talk.activate(context_limit=limit)
    assert created["metrics"].get("n_past_max", 0) == limit
    talk.client(append(2.0))
    for unit in (1, 2):
        assert kinds(talk.finish(unit, context_tokens=length)) == ["listen"]


def test_units_wait_while_the_client_does_not_read(talk: Conversation) -> None:
    talk.do(talk.dialect.congested(True, talk.now))
    talk.client(append(2.0))
    assert talk.runs == []
    talk.do(talk.dialect.congested(False, talk.now))
    assert [run.unit for run in talk.runs] == [1, 2]


def test_errors_of_units_are_limited_too(talk: Conversation) -> None:
    talk.client(append(30.0))
    for unit in range(1, 22):
        talk.finish(unit, UnitEnd.FAILED, failure=Reason.AUDIO_INVALID)
    assert codes(talk.sent) == ["invalid_payload"] * 20 + ["rate_limited"]
    assert talk.sent[-1]["error"]["code"] == "rate_limited"


def test_errors_spread_over_time_are_not_limited(talk: Conversation) -> None:
    for _ in range(60):
        talk.client({"type": "nonsense"})
        talk.wait(0.06)
    assert talk.closed is None


def test_events_are_limited(talk: Conversation) -> None:
    talk.wait(5)
    short = append(0.001)
    for _ in range(1000):
        talk.client(short)
    assert talk.closed is None
    assert codes(talk.client(short)) == ["rate_limited"]
    assert talk.close_code == 1008
