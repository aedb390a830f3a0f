"""Client secrets: who gets one, what it opens and what not, and whose limits it counts for."""

import base64
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference_service.interface.setups import Mode
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, running_worker, write
from tests.ws_adapter.access.test_keys import refused_upgrade
from tests.ws_adapter.support.conversation import Event, codes
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Client, ManualClock, Stage, running_adapter
from ws_adapter.access.client_secrets import LONGEST_SECRET
from ws_adapter.web.routes import LARGEST_BODY

PATH = "/v1/realtime/client_secrets"
SESSION = {"type": "realtime", "model": "scripted", "instructions": "Be kind.", "output_modalities": ["text"]}


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys", "alice", "bob", "admin")


@asynccontextmanager
async def served(keys: KeyFile | None = None, **options: Any) -> AsyncIterator[Stage]:
    given = {"auth": "keys", "keys": keys.path} if keys is not None else {}
    engine = ScriptedEngine(write("Seven."), slots=4, info=EVERYTHING, repeat=True)
    async with running_worker(engine, slots=4) as worker:
        async with running_adapter(worker.address, **given, **options) as stage:
            yield stage
            await stage.until(free_slots=4)


async def ask(stage: Stage, headers: dict[str, str] | None = None, **body: Any) -> tuple[int, Event]:
    status, _, told = await stage.request(PATH, "POST", headers, json.dumps(body).encode())
    return status, told


async def secret(stage: Stage, headers: dict[str, str] | None = None, **body: Any) -> str:
    status, told = await ask(stage, headers, **body)
    assert status == 200, told
    value: str = told["value"]
    return value


@asynccontextmanager
async def realtime(stage: Stage, key: str) -> AsyncIterator[Client]:
    """As a browser."""
    offered: Any = ["realtime", f"openai-insecure-api-key.{key}"]
    url = stage.address.replace("http", "ws") + "/v1/realtime?model=scripted"
    async with stage.client(url, subprotocols=offered) as client:
        yield client


@asynccontextmanager
async def bearing(stage: Stage, key: str, query: str = "") -> AsyncIterator[Client]:
    """As a server, which names no subprotocol."""
    url = stage.address.replace("http", "ws") + "/v1/realtime" + query
    async with stage.client(url, additional_headers={"Authorization": f"Bearer {key}"}) as client:
        yield client


async def is_refused(stage: Stage, key: str) -> bool:
    """Whether nobody comes in with this, and is told so as the protocol has it."""
    async with realtime(stage, key) as client:
        event = await client.next()
        if event["type"] == "session.created":
            return False
        assert event["error"]["code"] == "invalid_api_key"
        assert (await client.end())[1] == 3000
        return True


async def test_client_secret_response_describes_session_it_opens(keys: KeyFile) -> None:
    clock = ManualClock()
    async with served(keys, clock=clock) as stage:
        status, told = await ask(stage, keys.bearer("alice"), session=SESSION)

        assert status == 200
        assert told["value"].startswith("ek_")
        assert told["expires_at"] == int(clock.unix()) + 600
        assert SESSION.items() <= told["session"].items()
        assert told["session"]["object"] == "realtime.session"
        assert told["session"]["audio"]["input"]["turn_detection"]["interrupt_response"] is True
        async with realtime(stage, told["value"]) as client:
            created = await client.next()
        changing = {"id": "", "expires_at": 0}
        assert {**created["session"], **changing} == {**told["session"], **changing}


MU_LAW = {"format": {"type": "audio/pcmu"}, "transcription": {"model": "scripted"}, "turn_detection": None}
TRANSCRIPTION = {"type": "transcription", "audio": {"input": MU_LAW}}


@pytest.mark.parametrize("query", ["", "?intent=transcription", "?model=gpt-4o-transcribe"])
async def test_transcription_secret_opens_transcription_session_for_any_url(
    keys: KeyFile, query: str
) -> None:
    async with served(keys) as stage:
        status, told = await ask(stage, keys.bearer("alice"), session=TRANSCRIPTION)
        session = told["session"]
        assert status == 200
        assert session["object"] == "realtime.transcription_session"
        async with bearing(stage, told["value"], query) as client:
            created = await client.expect("session.created")
            second = base64.b64encode(b"\xff" * 8000).decode()
            await client.send(
                {"type": "input_audio_buffer.append", "audio": second}, {"type": "input_audio_buffer.commit"}
            )
            completed = "conversation.item.input_audio_transcription.completed"
            done = await client.expect_until(completed)

        assert session["audio"]["input"] == {**MU_LAW, "noise_reduction": None}
        told_anew = {name: created["session"][name] for name in ("id", "expires_at")}
        assert created["session"] == {**session, **told_anew}
        assert done["transcript"] == "Seven."
        assert done["usage"]["seconds"] == 1.0


@pytest.mark.parametrize("query", ["", "?model=", "?intent=transcription"])
@pytest.mark.parametrize("body", [{"session": SESSION}, {}], ids=["settings", "no settings"])
async def test_a_secret_names_the_model_so_that_the_url_need_not(
    keys: KeyFile, body: dict[str, Any], query: str
) -> None:
    """Neither a model nor the subprotocol, and other sessions by default: a secret opens nothing else."""
    async with served(keys, default_realtime_mode="transcription") as stage:
        value = await secret(stage, keys.bearer("alice"), **body)
        async with bearing(stage, value, query) as client:
            created = await client.expect("session.created")
            assert (created["session"]["type"], created["session"]["model"]) == ("realtime", "scripted")


