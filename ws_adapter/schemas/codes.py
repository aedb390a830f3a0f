"""Meaning of error codes and close codes, for people."""

from collections.abc import Mapping
from typing import Final

from ws_adapter.protocol.live.events import Code as LiveCode
from ws_adapter.protocol.realtime_ga.wire.events import Code as GaCode
from ws_adapter.protocol.transcription.events import Code
from ws_adapter.protocol.wire.errors import CloseCode, ErrorCode

ERRORS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.NOT_READY: "the event needs a session that is configured; send the opening event first",
    ErrorCode.UNKNOWN_EVENT: "`type` names no event of this dialect",
    ErrorCode.MISSING_FIELD: "a required field is absent, null or empty; `param` names it",
    ErrorCode.INVALID_PAYLOAD: "a field cannot be used; `param` names it, the message says what was expected",
    ErrorCode.INVALID_EVENT: "a known event that is not allowed in the current state",
    ErrorCode.PAUSED: "input during a pause; send `resume` first (only on `/ws/duplex`)",
    ErrorCode.INVALID_JSON: "the frame is not JSON; close 1003",
    ErrorCode.INVALID_FRAME: "a binary frame; close 1003",
    ErrorCode.INIT_TIMEOUT: "no request came in time; close 1008 (only on `/ws/chat`)",
    ErrorCode.SLOW_CONSUMER: "the client does not read; close 1008 (only on `/ws/chat`)",
    ErrorCode.RATE_LIMITED: "more than 20 errors in 1 s, 1000 small frames at once, or too much "
    "from the client's address; close 1008. Or a session was resumed too often; close 1013",
    ErrorCode.UNSUPPORTED_MODE: "the requested mode is not served here; close 1008",
    ErrorCode.UNSUPPORTED_PROTOCOL: "the requested protocol is not served here; close 1008",
    ErrorCode.UNAUTHORIZED: "the key was withdrawn, has expired, or lacks a right; close 3000",
    ErrorCode.RESUME_FAILED: "the token for the session is forged, foreign, used or expired, or the missed "
    "events are gone; close 1008",
    ErrorCode.QUOTA_EXCEEDED: "the key has used up its quota of the day; close 1008",
    ErrorCode.QUEUE_CANCELLED: "the place in the queue was given up; close 1000",
    ErrorCode.QUEUE_FULL: "too many sessions are waiting; close 1013",
    ErrorCode.QUEUE_TIMEOUT: "no slot became free within the longest wait allowed; close 1013",
    ErrorCode.SERVICE_UNAVAILABLE: "no worker is ready, or the server is too busy or shutting down; "
    "close 1013",
    ErrorCode.WORKER_BUSY: "the worker has no free slot after all; close 1013",
    ErrorCode.WORKER_CONNECT_FAILED: "no worker could be reached; close 1013",
    ErrorCode.INFERENCE_ERROR: "a unit failed and the session goes on; or the session failed: close 1011, or "
    "1013 when memory ran out",
}
"""Each `error.code`. Without a close code the session goes on and the event has changed nothing."""

UTTERANCE_ERRORS: Final[Mapping[Code, str]] = {
    Code.INVALID_JSON: "the frame is not JSON",
    Code.INVALID_FRAME: "a binary frame; only text frames are read",
    Code.UNKNOWN_EVENT: "`type` names no event of this dialect",
    Code.INVALID_EVENT: "`session.update` has no string `model` at its top level",
    Code.MODEL_NOT_FOUND: "the model is not served; an earlier choice stays",
    Code.MODEL_NOT_VALIDATED: "a commit before any `session.update` with a served model; audio is kept",
    Code.INVALID_AUDIO: "`audio` is not base64 of whole int16 samples, at least one; or the model refused "
    "the audio of the utterance, which then is lost",
    Code.BUFFER_FULL: "too much input waits: 30 min of audio, 1000 utterances, or the server's limit for all "
    "sessions; this event is not applied",
    Code.PROCESSING_ERROR: "the utterance could not be processed and is lost; or an event that is no object, "
    "or has a field of the wrong type",
    Code.QUEUE_FULL: "no slot for the utterance; its audio is kept, commit again",
    Code.SERVICE_UNAVAILABLE: "no worker for the utterance; its audio is kept, commit again. When "
    "connecting: close 1013",
    Code.IDLE_TIMEOUT: "no input came for an open utterance for 30 s: it was ended, its `done` came before",
    Code.CONTEXT_FULL: "the utterance became too long for the model, its `done` came before; commit again",
    Code.UNSUPPORTED_MODE: "no worker transcribes here; close 1008",
    Code.UNAUTHORIZED: "the key was withdrawn, has expired, or lacks a right; close 3000",
    Code.RESUME_FAILED: "the session cannot be resumed; close 1008",
    Code.QUOTA_EXCEEDED: "the key has used up its quota of the day; close 1008",
    Code.SLOW_CONSUMER: "the client does not read; close 1008",
    Code.RATE_LIMITED: "more than 1000 refused events in 5 s, 1000 small frames, or too much from the "
    "client's address; close 1008",
}
"""Each `code` of transcription. Without a close code the connection stays open."""

