"""Events of `/v1/transcription` as a client sends and expects them."""

import base64
import json
from typing import Any

import numpy as np

from tests.conformance.support.client import Client, Event
from tests.conformance.support.match import SOME_TEXT, UNIX_S, Number, Text
from tests.support.scripted_engine import PROMPT_TOKENS, Play

PATH = "/v1/transcription"
TARGETS = (PATH, "/v1/realtime?mode=transcription", "/v1/realtime?intent=transcription")
RATE = 16_000

CREATED = {"type": "session.created", "id": Text("sess-[0-9a-f]{32}"), "created": UNIX_S}
UPDATE: Event = {"type": "session.update", "model": "scripted"}
COMMIT: Event = {"type": "input_audio_buffer.commit"}
FINAL: Event = {"type": "input_audio_buffer.commit", "final": True}
UNKNOWN: Event = {"type": "response.create"}

TELLS = Play(tells=True, tokens=0)
"""A unit whose text reports the inputs of the session as JSON (`Play.tells`)."""


def append(samples: int = RATE, level: float = 0.1) -> Event:
    """An append of equal samples of int16, of full scale at 1."""
    pcm = np.full(samples, round(level * 32768), "<i2").tobytes()
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()}


def delta(text: str) -> Event:
    return {"type": "transcription.delta", "delta": text}


def done(text: str = "", completion: int | None = None, prompt: int = PROMPT_TOKENS) -> Event:
    """Return `transcription.done`; without `completion` any number of tokens matches."""
    usage: Event = {
        "prompt_tokens": prompt,
        "total_tokens": Number(prompt) if completion is None else prompt + completion,
        "completion_tokens": Number() if completion is None else completion,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    return {"type": "transcription.done", "text": text, "usage": usage}


EMPTY = done(completion=0, prompt=0)


def error(code: str, text: str | None = None) -> Event:
    """An `error` event."""
    return {"type": "error", "error": SOME_TEXT if text is None else text, "code": code}


async def nothing(client: Client) -> None:
    """Assert that no event is pending: the next event answers an unknown event."""
    assert await client.ask(UNKNOWN) == error("unknown_event", "Unknown event type: response.create")


async def opened(client: Client, *events: Event) -> None:
    """Expect `session.created`, choose the model and send `events`."""
    assert await client.next() == CREATED
    await client.send(UPDATE, *events)


async def begin(client: Client) -> None:
    """Open an utterance, send a second of audio, and expect the delta ` go`, the first of the script."""
    await opened(client, COMMIT, append())
    assert await client.next() == delta(" go")


async def told(client: Client) -> list[dict[str, Any]]:
    """Return the units given to a worker that plays `TELLS`, up to the end of the utterance."""
    events = await client.until("transcription.done")
    units: list[dict[str, Any]] = json.loads(events[-2]["delta"])["units"]
    return units


def levels(units: list[dict[str, Any]]) -> list[float]:
    """Return the audio levels of units, without consecutive repetitions."""
    heard = [level for unit in units if unit["chunk"] for level in unit["chunk"]["audio"]]
    return [level for i, level in enumerate(heard) if i == 0 or level != heard[i - 1]]


def samples(units: list[dict[str, Any]]) -> int:
    """Return the number of samples in units."""
    return sum(unit["chunk"]["samples"] for unit in units if unit["chunk"])
