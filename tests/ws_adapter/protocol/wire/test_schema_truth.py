"""The published schemas against the decoder: what the one allows, the other takes."""

import base64
import copy
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import schemas
from tests.support.long import examples
from tests.support.schemas import DIALECTS, Event, is_client_event
from tests.ws_adapter.support.chat_conversation import USER
from tests.ws_adapter.support.conversation import CATALOGUE, pcm
from tests.ws_adapter.support.duplex_conversation import pictured
from tests.ws_adapter.support.judgement import refusal

AUDIO = "AAAAAI/C9Tw="
VOICE = pcm(0.5)
PICTURE = pictured()
VIDEO = base64.b64encode(b"\0\0\0\x10ftypisom").decode()
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}

CLOSE: Event = {"type": "session.close"}
G2_APPEND: Event = {"type": "input_audio_buffer.append", "audio": AUDIO}


def typed(*names: str) -> list[Event]:
    return [{"type": name} for name in names]


MINIMAL: dict[str, list[Event]] = {
    "realtime": [
        {"type": "session.init", "payload": {}},
        {"type": "input.append", "input": {"audio": AUDIO}},
        CLOSE,
    ],
    "earlier": [{"type": "session.update", "session": {"instructions": "Be brief."}}, G2_APPEND, CLOSE],
    "duplex": [
        {"type": "audio_chunk", "audio_base64": AUDIO},
        *typed("prepare", "video_frame", "pause", "resume", "interrupt", "stop", "client_diagnostic"),
    ],
    "realtime_chat": [
        {"type": "session.init", "payload": {}},
        {"type": "input.append", "input": {"messages": [USER]}},
        CLOSE,
    ],
    "chat": [{"messages": [USER]}],
    "transcription": [
        {"type": "session.update", "model": "antiphon-mini"},
        *(G2_APPEND, {"type": "input_audio_buffer.commit"}),
    ],
    "live": [
        {"type": "session.start", "session": {"model": "antiphon-mini"}},
        {"type": "session.update", "session": {}},
        {"type": "session.input_audio.append", "audio": AUDIO},
        *typed("session.input_audio.mute", "session.input_audio.unmute", "session.close"),
        *({"type": f"session.{name}.append", "content": "Note."} for name in ("instructions", "thinking")),
    ],
    "realtime_ga": [
        {"type": "session.update", "session": {"type": "realtime"}},
        {"type": "conversation.item.create", "item": ITEM},
        *({"type": f"conversation.item.{name}", "item_id": "item_1"} for name in ("retrieve", "delete")),
        {"type": "conversation.item.truncate", "item_id": "item_1", "content_index": 0, "audio_end_ms": 0},
        *(G2_APPEND, *typed("input_audio_buffer.commit", "input_audio_buffer.clear")),
        *typed("output_audio_buffer.clear", "response.create", "response.cancel"),
    ],
    "transcription_ga": [
        {"type": "session.update", "session": {"type": "transcription"}},
        *(G2_APPEND, *typed("input_audio_buffer.commit", "input_audio_buffer.clear", "response.create")),
    ],
}

CONTENT = {"model", "ref_audio_path", "voice", "id"}
"""Besides base64: strings whose content decides, which no schema can know."""

CHOSEN = ("tool_choice", "function", "name")
"""Another such: it names one of the tools."""


def client_events(dialect: str) -> dict[str, Event]:
    """Definitions of client events by `type`."""
    definitions = schemas.load(f"{dialect}.schema.json")["$defs"]
    found = (
        schemas.resolve({"$defs": definitions}, choice["$ref"])
        for choice in definitions["ClientEvent"]["oneOf"]
    )
    return {definition["properties"].get("type", {}).get("const", ""): definition for definition in found}


def leaves(
    definitions: Event, schema: Event, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Event]]:
    """Each field at or below `schema`, with its schema."""
    for choice in [schema, *schema.get("anyOf", [])]:
        if "$ref" in choice:
            yield from leaves(definitions, schemas.resolve({"$defs": definitions}, choice["$ref"]), path)
    for name, field in schema.get("properties", {}).items():
        if name != "type" or path:
            yield (*path, name), field
            yield from leaves(definitions, field, (*path, name))


VALUES: list[Any] = [
    *(None, False, True, [], {}, [None], [1], [""], [{}], {"x": 1}),
    *(-1, 0, 1, 2, 3, 5, 6, 9, 10, 60, 61, 100, 101, 1000, 1001, 8192, 8193, 16000, 16001),
    *(2**32 - 1, 2**32, 2**63 - 1, 2**63, 10**30),
    *(-0.1, 0.05, 0.1, 0.3, 0.5, 1.1, 2.1, 5.1, 10.1),
    *("", "f32", "pcm16", "greedy", "sampling", "explicit", "listen"),
    *("x" * size for size in (128, 129, 32_768, 32_769)),
    *([PICTURE] * 4, [PICTURE] * 5, [{"data": PICTURE}], {"base64": PICTURE}, {"data": AUDIO}),
]
"""On both sides of every bound that a field has, and of every type."""


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.sample("realtime", "duplex", "live", "realtime_ga")
def test_schema_and_server_take_the_same_values_in_every_field(dialect: str) -> None:
    definitions = schemas.load(f"{dialect}.schema.json")["$defs"]
    shapes = client_events(dialect)
    taken = refused = 0
    for minimal in MINIMAL[dialect]:
        for path, schema in leaves(definitions, shapes[minimal.get("type", "")]):
            is_content = path[-1] in CONTENT or path[-3:] == CHOSEN
            is_content = is_content or any(mark in str(schema) for mark in ("contentEncoding", "$ref"))
            for value in VALUES:
                event = with_value(minimal, path, value)
                fault, allowed = refusal(dialect, event), is_client_event(dialect, event)
                if allowed and is_content and value and isinstance(value, str | list | dict):
                    continue
                assert (fault is None) == allowed, (path, value, fault and fault.message)
                taken, refused = taken + allowed, refused + (not allowed)
    assert taken > (3 if dialect == "transcription" else 50)
    assert refused > 50


