"""Rules of `/ws/duplex/{session_id}`: exactly one result for each unit."""

import base64
from collections.abc import Iterator

from antiphon_command.probe.rules import (
    NORMAL_CLOSURE,
    Event,
    Queue,
    Rules,
    audio,
    fields,
)

_METRICS = (
    "kv_cache_length", "cost_llm_ms", "cost_tts_prep_ms", "cost_tts_ms", "cost_token2wav_ms", "cost_all_ms",
    "prefill_ms", "wall_clock_ms", "n_tokens", "n_tts_tokens", "vision_slices", "vision_tokens",
    "server_send_ts",
)  # fmt: skip


class Duplex(Rules):
    """Rules: results number the units; a listening result has neither text nor audio."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.path = "/ws/duplex/" + ("adx_probe" if mode == "audio" else "probe")
        self._queue = Queue()
        self._results = 0

    def reply(self, event: Event) -> list[Event]:
        return [{"type": "prepare"}] if event["type"] == "queue_done" else []

    def append(self, pcm: bytes) -> Event:
        self.units += 1
        return {"type": "audio_chunk", "audio_base64": base64.b64encode(pcm).decode()}

    def ending(self) -> list[Event]:
        return [{"type": "stop"}]

    def received(self, event: Event) -> Iterator[str]:
        if self.is_over:
            yield f"{event['type']} after the last event"
        yield from self._stamped(event)
        if self._queue.takes(event):
            yield from self._queue.received(event)
            if event.get("eta_seconds") != event.get("estimated_wait_s"):
                yield "eta_seconds is not estimated_wait_s"
            return
        match event["type"]:
            case "prepared":
                if not self._queue.is_done:
                    yield "prepared before queue_done"
                yield from fields(event, prompt_length=int, session_id=str)
                self.is_ready = True
            case "result":
                yield from self._result(event)
            case "stopped":
                self.is_over = True
                yield from fields(event, session_id=str, reason=str)
            case "timeout":
                self.is_over = True
                yield f"the server did not wait: {event.get('reason')}"
            case "error":
                yield from fields(event, error=str, code=str, message=str)
                yield f"an error that the client did not cause: {event.get('error')}"
            case other:
                yield f"unknown event {other}"

    def _result(self, event: Event) -> Iterator[str]:
        self._results += 1
        if not self.is_ready:
            yield "result before prepared"
        if self._results > self.units:
            yield f"result {self._results} of {self.units} units"
        yield from fields(event, is_listen=bool, text=str, end_of_turn=bool, current_time=int)
        yield from fields(event, **dict.fromkeys(_METRICS, float))
        if event.get("current_time") != self._results:
            yield f"current_time is {event.get('current_time')!r}, not {self._results}"
        if "audio_data" not in event:
            yield "result has no audio_data"
        elif event["audio_data"] is not None:
            yield from audio(event["audio_data"])
        if event.get("is_listen"):
            if event.get("text") or event.get("audio_data") is not None:
                yield "a listening result has text or audio"
            self.is_speaking = False
        else:
            self.is_answered = bool(event.get("end_of_turn"))
            self.is_speaking = not self.is_answered
            self.spoken += 1

    def finished(self, code: int | None) -> Iterator[str]:
        if not self.is_over:
            yield "the socket closed without stopped"
        if code != NORMAL_CLOSURE:
            yield f"the close code is {code}, not {NORMAL_CLOSURE}"
