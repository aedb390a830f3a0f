"""Events of the two full-duplex dialects of `/v1/realtime`, as a client sends and expects them."""

import base64
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.conformance.support.client import Client, Event
from tests.conformance.support.match import EARLIER_ID, SESSION_ID, Text
from tests.support.scripted_engine import End, Play, Script

RATE = 16_000


def f32(samples: int, level: float = 0.1) -> str:
    """Base64 of so many equal samples of float32."""
    return base64.b64encode(np.full(samples, level, "<f4").tobytes()).decode()


def samples_of(event: Event) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """The output audio in an event: float32, mono, 24 kHz."""
    data = base64.b64decode(event["audio"], validate=True)
    assert len(data) % 4 == 0
    return np.frombuffer(data, "<f4")


def plays(*script: Play, **fields: Any) -> Script:
    """A session's script."""
    return Script(script, **fields)


TELLS = Play(tells=True, end=End.TURN)
"""A unit whose text reports the inputs of the session as JSON (`Play.tells`)."""


@dataclass(frozen=True)
class Words:
    """One dialect. `listen` is the kind of its listening events; `stopped` and `failed` are close reasons."""

    name: str
    opener: str
    opener_field: str
    prompt: str
    config: str
    input: str
    input_path: str
    listen: str
    stopped: str
    failed: str
    session_id: Text

    def init(self, script: Script | None = None, **fields: Any) -> Event:
        """The initialising event; a script travels as the system prompt."""
        prompt = script.as_prompt() if script is not None else "Answer briefly."
        return {"type": self.opener, self.opener_field: {self.prompt: prompt, **fields}}

    def append(self, samples: int = RATE, level: float = 0.1, **fields: Any) -> Event:
        """Return an append of equal samples with further fields; `audio=None` leaves the audio out."""
        body = {"audio": f32(samples, level), **fields}
        if body["audio"] is None:
            del body["audio"]
        return {"type": self.input, **({"input": body} if self is G3 else body)}

    def silent(self, **fields: Any) -> Event:
        """An append without audio."""
        return self.append(audio=None, **fields)

    def path(self, field: str) -> str:
        """Return the path of a field of the initialising event."""
        return f"{self.opener_field}.{field}"

    async def begin(self, client: Client, *script: Play, **fields: Any) -> Event:
        """Run the opening with these plays as the script; return `session.created`."""
        return await self.begin_script(client, Script(script), **fields)

    async def begin_script(self, client: Client, script: Script, **fields: Any) -> Event:
        """Run the opening with a script; return `session.created`."""
        await client.expect("session.queue_done")
        await client.send(self.init(script, **fields))
        return await client.expect("session.created")

    def closed(self, created: Event | None, reason: str) -> Event:
        """`session.closed` without `usage` and `diagnostic`, which only one dialect has."""
        event = {"type": "session.closed", "reason": reason}
        return event if created is None else event | {"session_id": created["session_id"]}


G3 = Words(
    "G3",
    opener="session.init",
    opener_field="payload",
    prompt="system_prompt",
    config="config",
    input="input.append",
    input_path="input.",
    listen="listen",
    stopped="user_stop",
    failed="backend_error",
    session_id=SESSION_ID,
)
"""The current dialect."""
G2 = Words(
    "G2",
    opener="session.update",
    opener_field="session",
    prompt="instructions",
    config="voice_config",
    input="input_audio_buffer.append",
    input_path="",
    listen="response.listen",
    stopped="stopped",
    failed="error",
    session_id=EARLIER_ID,
)
"""The earlier dialect."""
CLOSE: Event = {"type": "session.close", "reason": "user_stop"}

both = pytest.mark.parametrize("words", [G3, G2], ids=lambda words: words.name)
"""A mark that runs a test in both dialects."""


def without(event: Event, *names: str) -> Event:
    """The event without these fields."""
    return {name: value for name, value in event.items() if name not in names}


async def told(client: Client, words: Words, append: Event | None = None) -> Any:
    """Return the input of a session whose next unit is `TELLS`: `setup`, and its `units` so far."""
    await client.send(append or words.append())
    while "text" not in (event := await client.next()) or not event["text"]:
        pass
    return json.loads(event["text"])
