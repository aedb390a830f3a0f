"""The published schemas: that they are those of the code, true about what it takes, and of use in tests."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from antiphon.protocol import duplex
from tests.support import schemas
from tests.support.long import long
from tests.support.schemas import (
    DIALECTS,
    FOLDER,
    Event,
    Observer,
    check_client,
    check_server,
    is_client_event,
)
from tests.ws_adapter.support import conversation, driven
from tests.ws_adapter.support.judgement import refusal
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.live.events import Code as LiveCode
from ws_adapter.protocol.realtime_ga.wire.events import Code as GaCode
from ws_adapter.protocol.transcription.events import Code
from ws_adapter.protocol.wire import codec
from ws_adapter.protocol.wire.errors import CloseCode, ErrorCode
from ws_adapter.protocol.wire.events import ServerEvent
from ws_adapter.schemas import codes
from ws_adapter.schemas.__main__ import write
from ws_adapter.web.routes import Dialect, Selection, select


@long
def test_checked_in_files_are_those_of_the_code(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "examples", tmp_path / "examples")
    write(tmp_path)
    tables = ["asyncapi.json", "events.md", "events.d.ts", "usage.schema.json"]
    for name in [*(f"{dialect}.schema.json" for dialect in DIALECTS), *tables]:
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text(), f"{name}: run `make schemas`"


def references(document: Any) -> Iterator[str]:
    match document:
        case {"$ref": str(target)}:
            yield target
    for part in document.values() if isinstance(document, dict) else document:
        if isinstance(part, dict | list):
            yield from references(part)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_schema_is_json_schema_without_loose_ends(dialect: str) -> None:
    document = schemas.load(f"{dialect}.schema.json")
    Draft202012Validator.check_schema(document)
    used = set(references(document))
    assert {target for target in used if not schemas.resolve(document, target)} == set()
    assert used == {f"#/$defs/{name}" for name in document["$defs"]}


def events_of(dialect: str) -> dict[str, Event]:
    """Definitions of events by name, in both directions."""
    definitions = schemas.load(f"{dialect}.schema.json")["$defs"]
    choices = [*definitions["ClientEvent"]["oneOf"], *definitions["ServerEvent"]["oneOf"]]
    names = [choice["$ref"].rpartition("/")[2] for choice in choices]
    return {name: definitions[name] for name in names}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_example_is_valid_and_every_event_has_one(dialect: str) -> None:
    examples = schemas.examples(dialect)
    whole = Draft202012Validator(schemas.load(f"{dialect}.schema.json"))
    for example in examples:
        whole.validate(example)
        if not is_client_event(dialect, example):
            check_server(dialect, example)
    shown = {(example.get("type"), example.get("kind")) for example in examples}
    events = [definition["properties"] for definition in events_of(dialect).values()]
    assert shown == {
        tuple(fields.get(part, {}).get("const") for part in ("type", "kind")) for fields in events
    }


def test_codes_are_all_explained() -> None:
    assert set(codes.ERRORS) == set(ErrorCode)
    assert set(codes.UTTERANCE_ERRORS) == set(Code)
    assert set(codes.LIVE_ERRORS) == set(LiveCode)
    assert set(codes.GA_ERRORS) == set(GaCode)
    assert set(codes.CLOSES) == {*CloseCode, 1002, 1009}


@pytest.fixture(scope="module")
def asyncapi() -> Event:
    return schemas.load("asyncapi.json")


def test_asyncapi_has_no_loose_ends(asyncapi: Event) -> None:
    for target in references(asyncapi):
        file, _, pointer = target.partition("#")
        assert schemas.resolve(schemas.load(file) if file else asyncapi, f"#{pointer}")


def test_asyncapi_assigns_events_to_client_and_server(asyncapi: Event) -> None:
    def payloads(operation: Event) -> set[str]:
        messages = (schemas.resolve(asyncapi, reference["$ref"]) for reference in operation["messages"])
        return {schemas.resolve(asyncapi, message["$ref"])["payload"]["$ref"] for message in messages}

    told = {
        (name.split(".")[1], operation["action"]): payloads(operation)
        for name, operation in asyncapi["operations"].items()
    }
    for dialect in DIALECTS:
        definitions = schemas.load(f"{dialect}.schema.json")["$defs"]
        for action, side in (("receive", "ClientEvent"), ("send", "ServerEvent")):
            expected = {f"./{dialect}.schema.json{choice['$ref']}" for choice in definitions[side]["oneOf"]}
            assert told[dialect, action] == expected


CHANNELS = {
    "realtime": Dialect.REALTIME,
    "duplex": Dialect.DUPLEX,
    "unnamedDuplex": Dialect.DUPLEX,
    "transcription": Dialect.TRANSCRIPTION,
    "live": Dialect.LIVE,
}


def selected(address: str) -> Selection:
    found = select(address, (), Mode.VIDEO, frozenset(Mode))
    assert isinstance(found, Selection), address
    return found


def test_asyncapi_names_the_paths_and_modes_that_are_served(asyncapi: Event) -> None:
    for channel, dialect in CHANNELS.items():
        address = asyncapi["channels"][channel]["address"].format(session_id="adx_1")
        assert selected(address).dialect is dialect
    query = asyncapi["channels"]["realtime"]["bindings"]["ws"]["query"]["properties"]
    for mode in query["mode"]["enum"]:
        assert selected(f"/v1/realtime?mode={mode}").mode == mode


def example(dialect: str, name: str) -> Event:
    return next(event for event in schemas.examples(dialect) if name in (event["type"], event.get("kind")))


@pytest.mark.parametrize(
    ("dialect", "name", "change"),
    [
        ("realtime", "listen", {"undeclared": 1}),
        ("realtime", "listen", {"metrics": {"undeclared": 1}}),
        ("realtime", "listen", {"response_id": None}),
        ("realtime", "listen", {"reason": "over"}),
        ("realtime", "listen", {"text": "Seven"}),
        ("realtime", "text", {"chunk_index": -1}),
        ("realtime", "text", {"chunk_index": "7"}),
        ("realtime", "text", {"text": ...}),
        ("realtime", "audio", {"server_send_ts": ...}),
        ("realtime", "audio", {"type": "response.delta"}),
        ("realtime", "audio", {"kind": "video"}),
        ("realtime", "session.created", {"mode": "half_duplex"}),
        ("realtime", "session.closed", {"reason": "Not a word"}),
        ("realtime", "error", {"error": {"code": "odd", "message": "", "type": "client_error"}}),
        ("realtime", "error", {"error": {"code": "not_ready", "message": "", "type": "nobody"}}),
        ("earlier", "response.listen", {"kv_cache_length": ...}),
        ("earlier", "session.closed", {"reason": "user_stop"}),
        ("duplex", "result", {"audio_data": ...}),
        ("duplex", "result", {"dropped": None}),
        ("duplex", "result", {"current_time": 0}),
        ("duplex", "queued", {"eta_seconds": ...}),
        ("duplex", "error", {"code": "odd"}),
        ("transcription", "session.created", {"id": "sess_31d0c7aa54ef"}),
        ("transcription", "transcription.delta", {"delta": ""}),
        ("transcription", "transcription.done", {"usage": {"prompt_tokens": 1}}),
        ("transcription", "error", {"error": {"code": "invalid_audio"}}),
        ("live", "session.started", {"event_id": ...}),
        ("live", "session.closed", {"reason": "user_stop"}),
        ("realtime_ga", "response.done", {"response": {"id": "resp_1", "status": "completed"}}),
        ("realtime_ga", "conversation.item.added", {"previous_item_id": ...}),
        ("realtime_ga", "response.content_part.added", {"part": {"type": "audio", "transcript": None}}),
        ("realtime_ga", "error", {"error": {"type": "server_error", "message": ""}}),
        ("live", "session.output_transcript.delta", {"start_ms": 0.5}),
        ("live", "error", {"error": {"type": "client_error", "code": "unsupported", "message": ""}}),
    ],
)
def test_wrong_server_event_fails(dialect: str, name: str, change: Event) -> None:
    event = {**example(dialect, name), **change}
    event = {key: value for key, value in event.items() if value is not ...}
    check_server(dialect, example(dialect, name))
    with pytest.raises(AssertionError, match=re.escape(str(event["type"]))):
        check_server(dialect, event)


ASKS = {"force_listen": True}


@pytest.mark.parametrize("given", [{"hints": ASKS}, {"hints": ASKS, "force_listen": None}, ASKS])
def test_audio_may_be_omitted_with_force_listen(given: Event) -> None:
    event = {"type": "input.append", "input": given}
    check_client("realtime", event)
    assert refusal("realtime", event) is None


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        ("realtime", {"type": "session.init"}),
        ("realtime", {"type": "session.init", "payload": None}),
        ("realtime", {"type": "session.init", "payload": {"config": {"top_k": 0}}}),
        ("realtime", {"type": "input.append", "input": {}}),
        ("realtime", {"type": "input.append", "input": {"audio": ""}}),
        ("realtime", {"type": "input.append", "input": {"hints": {"force_listen": False}}}),
        ("realtime", {"type": "input.append", "input": {"hints": ASKS, "force_listen": False}}),
        ("realtime", {"type": "session.update", "session": {"instructions": "Be brief."}}),
        ("earlier", {"type": "session.update", "session": {"instructions": None}}),
        ("duplex", {"type": "audio_chunk", "force_listen": False}),
        ("duplex", {"type": "video_frame", "frame": ""}),
        ("duplex", {"type": ["stop"]}),
        ("duplex", {}),
        ("duplex", ["stop"]),
        ("transcription", {"type": "session.update", "session": {"model": "antiphon-mini"}}),
        ("transcription", {"type": "input_audio_buffer.append", "audio": None}),
        ("transcription", {"type": "input_audio_buffer.commit", "final": None}),
        ("transcription", {"type": "input_audio_buffer.commit", "final": "maybe"}),
        ("transcription", {"type": "response.create"}),
        ("live", {"type": "session.start"}),
        ("realtime_ga", {"type": "session.update", "session": {"type": "realtime", "temperature": 1}}),
        ("realtime_ga", {"type": "session.update", "session": {"instructions": "Be brief."}}),
        ("realtime_ga", {"type": "conversation.item.truncate", "item_id": "item_1", "content_index": 0}),
        ("realtime_ga", {"type": "response.create", "response": {"conversation": "main"}}),
        ("live", {"type": "session.start", "session": {"model": ""}}),
        ("live", {"type": "session.start", "session": {"model": "antiphon-mini", "tools": []}}),
        ("live", {"type": "session.start", "session": {"model": "m", "audio": {"format": {"type": "mp3"}}}}),
        ("live", {"type": "session.input_audio.append", "audio": "AAAA", "format": "pcm16"}),
        ("live", {"type": "session.output_audio.fixture.play", "content": "Well.", "delegation_id": None}),
    ],
)
def test_wrong_client_event_fails(dialect: str, event: Any) -> None:
    with pytest.raises(AssertionError):
        check_client(dialect, event)
    assert refusal(dialect, event) is not None


def test_long_audio_is_not_in_the_message() -> None:
    event = {"type": "input.append", "input": {"audio": "A" * 85_000, "input_id": 7}}
    with pytest.raises(AssertionError) as failed:
        check_client("realtime", event)
    assert "$.input.input_id" in str(failed.value)
    assert len(str(failed.value)) < 1000


def test_observer_holds_the_server_to_the_dialect_it_began() -> None:
    observer = Observer("/v1/realtime?mode=audio")
    observer.server_said(example("earlier", "session.queue_done"))
    observer.server_said(example("earlier", "session.created"))
    with pytest.raises(AssertionError, match="no ServerEvent of earlier"):
        observer.server_said(example("realtime", "listen"))


def test_observer_finds_what_the_server_should_have_refused() -> None:
    observer = Observer("/ws/duplex/omni_1")
    observer.client_said({"type": "pause", "timeout": "long"})
    with pytest.raises(AssertionError, match="timeout"):
        observer.end()
    observer.server_said(example("duplex", "error"))
    observer.end()


def test_conversation_in_a_jar_finds_what_neither_may_send(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(event: ServerEvent) -> bytes:
        return json.dumps({**json.loads(codec.encode(event)), "undeclared": 1}).encode()

    talk = conversation.Conversation(mode=Mode.AUDIO)
    talk.activate()
    with pytest.raises(AssertionError, match="too long"):
        talk.client(conversation.append(video_frames=["unseen"] * 5))
    monkeypatch.setattr(driven, "encode", encode)
    with pytest.raises(AssertionError, match="undeclared"):
        conversation.Conversation().activate()


def test_sdk_reads_every_example_and_offers_settings_that_the_server_knows() -> None:
    decoder = duplex.Decoder()
    told = [event for event in schemas.examples("realtime") if not is_client_event("realtime", event)]
    assert None not in [decoder.decode(json.dumps(event)) for event in told]
    settings = schemas.load("realtime.schema.json")["$defs"]["ConfigFields"]["properties"]
    assert set(duplex.DuplexConfig.__annotations__) <= set(settings)


def test_example_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(FOLDER.parents[1])
    exec(example, {})
