"""Events of the chat tests, on `/ws/chat` and on `/v1/realtime?mode=chat`."""

import json
from typing import Any

from tests.conformance.support.client import Client, Event
from tests.conformance.support.match import (
    INPUT_ID,
    RESPONSE_ID,
    SESSION_ID,
    SOME_TEXT,
    TICKET_ID,
    TRACE_ID,
    UNIX_S,
    USAGE,
    Flag,
    Number,
    With,
    prompt_usage,
)
from tests.support.scripted_engine import Play, Script

CHAT = "/ws/chat"
REALTIME = "/v1/realtime?mode=chat"

USER: Event = {"role": "user", "content": "Name a prime."}
CLOSE: Event = {"type": "session.close", "reason": "user_stop"}
INPUT_TOKENS = 12
"""The input tokens of every scripted turn."""


def scripted(*plays: Play, **script: Any) -> Event:
    """A system message that tells the scripted worker what to play."""
    return {"role": "system", "content": Script(plays, **script).as_prompt()}


def request(*plays: Play, key: str = "", **fields: Any) -> Event:
    """A request on `/ws/chat` that is answered by `plays`."""
    return {"messages": [scripted(*plays, key=key), USER], **fields}


def append(*plays: Play, key: str = "", **fields: Any) -> Event:
    """Return the same request as an event of `/v1/realtime`."""
    return {"type": "input.append", "input": request(*plays, key=key, **fields)}


def done(text: str, tokens: int = 1, audio: Any = None, **fields: Any) -> Event:
    """`done` of a scripted turn."""
    return {
        "type": "done",
        "text": text,
        "generated_tokens": tokens,
        "input_tokens": INPUT_TOKENS,
        "audio_data": audio,
        "recording_session_id": None,
        **fields,
    }


PREFILL_DONE: Event = {"type": "prefill_done", "input_tokens": INPUT_TOKENS}


def chunk(text: str, audio: Any = None) -> Event:
    return {"type": "chunk", "text_delta": text, "audio_data": audio}


def chat_error(code: str) -> Event:
    return {"type": "error", "error": SOME_TEXT, "code": code, "trace_id": TRACE_ID}


def delta(kind: str, content: Any, input_id: Any = INPUT_ID) -> Event:
    """`response.output.delta`."""
    return {
        "type": "response.output.delta",
        "kind": kind,
        "session_id": SESSION_ID,
        "input_id": input_id,
        "response_id": RESPONSE_ID,
        kind: content,
        "metrics": {},
        "server_send_ts": UNIX_S,
    }


def response_done(text: str, input_id: Any = INPUT_ID, **fields: Any) -> Event:
    """`response.done`."""
    return {
        "type": "response.done",
        "session_id": SESSION_ID,
        "input_id": input_id,
        "response_id": RESPONSE_ID,
        "text": text,
        "reason": "turn_end",
        "metrics": With(wall_clock_ms=Number()),
        "usage": USAGE,
        "server_send_ts": UNIX_S,
        **fields,
    }


def created(**fields: Any) -> Event:
    """`session.created`."""
    return {
        "type": "session.created",
        "session_id": SESSION_ID,
        "mode": "turn_based",
        "metrics": {"prompt_length": 10, "n_past_max": 4096},
        "usage": prompt_usage(10),
        "server_send_ts": UNIX_S,
        **fields,
    }


def place(position: int) -> Event:
    """The fields of a queue event."""
    return {
        "position": position,
        "estimated_wait_s": Number(),
        "estimate_is_guess": Flag(),
        "ticket_id": TICKET_ID,
        "queue_length": Number(1),
    }


async def begin(client: Client, payload: Event | None = None) -> Event:
    """Run the opening on `/v1/realtime`; return `session.created`."""
    await client.expect("session.queue_done")
    await client.send({"type": "session.init", "payload": payload or {}})
    return await client.expect("session.created")


def told(text: str) -> Any:
    """Return the input of a turn that plays `TELLS`: its session's setup and its unit."""
    said = json.loads(text)
    return said["setup"], said["units"][0]
