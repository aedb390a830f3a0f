"""OpenAI's clients come in on `/v1/realtime`, and those who may not are told so in its words."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from websockets.asyncio.client import connect
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request

from antiphon_service.semconv import Rejection
from antiphon_service.telemetry.providers import Telemetry
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, write
from tests.support.scripted_engine import telemetry as worker_telemetry
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.spans import Traced, everything
from tests.ws_adapter.support.stage import PATIENCE_S, Client, ManualClock, Stage, serving
from ws_adapter.access.http.access import Access, Denied
from ws_adapter.access.rate_limit import Caller
from ws_adapter.options import AdapterOptions
from ws_adapter.protocol.core.config import Mode
from ws_adapter.web.routes import Dialect, Selection

PATH = "/v1/realtime?model=scripted"


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys", "alice", "bob")


@asynccontextmanager
async def served(
    keys: KeyFile | None = None, slots: int = 2, observed: Telemetry | None = None, **options: Any
) -> AsyncIterator[Stage]:
    given = {"auth": "keys", "keys": keys.path} if keys is not None else {}
    engine = ScriptedEngine(write("Seven."), slots=slots, info=EVERYTHING, repeat=True)
    async with serving(engine, {"observed": observed}, **given, **options) as stage:
        yield stage
        await stage.until(free_slots=slots)


async def told(client: Client) -> tuple[str, int | None, str]:
    """The code of the one event that comes, the close code and its reason."""
    (event,), close = await client.end()
    assert event["type"] == "error"
    assert event["event_id"].startswith("event_")
    return event["error"]["code"], close, client.socket.close_reason or ""


@pytest.mark.parametrize("key_first", [False, True])
async def test_trap_1_the_subprotocol_answered_is_realtime_and_never_the_key(
    keys: KeyFile, key_first: bool
) -> None:
    named: Any = ["openai-agents-sdk.0.20.0", "openai-organization.org_1", "openai-project.proj_1"]
    key: Any = f"openai-insecure-api-key.{keys.secrets['alice']}"
    offered: Any = [key, *named, "realtime"] if key_first else ["realtime", key, *named]
    async with served(keys) as stage, stage.client(PATH, subprotocols=offered) as client:
        assert client.socket.subprotocol == "realtime"
        assert client.socket.response is not None
        assert keys.secrets["alice"] not in str(client.socket.response.headers)
        assert (await client.next())["type"] == "session.created"


async def test_trap_2_the_session_is_the_first_event_and_unknown_headers_mean_nothing(keys: KeyFile) -> None:
    headers = {
        **keys.bearer("alice"),
        "OpenAI-Organization": "org_1",
        "OpenAI-Project": "proj_1",
        "OpenAI-Safety-Identifier": "somebody",
        "OpenAI-Beta": "assistants=v2",
    }
    async with served(keys) as stage, stage.client(PATH, additional_headers=headers) as client:
        assert (await client.next())["type"] == "session.created"


async def test_invalid_key_is_reported_by_close_3000_and_not_by_401(keys: KeyFile) -> None:
    wrong: list[Any] = [
        {},
        {"additional_headers": {"Authorization": "Bearer wrong"}},
        {"subprotocols": ["realtime", "openai-insecure-api-key.wrong"]},
    ]
    async with served(keys) as stage:
        for credentials in wrong:
            async with stage.client(PATH, **credentials) as client:
                assert client.socket.subprotocol == ("realtime" if "subprotocols" in credentials else None)
                reason = "invalid_request_error.invalid_api_key"
                assert await told(client) == ("invalid_api_key", 3000, reason)
        for path in ("/v1/realtime?mode=audio", "/v1/realtime", "/ws/duplex/adx_1", "/v1/transcription"):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(stage.at(path))
            assert refusal.value.response.status_code == 401, path


async def test_a_crowd_with_bad_keys_takes_no_slot_and_no_place_from_those_with_good_ones(
    keys: KeyFile,
) -> None:
    """The attack: two hundred of them at once on two slots, while somebody talks and another comes."""
    async with served(keys) as stage, stage.client(PATH, additional_headers=keys.bearer("alice")) as talking:
        assert (await talking.next())["type"] == "session.created"

        async def knock() -> int | None:
            async with stage.client(PATH, additional_headers={"Authorization": "Bearer wrong"}) as client:
                return (await told(client))[1]

        knocking = [asyncio.create_task(knock()) for _ in range(200)]
        async with stage.client(PATH, additional_headers=keys.bearer("bob")) as coming_in:
            assert (await coming_in.next())["type"] == "session.created"
        async with asyncio.timeout(PATIENCE_S):
            assert set(await asyncio.gather(*knocking)) == {3000}
        await stage.until(free_slots=1)
        await talking.send({"type": "session.update", "session": {"type": "realtime"}})
        await talking.expect_until("session.updated")


async def test_bad_keys_count_for_the_limits_of_their_address(keys: KeyFile) -> None:
    far: Any = {"X-Forwarded-For": "203.0.113.5", "Authorization": "Bearer wrong"}
    options: Any = {"trusted_proxies": ("127.0.0.0/8",), "opens_per_min_per_address": 3}
    async with served(keys, **options) as stage:
        for _ in range(3):
            async with stage.client(PATH, additional_headers=far) as client:
                assert (await told(client))[1] == 3000
        with pytest.raises(InvalidStatus) as refusal:
            async with stage.client(PATH, additional_headers=far):
                pass
        assert refusal.value.response.status_code == 429
        good = {**keys.bearer("alice"), "X-Forwarded-For": "203.0.113.6"}
        async with stage.client(PATH, additional_headers=good) as client:
            assert (await client.next())["type"] == "session.created"


async def test_open_connection_with_invalid_key_counts_for_its_address(
    keys: KeyFile,
) -> None:
    options = AdapterOptions(("127.0.0.1:1",), auth="keys", keys=keys.path, connections_per_address=1)
    access = Access(options, ManualClock())
    caller = Caller(ip_address("203.0.113.5"), is_local=False)
    wrong = Request(PATH, Headers({"Authorization": "Bearer wrong"}))

    entry = await access.enter(wrong, caller, Selection(Dialect.REALTIME_GA, Mode.CHAT))

    assert entry.key_rejection is Rejection.AUTH
    with pytest.raises(Denied) as refusal:
        await access.enter(wrong, caller, Selection(Dialect.REALTIME_GA, Mode.CHAT))
    assert refusal.value.reason is Rejection.RATE
    entry.leave()
    await access.enter(wrong, caller, Selection(Dialect.REALTIME_GA, Mode.CHAT))


async def test_keys_and_secrets_are_in_no_span_and_never_logged(
    keys: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in attributes nor in events or links, of the adapter or the worker: whoever is let in or not,
    and wherever the key stands."""
    caplog.set_level(logging.DEBUG, "ws_adapter")
    traced, worker_spans = Traced(), InMemorySpanExporter()
    observed = worker_telemetry(worker_spans)
    async with served(keys, observed=observed, telemetry=traced.telemetry, auth_query=True) as stage:
        _, _, made = await stage.request(
            "/v1/realtime/client_secrets", "POST", keys.bearer("alice"), json.dumps({}).encode()
        )
        tried = (made["value"], *keys.secrets.values(), "ak_wrong-secret", "ek_wrong-secret")
        for key in tried:
            offered: Any = ["realtime", f"openai-insecure-api-key.{key}"]
            bearer = {"Authorization": f"Bearer {key}"}
            async with stage.client(PATH, subprotocols=offered) as client:
                if (await client.next())["type"] == "session.created":
                    hello = [{"type": "input_text", "text": "Hello"}]
                    item = {"type": "message", "role": "user", "content": hello}
                    await client.send({"type": "conversation.item.create", "item": item})
                    await client.send({"type": "response.create"})
                    await client.expect_until("response.done")
            async with stage.client(PATH, additional_headers=bearer) as client:
                await client.next()
            async with stage.client(f"{PATH}&token={key}") as client:
                await client.next()
            with suppress(InvalidStatus):
                async with stage.client(f"/ws/chat?token={key}", additional_headers=bearer):
                    pass

    assert traced.still_open == 0
    assert len(traced.spans) > 4 * len(tried)
    told = everything([*traced.spans, *worker_spans.get_finished_spans()])
    log = "\n".join(str(vars(record)) for record in caplog.records if record.name.startswith("ws_adapter"))
    assert log
    for secret in (*keys.secrets.values(), made["value"], "wrong-secret"):
        assert secret not in told
        assert secret not in log


async def test_the_beta_a_call_and_a_model_that_is_not_served_are_refused_by_name() -> None:
    async with served() as stage:
        for path, headers, code in (
            (PATH, {"OpenAI-Beta": "realtime=v1"}, "beta_api_shape_disabled"),
            (PATH, {"OpenAI-Beta": "assistants=v2, realtime=v1"}, "beta_api_shape_disabled"),
            ("/v1/realtime?call_id=rtc_1", {}, "invalid_value"),
            ("/v1/realtime?model=", {}, "missing_model"),
            ("/v1/realtime?model=x", {}, "invalid_model"),
        ):
            async with stage.client(path, additional_headers=headers) as client:
                assert await told(client) == (code, 4000, f"invalid_request_error.{code}")