LIVE_ERRORS: Final[Mapping[LiveCode, str]] = {
    LiveCode.INVALID_JSON: "the frame is not JSON",
    LiveCode.INVALID_VALUE: "a field cannot be used, or `type` names no event; `param` names the field",
    LiveCode.MISSING_PARAMETER: "a required field is absent, null or empty; `param` names it",
    LiveCode.UNKNOWN_PARAMETER: "there is no such field; `param` names it",
    LiveCode.MODEL_NOT_FOUND: "the model is not served; `/v1/models` lists those that are",
    LiveCode.NOT_STARTED: "an event came before `session.started`; or more than 256 sessions have sent no "
    "`session.start`: of the client with the most of them, the oldest session is closed with 1000",
    LiveCode.ALREADY_STARTED: "a second `session.start`",
    LiveCode.UNSUPPORTED: "the server or its model does not support this; `message` says why",
    LiveCode.INVALID_FRAME: "a binary frame; close 1003",
    LiveCode.RATE_LIMITED: "more than 20 errors in 1 s, 1000 small frames at once, or too much "
    "from the client's address; close 1008",
    LiveCode.SLOW_CONSUMER: "the client does not read; close 1008",
    LiveCode.INVALID_KEY: "the key is missing, wrong, expired or withdrawn, or lacks a right; close 3000",
    LiveCode.RESUME_FAILED: "the session cannot be resumed; close 1008",
    LiveCode.INSUFFICIENT_QUOTA: "the key has used up its quota of the day; close 1008",
    LiveCode.QUEUE_CANCELLED: "the place in the queue was given up; close 1000",
    LiveCode.UNSUPPORTED_MODE: "no worker serves conversations; close 1008",
    LiveCode.INFERENCE_FAILED: "a unit was lost and the session goes on; or the session failed: close 1011, "
    "or 1013 when memory ran out",
    LiveCode.CONTEXT_FULL: "the context of the model is full; `session.closed` follows",
    LiveCode.QUEUE_FULL: "too many sessions are waiting; close 1013",
    LiveCode.QUEUE_TIMEOUT: "no slot became free within the longest wait allowed; close 1013",
    LiveCode.UNAVAILABLE: "no worker is ready or could be reached, or the server is too busy or shutting "
    "down; close 1013, or 1012 for a session that had begun",
}
"""Each `error.code` of Live. Without a close code the session goes on and the event has changed nothing."""

