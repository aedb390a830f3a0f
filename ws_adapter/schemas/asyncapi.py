"""AsyncAPI 3 of all dialects: channels, messages and authentication.

The messages are those of the JSON Schemas beside it. Operations are those of the server: it receives the
events of clients.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ws_adapter.access.http.access import KEY_SUBPROTOCOL
from ws_adapter.protocol.core.config import Mode
from ws_adapter.schemas.catalogue import DIALECTS, Dialect, Json
from ws_adapter.schemas.codes import (
    close_table,
    error_table,
    ga_error_table,
    live_error_table,
    utterance_error_table,
)
from ws_adapter.schemas.definitions import bundle, events, type_and_kind

CHANNELS: Final[Mapping[str, Json]] = {
    "realtime": {
        "address": "/v1/realtime",
        "title": "Realtime",
        "description": "The first accepted opening event chooses the dialect: `session.init` the current "
        "one, `session.update` the earlier one. Queue events and errors are equal in both; a session that "
        "ends before the choice uses the events of the current one.",
        "query": {
            "mode": {
                "type": "string",
                "enum": [str(mode) for mode in Mode],
                "description": "Input of the model. Without it the server chooses: video by default.",
            },
        },
    },
    "duplex": {
        "address": "/ws/duplex/{session_id}",
        "title": "Duplex",
        "description": "`queue_done` is always sent.",
        "parameters": {
            "session_id": {
                "description": "A label of the client's own, of `[A-Za-z0-9_-]` and at most 128 characters. "
                "A label that begins with `adx_` or `audio_duplex_` makes a session without video. "
                "It is no identity: two connections with the same label are two sessions."
            }
        },
        "query": {},
    },
    "unnamedDuplex": {
        "address": "/ws/duplex",
        "title": "Duplex without a label",
        "description": "With video. `queue_done` is only sent after a wait.",
        "query": {},
    },
    "chat": {
        "address": "/ws/chat",
        "title": "Chat",
        "description": "One request, one answer, and the connection closes. Queue events come only after a "
        "wait.",
        "query": {},
    },
    "transcription": {
        "address": "/v1/transcription",
        "title": "Transcription",
        "description": "vLLM's Realtime API. There are no queue events, and the connection "
        "stays open after errors.",
        "query": {},
    },
    "live": {
        "address": "/v1/live/sessions",
        "title": "Live",
        "description": "OpenAI's full-duplex protocol. Audio flows in both directions continuously, in the "
        "format that `session.start` chooses; unknown fields of a client are refused.",
        "query": {},
    },
    "realtimeGa": {
        "address": "/v1/realtime",
        "title": "Realtime GA",
        "description": "OpenAI's protocol of turns. With `model` in the query, or the subprotocol "
        "`realtime`, and without `mode`. `session.created` says that the session has a slot; unknown "
        "fields of a client are refused.",
        "query": {"model": {"type": "string", "description": "One of `/v1/models`."}},
    },
    "realtimeGaTranscription": {
        "address": "/v1/realtime",
        "title": "Realtime GA, transcription",
        "description": "Transcription in OpenAI's events. The client's first frame chooses "
        "them by a `session` object without a `model` beside it; otherwise vLLM's events are used.",
        "query": {"intent": {"type": "string", "enum": ["transcription"]}},
    },
}
"""The channels of WebSockets: fields of an AsyncAPI channel, and the query parameters with an effect
there; others are ignored."""

_ACTIONS: Final = {"receive": "ClientEvent", "send": "ServerEvent"}

_TOKEN: Final = {"type": "string", "description": "A key, where the operator allows keys in the query."}

_EVERYWHERE: Final[Mapping[str, Json]] = {
    "token": _TOKEN,
    "resume": {"type": "string", "description": "The token of a session that lost its connection."},
    "last_event": {
        "type": "integer",
        "minimum": 0,
        "description": "With `resume`: the number of messages of that session that the client received.",
    },
}
"""Query parameters of all channels."""

_SECURITY: Final[Mapping[str, Json]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer KEY`."},
    "subprotocol": {
        "type": "httpApiKey",
        "in": "header",
        "name": "Sec-WebSocket-Protocol",
        "description": f"For browsers: the subprotocols `realtime` and `{KEY_SUBPROTOCOL}KEY`.",
    },
    "query": {
        "type": "httpApiKey",
        "in": "query",
        "name": "token",
        "description": "Only where the operator allows keys in the query.",
    },
}

_RULES: Final = """\
Speech over WebSocket. A text frame is one JSON object with a string `type`. Unknown fields are ignored in
both directions; only Live and Realtime GA refuse those of a client. Integers are written without a fraction.
Input audio has 16 kHz and output audio is float32 at 24 kHz, both in base64; in Live and Realtime GA a
session chooses the formats. In full duplex the input is cut into units of one second (in Live, into units
of the model's own length), and every unit is answered.

A refused event changes nothing: one `error` answers it, and the client may send it again corrected. An
`error` or the last event of the session precedes every Close that the server starts, unless the table says
otherwise.

## Error codes

{errors}

## Error codes of transcription

{utterance_errors}

## Error codes of Live

{live_errors}

## Error codes of Realtime GA

{ga_errors}

## Close codes

{closes}
"""


def document(version: str, examples: Mapping[str, Sequence[Json]]) -> Json:
    """Return the whole document; `examples` are events by the name of their dialect."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Antiphon",
            "version": version,
            "description": _RULES.format(
                errors=error_table(),
                utterance_errors=utterance_error_table(),
                live_errors=live_error_table(),
                ga_errors=ga_error_table(),
                closes=close_table(),
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "localhost:8006",
                "protocol": "ws",
                "description": "`antiphon serve` with its defaults, which ask for no key.",
                "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in _SECURITY],
            }
        },
        "channels": {name: _channel(name) for name in CHANNELS},
        "operations": {
            f"{channel}.{dialect.name}.{action}": _operation(dialect, channel, action)
            for dialect in DIALECTS
            for channel in dialect.channels
            for action in _ACTIONS
        },
        "components": {
            "messages": {
                f"{dialect.name}.{name}": _message(dialect, name, definition, examples[dialect.name])
                for dialect in DIALECTS
                for name, definition in events(bundle(dialect)).items()
            },
            "securitySchemes": dict(_SECURITY),
        },
    }


def _channel(name: str) -> Json:
    fields = dict(CHANNELS[name])
    query = {"type": "object", "properties": {**fields.pop("query"), **_EVERYWHERE}}
    names = [f"{d.name}.{event}" for d in DIALECTS if name in d.channels for event in events(bundle(d))]
    return {
        **fields,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {"ws": {"method": "GET", "query": query, "bindingVersion": "0.1.0"}},
    }


def _operation(dialect: Dialect, channel: str, action: str) -> Json:
    side = bundle(dialect)["$defs"][_ACTIONS[action]]
    names = [choice["$ref"].rpartition("/")[2] for choice in side["oneOf"]]
    return {
        "action": action,
        "title": dialect.title,
        "summary": f"{side['description']} {dialect.opening}",
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{dialect.name}.{name}"} for name in names],
    }


def _message(dialect: Dialect, name: str, definition: Json, examples: Sequence[Json]) -> Json:
    event, kind = type_and_kind(definition)
    shown = [e for e in examples if (e.get("type"), e.get("kind")) == (event, kind)]
    return {
        "name": event or name,
        "title": name,
        "summary": definition["description"],
        "payload": {"$ref": f"./{dialect.file}#/$defs/{name}"},
        "examples": [{"payload": example} for example in shown],
    }
