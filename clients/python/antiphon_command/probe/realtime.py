"""Rules of `/v1/realtime` in the current full-duplex dialect."""

import base64
from collections.abc import Iterator

from antiphon_command.probe.realtime_path import RealtimePath
from antiphon_command.probe.rules import (
    Event,
    audio,
    fields,
    is_whole,
)

_ONCE_A_UNIT = ("chunk_index", "usage", "chunk_usage")


class Realtime(RealtimePath):
    """Rules: a unit has a listen or audio; a turn keeps its id, and a listen with a reason ends it."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self._session_id: str | None = None
        self._ended: set[str] = set()
        self._chunks = 0
        self._figures: object = None
        self._total_tokens = 0
        self._sent_ids: list[str] = []
        self._answered_ids: set[str] = set()

    def reply(self, event: Event) -> list[Event]:
        return [{"type": "session.init", "payload": {}}] if event["type"] == "session.queue_done" else []

    def append(self, pcm: bytes) -> Event:
        self.units += 1
        self._sent_ids.append(f"probe-{self.units}")
        text = base64.b64encode(pcm).decode()
        return {"type": "input.append", "input": {"audio": text, "input_id": self._sent_ids[-1]}}

    def _any(self, event: Event) -> Iterator[str]:
        for name in event:
            if event[name] is None:
                yield f"{name} is null; a field without a value is left out"
        yield from self._stamped(event)

    def _created(self, event: Event) -> Iterator[str]:
        if self.is_ready:
            yield "session.created came twice"
        yield from fields(event, session_id=str, mode=str, metrics=dict, usage=dict)
        if event.get("mode") != "full_duplex":
            yield f"mode is {event.get('mode')!r}, not full_duplex"
        self._session_id = event.get("session_id")

    def _output(self, event: Event) -> Iterator[str]:
        if event["type"] == "response.output.delta":
            yield from self._delta(event)
        else:
            yield f"unknown event {event['type']}"

    def _closed(self, event: Event) -> Iterator[str]:
        yield from fields(event, reason=str)

    def _delta(self, event: Event) -> Iterator[str]:
        if not self.is_ready:
            yield "output before session.created"
        yield from fields(event, kind=str, session_id=str, input_id=str, metrics=dict)
        if event.get("session_id") != self._session_id:
            yield "session_id has changed"
        input_id = event.get("input_id")
        if input_id not in self._sent_ids:
            yield f"input_id {input_id!r} was never sent"
        yield from self._counted(event)
        kind = event.get("kind")
        carried = [name for name in ("text", "audio") if name in event]
        if carried != ([] if kind == "listen" else [kind]):
            yield f"kind is {kind!r}, but it carries {' and '.join(carried) or 'nothing'}"
        if kind == "audio":
            yield from audio(event.get("audio"))
        if kind in ("listen", "audio"):
            self._answered_ids.add(str(input_id))
        yield from self._listening(event) if kind == "listen" else self._speaking(event)

    def _counted(self, event: Event) -> Iterator[str]:
        there = [name for name in _ONCE_A_UNIT if name in event]
        figures = event.get("metrics")
        if isinstance(figures, dict):  # this time differs for each event
            figures = {name: value for name, value in figures.items() if name != "wall_clock_ms"}
        if "chunk_index" in event:
            self._figures = figures
            self.spoken += event.get("kind") != "listen"
            if event["chunk_index"] != self._chunks:
                yield f"chunk_index is {event['chunk_index']}, not {self._chunks}"
            self._chunks = int(event["chunk_index"]) + 1 if is_whole(event["chunk_index"]) else self._chunks
        elif there:
            yield f"{there[0]} without chunk_index: both belong to the first event of a unit"
        if figures != self._figures:
            yield "metrics differ within a unit: clients overwrite their copy with each event"
        total = event.get("usage", {}).get("total_tokens")
        if total is not None:
            if total < self._total_tokens:
                yield "usage goes down"
            self._total_tokens = total

    def _speaking(self, event: Event) -> Iterator[str]:
        response_id = event.get("response_id")
        if not isinstance(response_id, str):
            yield "output without response_id"
        elif response_id in self._ended:
            yield f"{response_id} goes on after its end"
        elif self._response_id not in (None, response_id):
            yield f"{response_id} begins before {self._response_id} has ended"
        self._response_id = response_id
        self.is_speaking, self.is_answered = True, False

    def _listening(self, event: Event) -> Iterator[str]:
        ends_turn = event.get("reason") == "turn_end"
        if ends_turn and event.get("response_id") != self._response_id:
            yield "a turn ends that was not open"
        if not ends_turn and self._response_id is not None and not event["metrics"].get("dropped"):
            yield "a listen inside an open turn without an interruption: clients would stop playing there"
        if self._response_id is not None:
            self._ended.add(self._response_id)
            self.is_answered = ends_turn
        self._response_id, self.is_speaking = None, False
