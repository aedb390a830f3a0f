"""Rules of `/ws/chat`: one request, one answer."""

from collections.abc import Iterator

from antiphon_command.probe.rules import (
    NORMAL_CLOSURE,
    Event,
    Queue,
    Rules,
    audio,
    fields,
)

QUESTION = "What can you do?"


class Chat(Rules):
    """Rules: `prefill_done`, chunks, `done`; the joined chunks are the text of `done`."""

    path = "/ws/chat"
    takes_audio = False

    def __init__(self) -> None:
        super().__init__()
        self._queue = Queue()
        self._input_tokens: int | None = None
        self._text = ""

    def opening(self) -> list[Event]:
        return [{"messages": [{"role": "user", "content": QUESTION}], "streaming": True}]

    def append(self, pcm: bytes) -> Event:
        raise RuntimeError("a chat takes no stream of audio")

    def ending(self) -> list[Event]:
        return []

    def received(self, event: Event) -> Iterator[str]:
        if self.is_over:
            yield f"{event['type']} after the last event"
        if self._queue.takes(event):
            yield from self._queue.received(event)
            return
        match event["type"]:
            case "prefill_done":
                if self._input_tokens is not None:
                    yield "prefill_done came twice"
                yield from fields(event, input_tokens=int)
                self._input_tokens = event.get("input_tokens")
            case "chunk":
                yield from self._chunk(event)
            case "done":
                self.is_over = self.is_answered = True
                yield from self._done(event)
            case "error":
                self.is_over = True
                yield from fields(event, error=str, code=str)
                yield f"an error that the client did not cause: {event.get('error')}"
            case other:
                yield f"unknown event {other}"

    def _chunk(self, event: Event) -> Iterator[str]:
        if self._input_tokens is None:
            yield "chunk before prefill_done"
        yield from fields(event, text_delta=str, audio_data=(str, type(None)))
        if event.get("audio_data") is not None:
            yield from audio(event["audio_data"])
        self._text += str(event.get("text_delta", ""))

    def _done(self, event: Event) -> Iterator[str]:
        yield from fields(event, text=str, generated_tokens=int, input_tokens=int)
        yield from fields(event, audio_data=(str, type(None)), recording_session_id=(str, type(None)))
        if event.get("audio_data") is not None:
            yield "done carries audio although it was streamed: it would be heard twice"
        if event.get("text") != self._text:
            yield "the joined chunks are not the text of done"
        if event.get("input_tokens") != self._input_tokens:
            yield "done and prefill_done have different input_tokens"

    def finished(self, code: int | None) -> Iterator[str]:
        if not self.is_over:
            yield "the socket closed without done"
        elif self.is_answered and code != NORMAL_CLOSURE:
            yield f"the close code is {code}, not {NORMAL_CLOSURE}"