GA_ERRORS: Final[Mapping[GaCode, str]] = {
    GaCode.INVALID_JSON: "the frame is not JSON",
    GaCode.INVALID_EVENT: "a binary frame, or JSON that is no object",
    GaCode.INVALID_VALUE: "a field cannot be used, or `type` names no event; `param` names the field",
    GaCode.INVALID_TYPE: "a field has a value of another JSON type; `param` names it",
    GaCode.MISSING_PARAMETER: "a required field is absent, null or empty; `param` names it",
    GaCode.UNKNOWN_PARAMETER: "there is no such field; `param` names it",
    GaCode.INVALID_SESSION_TYPE: "the type of a session cannot change",
    GaCode.CANNOT_UPDATE_VOICE: "the voice cannot change after the model has spoken",
    GaCode.COMMIT_EMPTY: "less than 100 ms of audio wait",
    GaCode.BUFFER_FULL: "120 s of audio wait; commit or clear them",
    GaCode.DUPLICATE_ITEM: "there is an item with this id",
    GaCode.TRUNCATE_UNKNOWN: "there is no item with this id",
    GaCode.RETRIEVE_UNKNOWN: "there is no item with this id",
    GaCode.DELETE_UNKNOWN: "there is no item with this id",
    GaCode.CONVERSATION_FULL: "with `truncation` `disabled`: the conversation has 256 items, or 24 MiB of "
    "text, pictures and clips as float32 at 16 kHz; delete some",
    GaCode.ACTIVE_RESPONSE: "a response of the conversation is open, or 8 wait outside it",
    GaCode.CANCEL_NOT_ACTIVE: "no such response is open",
    GaCode.UNSUPPORTED: "in a failed response: the model holds no chats, and takes its turns by itself",
    GaCode.MISSING_MODEL: "neither the URL nor the client secret names a model; close 4000",
    GaCode.INVALID_MODEL: "the model is not served, or not for this; close 4000",
    GaCode.RATE_LIMITED: "more than 20 errors in 1 s, 1000 small frames at once, or too much "
    "from the client's address; close 1008. Or an item is retrieved while earlier events are unread",
    GaCode.INVALID_KEY: "the key is missing, unknown, expired or was withdrawn; close 3000",
    GaCode.RESUME_FAILED: "the session cannot be resumed; close 1008",
    GaCode.INSUFFICIENT_QUOTA: "the key has used up its quota of the day; close 1008",
    GaCode.BETA_DISABLED: "`OpenAI-Beta: realtime=v1`; close 4000",
    GaCode.SESSION_EXPIRED: "the session has reached its time limit; close 1001",
    GaCode.OVERLOADED: "no slot or no worker, or the server is too busy or shutting down; close 1013, "
    "unless only a response fails and the session goes on",
    GaCode.INFERENCE_FAILED: "the model failed, and its response with it; the session goes on",
    GaCode.SLOW_CONSUMER: "60 s of an answer wait for a client that does not read: the response fails",
    GaCode.INTERNAL: "a response failed with its worker, and the next one uses another worker; as the end "
    "of a session, close 1011",
}
"""Each `error.code` of Realtime GA. Without a close code the session goes on and the event has no effect."""

CLOSES: Final[Mapping[int, str]] = {
    CloseCode.NORMAL: "the session is over: by its client, a time limit or a full context",
    CloseCode.GOING_AWAY: "the session has reached its time limit (only in Realtime GA)",
    1002: "broken WebSocket framing (without an event before it)",
    CloseCode.UNSUPPORTED_DATA: "not JSON, or a binary frame",
    CloseCode.INVALID_UTF8: "a text frame that is not UTF-8 (without an event before it)",
    CloseCode.POLICY_VIOLATION: "refused: mode, settings, token, flood, or a client that does not read",
    1009: "a frame of more than 16 MiB, in a chat 32 MiB (without an event before it)",
    CloseCode.INTERNAL_ERROR: "the worker of the session failed; open a new session",
    CloseCode.SERVICE_RESTART: "the server is shutting down; connect again",
    CloseCode.TRY_AGAIN_LATER: "no slot or no worker, or resumed too often; try again later",
    CloseCode.UNAUTHORIZED: "the key was withdrawn, has expired, or lacks a right; on OpenAI's paths "
    "also a missing or wrong key",
    CloseCode.INVALID_REQUEST: "an invalid request for OpenAI's protocol",
    CloseCode.RESUMED_ELSEWHERE: "another connection resumed the session (without an event before it)",
}
"""Each close code that a client may see."""


def error_table() -> str:
    """Return the error codes as a table in Markdown."""
    rows = [
        f"| `{code}` | {'server' if code.is_servers else 'client'} | {said} |"
        for code, said in ERRORS.items()
    ]
    return "\n".join(["| code | fault of | meaning |", "|---|---|---|", *rows])


def utterance_error_table() -> str:
    """Return the error codes of transcription as a table in Markdown."""
    rows = [f"| `{code}` | {said} |" for code, said in UTTERANCE_ERRORS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


def live_error_table() -> str:
    """Return the error codes of Live as a table in Markdown."""
    rows = [f"| `{code}` | {said} |" for code, said in LIVE_ERRORS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


def ga_error_table() -> str:
    """Return the error codes of Realtime GA as a table in Markdown."""
    rows = [f"| `{code}` | {said} |" for code, said in GA_ERRORS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


def close_table() -> str:
    """Return the close codes as a table in Markdown."""
    rows = [f"| {int(code)} | {said} |" for code, said in CLOSES.items()]
    return "\n".join(["| close code | meaning |", "|---|---|", *rows])
