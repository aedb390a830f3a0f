"""Events of `/ws/duplex` as a client sends and expects them."""

import base64
import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from tests.conformance.support.client import Client, Event
from tests.conformance.support.match import TRACE_ID, UNIX_S, Number, Text
from tests.conformance.support.words import RATE, f32
from tests.support.scripted_engine import Play, Script

OMNI = "/ws/duplex/omni_k3f9"
AUDIO = "/ws/duplex/adx_k3f9"
BARE = "/ws/duplex"
LABEL = "omni_k3f9"

PAUSE: Event = {"type": "pause"}
RESUME: Event = {"type": "resume"}
INTERRUPT: Event = {"type": "interrupt"}
STOP: Event = {"type": "stop"}
UNKNOWN: Event = {"type": "response.cancel"}


def prepare(script: Script | None = None, **fields: Any) -> Event:
    """The initialising event; a script travels as the system prompt."""
    prompt = script.as_prompt() if script is not None else "Answer briefly."
    return {"type": "prepare", "system_prompt": prompt, **fields}


def chunk(samples: int = RATE, level: float = 0.1, **fields: Any) -> Event:
    """An `audio_chunk` of equal samples."""
    return {"type": "audio_chunk", "audio_base64": f32(samples, level), **fields}


def video_frame() -> Event:
    """A `video_frame`."""
    return {"type": "video_frame", "frame_base64": jpeg()}


def picture(shade: int = 0, side: int = 32, form: str = "JPEG") -> bytes:
    """A picture file of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (shade, shade, shade)).save(file, form)
    return file.getvalue()


def jpeg(shade: int = 0, side: int = 32) -> str:
    """Base64 of `picture`."""
    return base64.b64encode(picture(shade, side)).decode()


async def begin_script(client: Client, script: Script, *, is_bare: bool = False, **fields: Any) -> Event:
    """Run the opening with a script; return `prepared`."""
    if not is_bare:
        await client.expect("queue_done")
    await client.send(prepare(script, **fields))
    return await client.expect("prepared")


async def begin(client: Client, *plays: Play, is_bare: bool = False, **fields: Any) -> Event:
    """Run the opening with a script of `plays`; return `prepared`."""
    return await begin_script(client, Script(plays), is_bare=is_bare, **fields)


async def stop(client: Client, label: str | None = LABEL) -> list[Event]:
    """Send `stop`; return the events before `stopped`."""
    await client.send(STOP)
    events, code = await client.end()
    assert code == 1000
    assert events[-1] == stopped("user_stop", label)
    return events[:-1]


_FIGURES = {
    "kv_cache_length": Number(1),
    **{f"cost_{part}_ms": Number() for part in ("llm", "tts_prep", "tts", "token2wav", "all")},
    **{f"{part}_ms": Number() for part in ("prefill", "wall_clock")},
    **{name: Number() for name in ("n_tokens", "n_tts_tokens", "vision_slices", "vision_tokens")},
    "server_send_ts": UNIX_S,
}
"""The metrics in every `result`."""


def listens(unit: int | Number, **more: Any) -> Event:
    """The `result` of a unit in which the model listens; `unit` counts from 1."""
    told = {"type": "result", "is_listen": True, "text": "", "audio_data": None, "end_of_turn": False}
    return told | _FIGURES | {"current_time": unit} | more


def speaks(
    unit: int | Number, text: str | Text, seconds: float, *, end_of_turn: bool = False, **more: Any
) -> Event:
    """The `result` of a unit in which the model says `text` in so many seconds of audio."""
    told = {"type": "result", "is_listen": False, "text": text, "end_of_turn": end_of_turn}
    audio = Samples(round(seconds * 24_000)) if seconds else None
    return told | _FIGURES | {"current_time": unit, "audio_data": audio} | more


@dataclass(eq=False)
class Samples:
    """Equals base64 of so many finite samples of float32 within [-1, 1]."""

    count: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        samples = np.frombuffer(base64.b64decode(other, validate=True), "<f4")
        return samples.size == self.count and bool((np.abs(samples) <= 1.0).all())


@dataclass(eq=False)
class _SomeError:
    """Equals an `error` with this code whose `message` repeats `error`, with any text."""

    code: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict) or not isinstance(text := other.get("error"), str):
            return False
        return bool(text) and other == error(self.code, text)


def error(code: str, text: str | None = None) -> Any:
    """Return an `error` whose `message` repeats `error`; without `text` any text matches."""
    if text is None:
        return _SomeError(code)
    return {"type": "error", "error": text, "code": code, "message": text, "trace_id": TRACE_ID}


def stopped(reason: str, label: str | None = LABEL) -> Event:
    """The last event of a session; without a label the id is the server's own."""
    session_id = label if label is not None else Text("sess_[0-9a-f]{12}")
    return {"type": "stopped", "session_id": session_id, "reason": reason}


def timeout(reason: str) -> Event:
    """The last event of a session that took too long."""
    return {"type": "timeout", "reason": reason}


def told(result: Event) -> dict[str, Any]:
    """Return the worker's input, reported by a unit that plays `TELLS`."""
    content: dict[str, Any] = json.loads(result["text"])
    return content