def with_value(event: Event, path: tuple[str, ...], value: Any) -> Event:
    """A copy of `event` with `value` at `path`."""
    changed: Event = copy.deepcopy(event)
    place = changed
    for name in path[:-1]:
        if not isinstance(place.get(name), dict):
            place[name] = {}
        place = place[name]
    place[path[-1]] = value
    return changed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def instances(definitions: Event, schema: Event, name: str = "") -> st.SearchStrategy[Any]:
    """Values that `schema` allows, if it asks for nothing but the form; base64 is of the right thing."""
    match schema:
        case {"$ref": target}:
            return instances(definitions, schemas.resolve({"$defs": definitions}, target), name)
        case {"const": value}:
            return st.just(value)
        case {"enum": values}:
            return st.sampled_from(values)
        case {"anyOf": choices} if "properties" not in schema:
            return st.one_of(instances(definitions, choice, name) for choice in choices)
        case {"type": [kind, "null"]}:
            return st.none() | instances(definitions, {**schema, "type": kind}, name)
        case {"type": "null"}:
            return st.none()
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "integer"}:
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case {"type": "number"}:
            lowest = schema.get("minimum", schema.get("exclusiveMinimum"))
            is_open = "exclusiveMinimum" in schema
            return st.floats(
                lowest, schema.get("maximum"), exclude_min=is_open, allow_nan=False, allow_infinity=False
            )
        case {"type": "array"}:
            items = instances(definitions, schema["items"], name) if "items" in schema else JSON
            return st.lists(items, max_size=min(schema.get("maxItems", 3), 5))
        case {"type": "object", "properties": fields}:
            made = {key: instances(definitions, field, f"{name}.{key}") for key, field in fields.items()}
            required = {key: made.pop(key) for key in schema.get("required", ())}
            known = st.fixed_dictionaries(required, optional=made)
            unknown = st.dictionaries(
                st.text(max_size=5).filter(lambda key: key not in fields), JSON, max_size=1
            )
            return st.builds(lambda more, told: {**more, **told}, unknown, known)
        case {"type": "string"}:
            return texts(schema, name)
    return JSON


def texts(schema: Event, name: str) -> st.SearchStrategy[str]:
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True)
    if name.endswith("model"):
        return st.sampled_from(["", *CATALOGUE.models])
    if name.endswith(("output.voice", "voice.id")):
        return st.sampled_from(sorted(CATALOGUE.of("").voices or ()))
    if name.endswith("ref_audio_path"):
        return st.sampled_from(["", *(CATALOGUE.of("").voices or ())])
    if "contentEncoding" in schema:
        if "Matroska" in schema.get("description", ""):
            return st.just(VIDEO)
        is_picture = "WebP" in schema.get("description", "") or re.search(r"frame|image|^\.data", name)
        value = VOICE if "ref_audio" in name else PICTURE if is_picture else AUDIO
        return st.just(value) if "minLength" in schema else st.sampled_from([value, ""])
    longest = schema.get("maxLength", 10)
    return st.text(min_size=schema.get("minLength", 0), max_size=10) | st.just("x" * longest)


@cache
def proper_events(dialect: str) -> st.SearchStrategy[Event]:
    """Client events that the schema allows."""
    definitions = schemas.load(f"{dialect}.schema.json")["$defs"]
    shapes = [instances(definitions, shape) for shape in client_events(dialect).values()]
    return st.one_of(shapes).map(conversing).filter(lambda event: is_client_event(dialect, event))


def conversing(event: Event) -> Event:
    """Without calls in its history and tools: there each field decides what others may be."""
    asked = event.get("input", event)
    messages = asked.get("messages") if isinstance(asked, dict) else None
    if isinstance(messages, list):
        asked.pop("tools", None)
        asked.pop("tool_choice", None)
        for message in messages:
            message.pop("tool_calls", None)
            message.pop("tool_call_id", None)
            message["role"] = "user" if message["role"] == "tool" else message["role"]
            message["content"] = message.get("content") or "Hello"
    return event


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_events_valid_by_schema_are_accepted_by_server(dialect: str, data: st.DataObject) -> None:
    fault = refusal(dialect, data.draw(proper_events(dialect)))
    assert fault is None, fault