async def test_invalid_secret_gets_error_event_at_every_realtime_url(keys: KeyFile) -> None:
    async with served(keys) as stage:
        for query in ("", "?intent=transcription", "?model=scripted"):
            async with bearing(stage, "ek_wrong", query) as client:
                ((event,), close) = await client.end()
                assert (event["error"]["code"], close) == ("invalid_api_key", 3000)


async def test_transcription_secret_without_transcribing_model_is_rejected() -> None:
    engine = ScriptedEngine(info=replace(EVERYTHING, modes=frozenset({Mode.AUDIO})))
    async with running_worker(engine) as worker, running_adapter(worker.address) as stage:
        status, told = await ask(stage, session=TRANSCRIPTION)
        assert (status, told["error"]["param"]) == (400, "session.type")


async def test_a_secret_makes_no_secrets_and_opens_nothing_else(keys: KeyFile) -> None:
    """The attack: what a browser was given is used as if it were the key, of an admin even."""
    async with served(keys, admin_port=0) as stage:
        bearer = {"Authorization": f"Bearer {await secret(stage, keys.bearer('admin'))}"}

        assert (await ask(stage, bearer))[0] == 401
        for path in ("/v1/models", "/status", "/api/queue"):
            assert (await stage.request(path, headers=bearer))[0] == 401, path
        for path in ("/v1/realtime?mode=audio", "/ws/duplex/adx_1", "/ws/chat"):
            assert (await refused_upgrade(stage, path, additional_headers=bearer)).status_code == 401, path
        live = stage.address.replace("http", "ws") + "/v1/live/sessions"
        async with stage.client(live, additional_headers=bearer) as client:
            assert (await client.next())["error"]["code"] == "invalid_api_key"
        admin = Stage(f"http://127.0.0.1:{stage.adapter.admin_port}", *list(vars(stage).values())[1:])
        assert (await admin.request("/status.json", headers=bearer))[0] == 401


async def test_only_a_key_and_no_page_of_another_origin_makes_secrets(keys: KeyFile) -> None:
    clock, alice = ManualClock(), keys.bearer("alice")
    async with served(keys, clock=clock, allowed_origins=("https://example.org",)) as stage:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert (await ask(stage, headers))[0] == 401
        assert (await ask(stage, {**alice, "Origin": "https://evil.example"}))[0] == 403
        for seconds in (10, 7200):
            headers = {**alice, "Origin": "https://example.org"}
            lasting = {"anchor": "created_at", "seconds": seconds}
            status, told = await ask(stage, headers, expires_after=lasting)
            assert (status, told["expires_at"]) == (200, int(clock.unix()) + seconds)


async def test_invalid_secret_settings_are_rejected_with_code_and_field() -> None:
    noise = base64.b64encode(random.Random(0).randbytes(LONGEST_SECRET)).decode()
    unserved = {"input": {"transcription": {"model": "x"}}}
    sessions: list[tuple[Event, str, str]] = [
        ({"type": "realtime", "model": "gpt-realtime"}, "invalid_value", "session.model"),
        ({"type": "realtime", "temperature": 1}, "unknown_parameter", "session.temperature"),
        ({}, "missing_required_parameter", "session.type"),
        ({"type": "translation"}, "invalid_value", "session.type"),
        ({"type": "transcription", "model": "scripted"}, "unknown_parameter", "session.model"),
        (
            {"type": "transcription", "audio": unserved},
            "invalid_value",
            "session.audio.input.transcription.model",
        ),
        ({"type": "realtime", "instructions": noise}, "invalid_value", "session"),
    ]
    bodies: list[tuple[Event, str, str]] = [
        ({"expires_after": {"seconds": 9}}, "invalid_value", "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "invalid_value", "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "invalid_value", "expires_after.anchor"),
        ({"ttl": 60}, "unknown_parameter", "ttl"),
        *(({"session": session}, code, param) for session, code, param in sessions),
    ]
    async with served() as stage:
        for body, code, param in bodies:
            status, told = await ask(stage, **body)
            error = told["error"]
            assert (status, error["code"], error["param"]) == (400, code, param), str(body)[:100]
            assert error["type"] == "invalid_request_error"


async def test_a_body_is_bounded_json_of_known_length() -> None:
    async with served() as stage:
        for body, status in (
            (b" " * LARGEST_BODY, 400),
            (b" " * (LARGEST_BODY + 1), 413),
            (b"{", 400),
            (b"\xff", 400),
            (b"[" * 60_000, 400),
            (b"[]", 400),
            (b"", 200),
        ):
            assert (await stage.request(PATH, "POST", body=body))[0] == status, body[:10]
        chunked = {"Transfer-Encoding": "chunked"}
        assert (await stage.request(PATH, "POST", chunked))[0] == 411
        status, headers, _ = await stage.request(PATH)
        assert (status, headers["allow"]) == (405, "post")


async def test_without_a_worker_none_is_made(lonely: Stage) -> None:
    assert (await ask(lonely))[0] == 503


async def test_secrets_and_their_sessions_end_with_their_key(keys: KeyFile) -> None:
    async with served(keys) as stage:
        value = await secret(stage, keys.bearer("alice"))
        async with realtime(stage, value) as client:
            await client.next()

            keys.remove("alice")
            stage.adapter.reload()

            events, close = await client.end()
            assert codes([event for event in events if event["type"] == "error"]) == ["invalid_api_key"]
            assert close == 3000
        assert await is_refused(stage, value)


async def test_invalid_secret_is_rejected_even_if_keys_are_disabled() -> None:
    """Its settings are not silently forgotten."""
    async with served() as stage:
        value = await secret(stage, session=SESSION)
        async with realtime(stage, value) as client:
            assert (await client.next())["session"]["instructions"] == "Be kind."

        assert await is_refused(stage, f"{value[:-5]}AAAAA")
