"""Tests of the probe's rules: a changed event in a valid exchange is reported."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from antiphon_command.probe.chat import Chat
from antiphon_command.probe.duplex import Duplex
from antiphon_command.probe.earlier import Earlier
from antiphon_command.probe.realtime import Realtime
from antiphon_command.probe.realtime_ga import RealtimeGa
from antiphon_command.probe.rules import Event, Rules
from antiphon_command.probe.transcription import Transcription

SECOND = base64.b64encode(np.zeros(24_000, "<f4").tobytes()).decode()
SHORT = base64.b64encode(np.zeros(480, "<f4").tobytes()).decode()
LOUD = base64.b64encode(np.full(480, 2, "<f4").tobytes()).decode()
NO_NUMBER = base64.b64encode(np.full(480, np.nan, "<f4").tobytes()).decode()
PLACE = {"position": 1, "estimated_wait_s": 2.0, "ticket_id": "ticket_5f0c9a17be42", "queue_length": 2}


@dataclass(frozen=True)
class Exchange:
    """A dialect, and a whole exchange in it that keeps the rules."""

    make: Callable[[], Rules]
    events: list[Event]
    units: int = 6
    code: int = 1000

    def violations(self, *, code: int | None = None) -> list[str]:
        """Return the violations found."""
        rules = self.make()
        for _ in range(self.units):
            rules.append(bytes(64_000))
        found = [text for event in self.events for text in rules.received(event)]
        return found + list(rules.finished(self.code if code is None else code))

    def changed(self, index: int, **fields: Any) -> "Exchange":
        """Return a copy with one event changed; `...` removes a field."""
        events = [dict(event) for event in self.events]
        events[index].update(fields)
        events[index] = {name: value for name, value in events[index].items() if value is not ...}
        return Exchange(self.make, events, self.units, self.code)

    def without(self, index: int) -> "Exchange":
        """Return a copy without one event."""
        return Exchange(self.make, self.events[:index] + self.events[index + 1 :], self.units, self.code)

    def twice(self, index: int) -> "Exchange":
        """Return a copy with one event sent twice."""
        events = self.events[: index + 1] + self.events[index:]
        return Exchange(self.make, events, self.units, self.code)


def delta(kind: str, unit: int, **more: Any) -> Event:
    event = {"type": "response.output.delta", "kind": kind, "session_id": "sess_31d0c7aa54ef"}
    return event | {"input_id": f"probe-{unit}", "metrics": {}} | more


def usage(total: int) -> Event:
    return {"total_tokens": total, "input_tokens": total, "output_tokens": 0}


REALTIME = Exchange(
    lambda: Realtime("audio"),
    [
        {"type": "session.queued", **PLACE},
        {"type": "session.queue_update", **PLACE},
        {"type": "session.queue_done"},
        {
            "type": "session.created", "session_id": "sess_31d0c7aa54ef", "mode": "full_duplex",
            "metrics": {}, "usage": usage(58),
        },
        delta("listen", 1, chunk_index=0, usage=usage(12), server_send_ts=1.0),
        delta(
            "text", 2, chunk_index=1, usage=usage(24), response_id="resp_1", text="Seven", server_send_ts=2.0,
            metrics={"kv_cache_length": 24, "wall_clock_ms": 31.0},
        ),
        delta(
            "audio", 2, response_id="resp_1", audio=SECOND,
            metrics={"kv_cache_length": 24, "wall_clock_ms": 31.5},
        ),
        delta("audio", 3, chunk_index=2, response_id="resp_1", audio=SHORT),
        delta("listen", 3, response_id="resp_1", reason="turn_end"),
        delta("audio", 4, chunk_index=3, response_id="resp_2", audio=SHORT),
        delta("listen", 4, response_id="resp_2", reason="turn_end"),
        {"type": "session.closed", "session_id": "sess_31d0c7aa54ef", "reason": "user_stop"},
    ],
)  # fmt: skip
ERROR = {"code": "inference_error", "message": "failed", "type": "server_error"}


def speech(unit: int, **more: Any) -> Event:
    event = {"type": "response.output_audio.delta", "text": "", "audio": SECOND, "end_of_turn": False}
    ids = {"response_id": "resp_1", "input_id": f"probe-{unit}"}
    return event | ids | {"kv_cache_length": 20, "metrics": {}} | more


EARLIER = Exchange(
    lambda: Earlier("audio"),
    [
        {"type": "session.queue_done"},
        {"type": "session.created", "session_id": "rt_1795159650250", "prompt_length": 58},
        {"type": "response.listen", "kv_cache_length": 12, "input_id": "probe-1", "metrics": {}},
        speech(2, audio=SHORT),
        speech(3),
        speech(4, audio=SHORT, end_of_turn=True),
        {"type": "session.closed", "reason": "stopped", "session_id": "rt_1795159650250"},
    ],
)
METRICS = dict.fromkeys(
    "kv_cache_length cost_llm_ms cost_tts_prep_ms cost_tts_ms cost_token2wav_ms cost_all_ms prefill_ms "
    "wall_clock_ms n_tokens n_tts_tokens vision_slices vision_tokens server_send_ts".split(),
    1.0,
)


def result(count: int, **more: Any) -> Event:
    event = {"type": "result", "is_listen": True, "text": "", "audio_data": None, "end_of_turn": False}
    return event | {"current_time": count} | METRICS | more


DUPLEX = Exchange(
    lambda: Duplex("audio"),
    [
        {"type": "queued", **PLACE, "eta_seconds": 2.0},
        {"type": "queue_done"},
        {"type": "prepared", "prompt_length": 58, "session_id": "adx_probe"},
        result(1),
        result(2, is_listen=False, text="Seven", audio_data=SECOND, end_of_turn=True),
        {"type": "stopped", "session_id": "adx_probe", "reason": "user_stop"},
    ],
)
CHAT = Exchange(
    Chat,
    [
        {"type": "prefill_done", "input_tokens": 27},
        {"type": "chunk", "text_delta": "Sev", "audio_data": None},
        {"type": "chunk", "text_delta": "en.", "audio_data": SHORT},
        {
            "type": "done", "text": "Seven.", "generated_tokens": 4, "input_tokens": 27, "audio_data": None,
            "recording_session_id": None,
        },
    ],
    units=0,
)  # fmt: skip
COUNTS = {"prompt_tokens": 39, "total_tokens": 41, "completion_tokens": 2}
DETAILS = {"prompt_tokens_details": None, "completion_tokens_details": None}
TRANSCRIPTION = Exchange(
    lambda: Transcription("antiphon-mini"),
    [
        {"type": "session.created", "id": "sess-0b6d2f3e9a7c4d51b8e0f1a2c3d4e5f6", "created": 1795159650},
        {"type": "transcription.delta", "delta": " good"},
        {"type": "transcription.delta", "delta": " morning"},
        {"type": "transcription.done", "text": " good morning", "usage": COUNTS | DETAILS},
    ],
)
SAID = {"response_id": "resp_1", "item_id": "item_2", "output_index": 0, "content_index": 0}
PCM = base64.b64encode(bytes(480)).decode()


def numbered(*events: Event) -> list[Event]:
    return [{"event_id": f"event_{number}", **event} for number, event in enumerate(events)]


def session(turn_detection: Event | None) -> Event:
    audio = {"input": {"turn_detection": turn_detection}}
    return {"id": "sess_1", "model": "antiphon-mini", "output_modalities": ["audio"], "audio": audio}


def response(**more: Any) -> Event:
    fields = {"id": "resp_1", "object": "realtime.response", "status": "in_progress", "usage": None}
    empty = {"status_details": None, "output": [], "metadata": None, "conversation_id": "conv_1"}
    how = {"output_modalities": ["audio"], "max_output_tokens": "inf", "audio": {}}
    return {"response": fields | empty | how | more}


def item(item_id: str, role: str, *content: Event) -> Event:
    return {"item": {"id": item_id, "type": "message", "role": role, "content": list(content)}}


HEARD = item("item_1", "user", {"type": "input_audio", "transcript": None})
TOKENS = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}
REALTIME_GA = Exchange(
    lambda: RealtimeGa("antiphon-mini"),
    numbered(
        {"type": "session.created", "session": session({"type": "server_vad", "interrupt_response": True})},
        {"type": "session.updated", "session": session(None)},
        {"type": "input_audio_buffer.committed", "item_id": "item_1", "previous_item_id": None},
        {"type": "conversation.item.added", "previous_item_id": None, **HEARD},
        {"type": "conversation.item.done", "previous_item_id": None, **HEARD},
        {"type": "response.created", **response()},
        {"type": "response.output_item.added", **item("item_2", "assistant")},
        {"type": "conversation.item.added", **item("item_2", "assistant")},
        {"type": "response.content_part.added", "part": {"type": "audio", "transcript": ""}, **SAID},
        {"type": "response.output_audio_transcript.delta", "delta": "Seven", **SAID},
        {"type": "response.output_audio.delta", "delta": PCM, **SAID},
        {"type": "response.output_audio.done", **SAID},
        {"type": "response.output_audio_transcript.done", "transcript": "Seven", **SAID},
        {"type": "response.content_part.done", "part": {"type": "audio", "transcript": "Seven"}, **SAID},
        {"type": "conversation.item.done", **item("item_2", "assistant")},
        {"type": "response.output_item.done", **item("item_2", "assistant")},
        {"type": "response.done", **response(status="completed", usage=TOKENS)},
    ),
)
WRONG_SUM = {"total_tokens": 1}
FALSE_USAGE = response(status="completed", usage=TOKENS | WRONG_SUM)
UNWRITTEN = item("item_1", "user", {"type": "input_audio"})
ALL = {
    "current": REALTIME,
    "earlier": EARLIER,
    "duplex": DUPLEX,
    "chat": CHAT,
    "transcription": TRANSCRIPTION,
    "realtime": REALTIME_GA,
}


@pytest.mark.parametrize("exchange", ALL.values(), ids=ALL)
def test_valid_exchange_passes_and_changed_end_or_event_is_reported(exchange: Exchange) -> None:
    last = len(exchange.events) - 1

    assert exchange.violations() == []
    assert exchange.violations(code=1011) == ["the close code is 1011, not 1000"]
    (without_its_last_event,) = exchange.without(last).violations()
    assert "closed" in without_its_last_event
    assert any("after" in text for text in exchange.twice(last).violations())
    assert "unknown event surprise" in exchange.changed(-2, type="surprise").violations()


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (REALTIME.without(0), "queue_update without queued before it"),
        (REALTIME.changed(0, position=0), "position is 0, not a number from 1"),
        (REALTIME.changed(0, queue_length=0), "queue_length is 0, less than the position 1"),
        (REALTIME.changed(0, estimated_wait_s="soon"), "estimated_wait_s is no number"),
        (REALTIME.changed(0, estimate_is_guess="yes"), "estimate_is_guess is neither true nor false"),
        (REALTIME.changed(0, ticket_id=...), "ticket_id is no text"),
        (REALTIME.twice(0), "queued came twice"),
        (REALTIME.twice(2), "session.queue_done after session.queue_done"),
        (REALTIME.without(2), "session.created before session.queue_done"),
        (REALTIME.without(3), "output before session.created"),
        (REALTIME.changed(3, mode="turn_based"), "mode is 'turn_based', not full_duplex"),
        (REALTIME.changed(4, session_id="sess_other"), "session_id has changed"),
        (REALTIME.changed(4, input_id="probe-9"), "input_id 'probe-9' was never sent"),
        (REALTIME.changed(4, metrics=...), "response.output.delta has no metrics"),
        (REALTIME.changed(3, usage=...), "session.created has no usage"),
        (REALTIME.changed(6, metrics={}), "metrics differ within a unit: "),
        (REALTIME.changed(4, chunk_index=1), "chunk_index is 1, not 0"),
        (REALTIME.changed(6, chunk_usage=usage(1)), "chunk_usage without chunk_index: "),
        (REALTIME.changed(5, usage=usage(11)), "usage goes down"),
        (REALTIME.changed(5, server_send_ts=0.5), "server_send_ts decreases"),
        (REALTIME.changed(5, text=...), "kind is 'text', but it carries nothing"),
        (REALTIME.changed(5, audio=SHORT), "kind is 'text', but it carries text and audio"),
        (REALTIME.changed(5, text=None), "text is null; a field without a value is left out"),
        (REALTIME.changed(6, audio="AAA"), "audio is not base64"),
        (REALTIME.changed(6, audio="AAAA"), "audio has 3 bytes, no multiple of 4"),
        (REALTIME.changed(6, audio=LOUD), "audio goes beyond -1 to 1"),
        (REALTIME.changed(6, audio=NO_NUMBER), "audio holds values that are not numbers"),
        (REALTIME.changed(6, response_id=...), "output without response_id"),
        (REALTIME.changed(7, response_id="resp_3"), "resp_3 begins before resp_1 has ended"),
        (REALTIME.changed(9, response_id="resp_1"), "resp_1 goes on after its end"),
        (REALTIME.changed(8, reason=...), "a listen inside an open turn without an interruption: "),
        (REALTIME.changed(8, response_id="resp_0"), "a turn ends that was not open"),
        (REALTIME.changed(4, type="error", error=ERROR), "an error that the client did not cause: "),
        (REALTIME.changed(4, type="error", error="failed"), "error is no object"),
        (EARLIER.changed(1, session_id="sess_1"), "session_id does not begin with rt_"),
        (EARLIER.changed(2, kv_cache_length=...), "response.listen has no kv_cache_length"),
        (EARLIER.changed(4, audio=SHORT), "a delta inside a turn held less than a second"),
        (EARLIER.changed(5, response_id="resp_2"), "a response begins before resp_1 has ended"),
        (EARLIER.changed(3, text=None), "text is 'None', which has the wrong type"),
        (EARLIER.changed(6, reason="user_stop"), "reason is 'user_stop', not stopped"),
        (DUPLEX.changed(0, eta_seconds=1.0), "eta_seconds is not estimated_wait_s"),
        (DUPLEX.without(1), "prepared before queue_done"),
        (DUPLEX.without(2), "result before prepared"),
        (DUPLEX.changed(4, current_time=3), "current_time is 3, not 2"),
        (DUPLEX.changed(3, text="Hm"), "a listening result has text or audio"),
        (DUPLEX.changed(3, audio_data=...), "result has no audio_data"),
        (DUPLEX.changed(3, n_tokens=...), "result has no n_tokens"),
        (DUPLEX.changed(5, type="timeout", reason="Idle timeout (60.0s)"), "the server did not wait: "),
        (CHAT.without(0), "chunk before prefill_done"),
        (CHAT.twice(0), "prefill_done came twice"),
        (CHAT.changed(1, text_delta="Elev"), "the joined chunks are not the text of done"),
        (CHAT.changed(1, audio_data=...), "chunk has no audio_data"),
        (CHAT.changed(3, audio_data=SHORT), "done carries audio although it was streamed: "),
        (CHAT.changed(3, input_tokens=28), "done and prefill_done have different input_tokens"),
        (CHAT.changed(3, recording_session_id=...), "done has no recording_session_id"),
        (TRANSCRIPTION.without(0), "transcription.delta before session.created"),
        (TRANSCRIPTION.twice(0), "session.created came twice"),
        (TRANSCRIPTION.changed(0, id="sess_1"), "id is 'sess_1', not sess- and 32 hexadecimal digits"),
        (TRANSCRIPTION.changed(1, delta=""), "an empty delta"),
        (TRANSCRIPTION.changed(2, delta=" evening"), "the joined deltas are not the text of "),
        (
            TRANSCRIPTION.changed(3, usage=COUNTS),
            "usage has no prompt_tokens_details; it must be there, as null",
        ),
        (TRANSCRIPTION.changed(3, usage=DETAILS), "usage lacks one of prompt_tokens, "),
        (TRANSCRIPTION.changed(3, usage=COUNTS | DETAILS | WRONG_SUM), "total_tokens is not the sum "),
        (REALTIME_GA.without(0), "session.updated before session.created"),
        (REALTIME_GA.changed(1, event_id="event_0"), "event_id event_0 came before"),
        (REALTIME_GA.changed(0, session=session({"type": "server_vad"})), "turn_detection has no boolean "),
        (REALTIME_GA.changed(1, session=session({"type": "server_vad"})), "turn_detection is {"),
        (REALTIME_GA.changed(3, **item("item_9", "user", {"transcript": None})), "the item is item_9, but "),
        (
            REALTIME_GA.changed(3, **UNWRITTEN),
            "a part of input_audio has no transcript; it must be there",
        ),
        (REALTIME_GA.without(6), "conversation.item.added came instead of response.output_item.added"),
        (REALTIME_GA.without(8), "response.output_audio_transcript.delta outside its part"),
        (REALTIME_GA.changed(9, delta="Eight"), "the joined deltas are not the transcript"),
        (REALTIME_GA.changed(9, item_id="item_1"), "item_id is item_1, not item_2"),
        (REALTIME_GA.changed(10, delta="AAAA"), "delta has 3 bytes, not whole samples"),
        (REALTIME_GA.changed(10, delta="A"), "delta is no base64"),
        (REALTIME_GA.changed(13, part={"type": "audio", "text": None}), "text is null; a field without a "),
        (REALTIME_GA.changed(15, type="conversation.item.created"), "unknown event conversation.item."),
        (REALTIME_GA.changed(16, response={"id": "resp_1"}), "the response of response.done has no status_"),
        (REALTIME_GA.changed(16, **response(id="resp_2")), "the response is resp_2, not resp_1"),
        (REALTIME_GA.changed(16, **response(status="failed")), "the response is failed: "),
        (REALTIME_GA.changed(16, **FALSE_USAGE), "total_tokens is not the sum of the others: "),
        (REALTIME_GA.changed(2, type="error", error=ERROR), "an error that the client did not cause: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_exchange_with_one_changed_event_reports_the_violation(wrong: Exchange, found: str) -> None:
    assert any(text.startswith(found) for text in wrong.violations()), wrong.violations()


def test_more_answers_than_units_are_reported() -> None:
    few = Exchange(EARLIER.make, EARLIER.events, units=3)
    assert few.violations() == ["answer 4 to 3 units"]
    one = Exchange(DUPLEX.make, DUPLEX.events, units=1)
    assert one.violations() == ["result 2 of 1 units"]


def test_binary_or_oversized_frame_is_reported() -> None:
    rules = REALTIME.make()
    assert list(rules.frame("{}")) == []
    assert list(rules.frame(b"{}")) == ["a binary frame came; every event is text"]
    assert list(rules.frame("x" * (16 * 2**20 + 1))) == ["a frame has 16777217 bytes, more than 16777216"]
