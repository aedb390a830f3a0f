"""Rules of `/v1/realtime` in the earlier dialect: one event for each unit."""

import base64
from collections.abc import Iterator

from antiphon_command.probe.realtime_path import RealtimePath
from antiphon_command.probe.rules import (
    Event,
    audio,
    fields,
    sample_count,
)

_UNIT_SAMPLES = 24_000


class Earlier(RealtimePath):
    """Rules: a delta inside a turn holds exactly one second; the first and the last may hold less."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self._short: bool = False
        self._answers = 0

    def reply(self, event: Event) -> list[Event]:
        if event["type"] != "session.queue_done":
            return []
        # Clients send empty instructions when their text field is empty.
        return [{"type": "session.update", "session": {"instructions": ""}}]

    def append(self, pcm: bytes) -> Event:
        self.units += 1
        text = base64.b64encode(pcm).decode()
        return {"type": "input_audio_buffer.append", "audio": text, "input_id": f"probe-{self.units}"}

    def _created(self, event: Event) -> Iterator[str]:
        yield from fields(event, session_id=str, prompt_length=int)
        if not str(event.get("session_id")).startswith("rt_"):
            yield "session_id does not begin with rt_"

    def _output(self, event: Event) -> Iterator[str]:
        match event["type"]:
            case "response.listen":
                yield from fields(event, kv_cache_length=int, input_id=str, metrics=dict)
                yield from self._answer(event)
                self._response_id, self.is_speaking = None, False
            case "response.output_audio.delta":
                yield from self._delta(event)
            case other:
                yield f"unknown event {other}"

    def _closed(self, event: Event) -> Iterator[str]:
        yield from fields(event, reason=str, session_id=str)
        if event.get("reason") != "stopped":
            yield f"reason is {event.get('reason')!r}, not stopped"

    def _answer(self, event: Event) -> Iterator[str]:
        self._answers += 1
        if not self.is_ready:
            yield "output before session.created"
        if self._answers > self.units:
            yield f"answer {self._answers} to {self.units} units"

    def _delta(self, event: Event) -> Iterator[str]:
        kinds = {"text": str, "audio": str, "end_of_turn": bool, "kv_cache_length": int}
        yield from fields(event, **kinds, response_id=str, input_id=str, metrics=dict)
        yield from self._answer(event)
        yield from audio(event.get("audio"))
        begins = event.get("response_id") != self._response_id
        if begins and self._response_id is not None:
            yield f"a response begins before {self._response_id} has ended"
        if not begins and self._short:
            yield "a delta inside a turn held less than a second"
        samples = sample_count(str(event.get("audio", "")))
        self._short = not begins and samples != _UNIT_SAMPLES
        self._response_id = event.get("response_id")
        self.is_answered = bool(event.get("end_of_turn"))
        self.is_speaking = not self.is_answered
        self.spoken += 1
        if self.is_answered:
            self._response_id, self._short = None, False
