"""Rules of `/v1/realtime?model=`: OpenAI's protocol of turns, items and responses."""

import base64
import binascii
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import numpy as np

from antiphon.audio.samples import INPUT_RATE_HZ, OUTPUT_RATE_HZ
from antiphon_command.probe.rules import (
    NORMAL_CLOSURE,
    Event,
    Rules,
    fields,
    is_whole,
)

_ANSWER_EVENTS: Final = (
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
)
"""The events of every spoken answer in their order, without the deltas."""

_RESPONSE: Final = (
    *("id", "object", "status", "status_details", "output", "conversation_id", "output_modalities"),
    *("max_output_tokens", "audio", "usage", "metadata"),
)
"""The fields that every response has; common clients crash without them."""


class RealtimeGa(Rules):
    """Rules of one question that the client commits, and of its spoken answer. The client closes."""

    path = "/v1/realtime"
    takes_voice = False
    client_closes = True

    def __init__(self, model: str) -> None:
        super().__init__()
        self.query = f"model={quote(model)}"
        self._ids: set[str] = set()
        self._step = 0
        """The number of `_ANSWER_EVENTS` events so far."""
        self._committed: str | None = None
        self._response_id: str | None = None
        self._item_id: str | None = None
        self._transcript = ""

    def reply(self, event: Event) -> list[Event]:
        if event["type"] != "session.created":
            return []
        audio = {"input": {"format": {"type": "audio/pcm", "rate": OUTPUT_RATE_HZ}, "turn_detection": None}}
        return [{"type": "session.update", "session": {"type": "realtime", "audio": audio}}]

    def append(self, pcm: bytes) -> Event:
        self.units += 1
        samples = np.frombuffer(pcm, "<f4")
        at = np.arange(0, samples.size, INPUT_RATE_HZ / OUTPUT_RATE_HZ)
        heard = np.interp(at, np.arange(samples.size), samples)
        data = np.clip(heard * 32768, -32768, 32767).astype("<i2").tobytes()
        return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}

    def ending(self) -> list[Event]:
        silence = [] if self.units else [self.append(bytes(4 * INPUT_RATE_HZ))]
        return [*silence, {"type": "input_audio_buffer.commit"}, {"type": "response.create"}]

    def received(self, event: Event) -> Iterator[str]:
        kind = event["type"]
        if self.is_over:
            yield f"{kind} after response.done"
        if not self._ids and kind != "session.created":
            yield f"{kind} before session.created"
        yield from self._identified(event)
        match kind:
            case "session.created" | "session.updated":
                yield from self._session(event)
                # The client commits the question itself, so it sends no silence until the answer.
                self.is_ready = self.is_answered = kind == "session.updated"
            case "input_audio_buffer.committed":
                yield from fields(event, item_id=str)
                self._committed = event.get("item_id")
            case "error":
                yield from fields(event, error=dict)
                yield f"an error that the client did not cause: {event.get('error')}"
                self.is_over = True
            case "conversation.item.added" | "conversation.item.done" if self._response_id is None:
                yield from self._asked(event)
            case "response.output_audio.delta":
                yield from self._said(event)
                yield from _sound(event)
            case "response.output_audio_transcript.delta":
                yield from self._said(event)
                self._transcript += str(event.get("delta"))
            case "conversation.created":
                pass
            case _ if kind in _ANSWER_EVENTS:
                yield from self._answer_event(event)
            case other:
                yield f"unknown event {other}"

    def _identified(self, event: Event) -> Iterator[str]:
        yield from fields(event, event_id=str)
        if event.get("event_id") in self._ids:
            yield f"event_id {event['event_id']} came before"
        self._ids.add(str(event.get("event_id")))

    def _session(self, event: Event) -> Iterator[str]:
        session = event.get("session")
        if not isinstance(session, dict):
            yield f"{event['type']} has no session"
            return
        yield from fields({"type": event["type"], **session}, id=str, model=str, output_modalities=list)
        detection = (session.get("audio") or {}).get("input", {}).get("turn_detection", "")
        if event["type"] == "session.updated" and detection is not None:
            yield f"turn_detection is {detection}, but the client switched it off"
        elif isinstance(detection, dict) and not isinstance(detection.get("interrupt_response"), bool):
            yield "turn_detection has no boolean interrupt_response: clients would interrupt a second time"

    def _asked(self, event: Event) -> Iterator[str]:
        item = event.get("item") or {}
        if item.get("id") != self._committed:
            yield f"the item is {item.get('id')}, but {self._committed} was committed"
        (part,) = item.get("content") or [{}]
        if "transcript" not in part:
            yield "a part of input_audio has no transcript; it must be there, as null"

    def _answer_event(self, event: Event) -> Iterator[str]:
        kind = event["type"]
        expected = _ANSWER_EVENTS[self._step] if self._step < len(_ANSWER_EVENTS) else "nothing"
        if kind != expected:
            yield f"{kind} came instead of {expected}"
        self._step = _ANSWER_EVENTS.index(kind) + 1
        match kind:
            case "response.created" | "response.done":
                yield from self._response(event)
            case "response.output_item.added":
                self._item_id = (event.get("item") or {}).get("id")
                self.is_speaking = True
            case "response.output_audio_transcript.done" if event.get("transcript") != self._transcript:
                yield "the joined deltas are not the transcript"
        yield from self._named(event)
        yield from _nulls(event)

    def _response(self, event: Event) -> Iterator[str]:
        response = event.get("response") or {}
        yield from (
            f"the response of {event['type']} has no {name}" for name in _RESPONSE if name not in response
        )
        self._response_id = self._response_id or response.get("id")
        if response.get("id") != self._response_id:
            yield f"the response is {response.get('id')}, not {self._response_id}"
        if event["type"] == "response.created":
            return
        self.is_over, self.is_speaking = True, False
        if response.get("status") != "completed":
            yield f"the response is {response.get('status')}: {response.get('status_details')}"
        usage = response.get("usage") or {}
        counts = [usage.get(name) for name in ("input_tokens", "output_tokens", "total_tokens")]
        if not all(map(is_whole, counts)) or counts[0] + counts[1] != counts[2]:  # type: ignore[operator]
            yield f"total_tokens is not the sum of the others: {usage}"

    def _said(self, event: Event) -> Iterator[str]:
        if self._step != _ANSWER_EVENTS.index("response.content_part.added") + 1:
            yield f"{event['type']} outside its part"
        yield from fields(event, delta=str)
        yield from self._named(event)
        self.spoken += 1

    def _named(self, event: Event) -> Iterator[str]:
        for name, expected in (("response_id", self._response_id), ("item_id", self._item_id)):
            if name in event and event[name] != expected:
                yield f"{name} is {event[name]}, not {expected}"

    def finished(self, code: int | None) -> Iterator[str]:
        if not self.is_over:
            yield f"the socket closed with {code} before response.done"
        elif code != NORMAL_CLOSURE:
            yield f"the close code is {code}, not {NORMAL_CLOSURE}"


def _sound(event: Event) -> Iterator[str]:
    try:
        data = base64.b64decode(str(event.get("delta", "")), validate=True)
    except binascii.Error:
        yield "delta is no base64"
        return
    if not data or len(data) % 2:
        yield f"delta has {len(data)} bytes, not whole samples"


def _nulls(event: Event) -> Iterator[str]:
    """Yield a violation for each null in an item or a part.

    Common clients drop an event with null instead of a missing field.
    """
    parts = [event.get("part") or {}, *((event.get("item") or {}).get("content") or [])]
    for told in (event.get("item") or {}, *parts):
        yield from (
            f"{name} is null; a field without a value is left out" for name in told if told[name] is None
        )
