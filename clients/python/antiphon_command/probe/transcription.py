"""Rules of `/v1/transcription`: deltas while audio still arrives, then the whole text."""

import base64
import re
from collections.abc import Iterator

import numpy as np

from antiphon_command.probe.rules import (
    NORMAL_CLOSURE,
    Event,
    Rules,
    fields,
    is_whole,
)

_SESSION_ID = re.compile(r"sess-[0-9a-f]{32}")
_TOKENS = ("prompt_tokens", "total_tokens", "completion_tokens")


class Transcription(Rules):
    """Rules of one utterance; the client closes, since the server never does."""

    path = "/v1/transcription"
    takes_voice = False
    client_closes = True

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._text = ""

    def reply(self, event: Event) -> list[Event]:
        if event["type"] != "session.created":
            return []
        return [{"type": "session.update", "model": self._model}, {"type": "input_audio_buffer.commit"}]

    def append(self, pcm: bytes) -> Event:
        self.units += 1
        samples = np.clip(np.frombuffer(pcm, "<f4") * 32768, -32768, 32767).astype("<i2")
        return {"type": "input_audio_buffer.append", "audio": base64.b64encode(samples.tobytes()).decode()}

    def ending(self) -> list[Event]:
        return [{"type": "input_audio_buffer.commit", "final": True}]

    def received(self, event: Event) -> Iterator[str]:
        if self.is_over:
            yield f"{event['type']} after transcription.done"
        if not self.is_ready and event["type"] != "session.created":
            yield f"{event['type']} before session.created"
        match event["type"]:
            case "session.created":
                if self.is_ready:
                    yield "session.created came twice"
                yield from fields(event, id=str, created=int)
                if not _SESSION_ID.fullmatch(str(event.get("id"))):
                    yield f"id is {event.get('id')!r}, not sess- and 32 hexadecimal digits"
                self.is_ready = True
            case "transcription.delta":
                yield from fields(event, delta=str)
                if event.get("delta") == "":
                    yield "an empty delta"
                self._text += str(event.get("delta", ""))
            case "transcription.done":
                self.is_over = self.is_answered = True
                yield from self._done(event)
            case "error":
                self.is_over = True
                yield from fields(event, error=str, code=(str, type(None)))
                yield f"an error that the client did not cause: {event.get('error')}"
            case other:
                yield f"unknown event {other}"

    def _done(self, event: Event) -> Iterator[str]:
        yield from fields(event, text=str, usage=dict)
        if event.get("text") != self._text:
            yield "the joined deltas are not the text of transcription.done"
        usage = event.get("usage") or {}
        counts = [usage.get(name) for name in _TOKENS]
        if not all(is_whole(count) for count in counts):
            yield f"usage lacks one of {', '.join(_TOKENS)}"
        elif counts[0] + counts[2] != counts[1]:  # type: ignore[operator]
            yield "total_tokens is not the sum of the others"
        for name in ("prompt_tokens_details", "completion_tokens_details"):
            if name not in usage:
                yield f"usage has no {name}; it must be there, as null"

    def finished(self, code: int | None) -> Iterator[str]:
        if not self.is_over:
            yield f"the socket closed with {code} before transcription.done"
        elif code != NORMAL_CLOSURE:
            yield f"the close code is {code}, not {NORMAL_CLOSURE}"
