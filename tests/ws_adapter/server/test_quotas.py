"""Quotas at a real adapter with a real worker: what tenants may use, and what is written of it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from antiphon_service.pools import pool_name
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, listen, running_worker, write
from tests.ws_adapter.observability.test_metrics import figures
from tests.ws_adapter.support.backend import age
from tests.ws_adapter.support.chat_conversation import request
from tests.ws_adapter.support.conversation import CLOSE, Event, append
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Client, ManualClock, Stage, running_adapter, until
from ws_adapter.protocol.core.config import Mode
from ws_adapter.usage import accounts
from ws_adapter.usage.accounts import Accounts
from ws_adapter.usage.line import UsageLine, decode
from ws_adapter.usage.shared import RedisUsageStore

CHAT = "/ws/chat"
AUDIO = "/v1/realtime?mode=audio"
DIALECTS = [
    (AUDIO, "quota_exceeded"),
    ("/ws/duplex/adx_1", "quota_exceeded"),
    ("/v1/realtime?mode=chat", "quota_exceeded"),
    ("/v1/realtime?model=scripted", "insufficient_quota"),
]


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    keys = KeyFile(tmp_path / "keys", "admin")
    keys.add("spender", seconds_per_day="60")
    keys.add("other", seconds_per_day="3600")
    return keys


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "usage.jsonl"


@asynccontextmanager
async def served(
    key_file: KeyFile, log: Path, *script: Any, slots: int = 4, **options: Any
) -> AsyncIterator[Stage]:
    engine = ScriptedEngine(*(script or (listen(),)), slots=slots, info=EVERYTHING, repeat=True)
    options = {"clock": ManualClock(), "auth": "keys", "keys": key_file.path, "usage_log": log, **options}
    async with running_worker(engine, slots=slots, dispatcher=options.get("dispatcher")) as worker:
        workers = () if "dispatcher" in options else (worker.address,)
        async with running_adapter(*workers, **options) as stage:
            yield stage


@asynccontextmanager
async def client(stage: Stage, keys: KeyFile, name: str, path: str = AUDIO) -> AsyncIterator[Client]:
    async with stage.client(path, additional_headers=keys.bearer(name)) as one:
        yield one


async def status_of(stage: Stage, keys: KeyFile, name: str) -> tuple[int, str, str]:
    """Status, code and `Retry-After` of what a WebSocket is answered."""
    with pytest.raises(InvalidStatus) as refusal:
        await connect(stage.url, additional_headers=keys.bearer(name))
    response = refusal.value.response
    told = json.loads(response.body or b"{}")
    return response.status_code, told["error"]["code"], response.headers["Retry-After"]


async def pass_time(stage: Stage, seconds: int) -> None:
    """Lets time pass second by second, so that clients and workers keep up."""
    assert isinstance(stage.clock, ManualClock)
    for _ in range(seconds):
        await stage.clock.advance(1)


def renamed(log: Path) -> Path:
    """As rotation does it."""
    return log.rename(log.with_suffix(".1"))


def lines(log: Path) -> list[UsageLine]:
    return [decode(text) for text in log.read_bytes().splitlines()]


async def written(log: Path, count: int) -> list[UsageLine]:
    await until(lambda: len(log.read_bytes().splitlines()) >= count)
    return lines(log)


async def test_one_key_spends_its_quota_while_the_other_talks_on(keys: KeyFile, log: Path) -> None:
    async with served(keys, log, session_limit_audio_s=0, duplex_idle_s=10_000) as stage:
        async with client(stage, keys, "spender") as spender, client(stage, keys, "other") as other:
            await spender.begin()
            await other.begin()
            await pass_time(stage, 62)

            told, close = await spender.end()
            errors = [event["error"]["code"] for event in told if event["type"] == "error"]
            assert (errors, close) == (["quota_exceeded"], 1008)
            await other.send(append(1.0))
            await other.expect("listen")
            status, code, retry = await status_of(stage, keys, "spender")
            assert (status, code) == (429, "quota_exceeded")
            assert 0 < int(retry) <= 86_400
            await other.send(CLOSE)
            await other.rest()

        spent, talked = await written(log, 2)
        assert (spent.key, spent.reason) == ("spender", "quota_exceeded")
        assert (spent.mode, spent.via) == ("audio_duplex", "websocket")
        assert 60 <= spent.seconds <= 62
        assert (talked.key, talked.reason, talked.model) == ("other", "user_stop", EVERYTHING.name)
        assert talked.seconds >= spent.seconds


@pytest.mark.parametrize(("path", "code"), DIALECTS)
async def test_session_that_begins_without_quota_ends_in_the_words_of_its_protocol(
    keys: KeyFile, log: Path, path: str, code: str
) -> None:
    keys.change("spender", seconds_per_day="1")
    async with served(keys, log) as stage:
        async with client(stage, keys, "spender") as first:
            await first.expect_until("session.queue_done")
        await written(log, 1)
        async with client(stage, keys, "spender", path) as second:
            told: list[Event] = []
            with suppress(ConnectionClosed):
                await second.socket.send(json.dumps({"type": "session.update", "session": {}}))
            told, close = await second.end()

        assert close == 1008
        assert code in json.dumps([event for event in told if event["type"] == "error"])


async def test_sessions_that_are_opened_and_dropped_are_paid_for(keys: KeyFile, log: Path) -> None:
    """Attack: a tenant opens and drops sessions, so that none of them lasts long enough to be counted."""
    keys.change("spender", seconds_per_day="5")
    async with served(keys, log) as stage:
        for number in range(5):
            async with client(stage, keys, "spender") as dropped:
                await dropped.expect_until("session.queue_done")
                dropped.vanish()
            await written(log, number + 1)

        async with client(stage, keys, "spender") as late:
            assert (await late.end())[1] == 1008
        assert (await status_of(stage, keys, "spender"))[0] == 429
        assert [line.seconds for line in (await written(log, 6))] == [1.0] * 5 + [0.0]


async def test_tokens_of_a_chat_are_spent_and_written(keys: KeyFile, log: Path) -> None:
    keys.add("reader", tokens_per_day="1000")
    says = replace(write("Seven.", "Eight."), tokens=600)
    async with served(keys, log, says) as stage:
        for number in (1, 2):
            async with client(stage, keys, "reader", CHAT) as chat:
                await chat.send(request())
                assert (await chat.end())[1] == 1000
            await written(log, number)  # what is left of its slice is given back by then
        first, second = await written(log, 2)
        assert (first.key, first.dialect, first.output_tokens) == ("reader", "chat", 600)
        assert second.output_tokens == 600

        async with client(stage, keys, "reader", CHAT) as chat:
            await chat.send(request())
            told, close = await chat.end()
        assert (told[-1]["code"], close) == ("quota_exceeded", 1008)


async def test_chat_completion_without_quota_gets_insufficient_quota_error(keys: KeyFile, log: Path) -> None:
    keys.change("spender", seconds_per_day="1")
    messages = [{"role": "user", "content": "Hello?"}]
    body = json.dumps({"model": EVERYTHING.name, "messages": messages}).encode()
    headers = {**keys.bearer("spender"), "Content-Type": "application/json"}
    async with served(keys, log, write("Seven.")) as stage:
        answers = []
        for number in (1, 2, 2):
            answers.append(await stage.request("/v1/chat/completions", "POST", headers, body))
            told = await written(log, number)

    assert [status for status, _, _ in answers] == [200, 429, 429]
    assert [answer["error"]["code"] for _, _, answer in answers[1:]] == ["insufficient_quota"] * 2
    assert [(line.via, line.seconds) for line in told] == [("http", 1.0), ("http", 0.0)]


async def test_key_with_priority_is_served_before_one_that_came_earlier(keys: KeyFile, log: Path) -> None:
    keys.add("first", priority="high")
    async with served(keys, log, slots=1) as stage:
        async with client(stage, keys, "admin") as talking:
            await talking.expect("session.queue_done")
            async with client(stage, keys, "other") as earlier:
                assert (await earlier.expect("session.queued"))["position"] == 1
                async with client(stage, keys, "first") as later:
                    assert (await later.expect("session.queued"))["position"] == 1
                    talking.vanish()
                    await later.expect_until("session.queue_done")
                    later.vanish()
                await earlier.expect_until("session.queue_done")


async def test_invented_keys_leave_nothing_behind(keys: KeyFile, log: Path) -> None:
    """Attack: thousands of keys that nobody made, for memory, series of figures and lines of the log."""
    options: dict[str, Any] = {"opens_per_min_per_address": 0, "admin_port": 0}
    async with served(keys, log, **options) as stage:
        before = await figures(stage, keys.bearer("admin"))
        for number in range(2000):
            status, _, _ = await stage.request("/v1/models", headers={"Authorization": f"Bearer ak_{number}"})
            assert status == 401
        for number in range(50):
            with pytest.raises(InvalidStatus):
                await connect(stage.url, additional_headers={"Authorization": f"Bearer ak_{number}"})

        after = await figures(stage, keys.bearer("admin"))
        assert tenants(after) == tenants(before)
        counted = accounts_of(stage)
        assert (len(counted._open), len(counted._spent)) == (0, 0)
        assert lines(log) == []


async def test_figures_name_the_keys(keys: KeyFile, log: Path) -> None:
    keys.add("reader", tokens_per_day="1000")
    async with served(keys, log, replace(write("Seven."), tokens=600), admin_port=0) as stage:
        async with client(stage, keys, "reader", CHAT) as chat:
            await chat.send(request())
            await chat.end()
        [line] = await written(log, 1)

        told = tenants(await figures(stage, keys.bearer("admin")))

    assert told['antiphon_tenant_sessions_total{tenant="reader"}'] == 1
    assert told['antiphon_tenant_seconds_total{tenant="reader"}'] == line.seconds
    assert told['antiphon_tenant_tokens_total{direction="out",tenant="reader"}'] == 600
    assert told['antiphon_tenant_tokens_total{direction="in",tenant="reader"}'] == line.input_tokens
    assert told['antiphon_usage_lines_total{outcome="written"}'] == 1
    assert told['antiphon_usage_lines_total{outcome="lost"}'] == 0


async def test_full_disk_ends_no_session_and_one_without_keys_has_a_line(keys: KeyFile, log: Path) -> None:
    async with served(keys, Path("/dev/full"), admin_port=0) as stage:
        async with client(stage, keys, "other") as one:
            await one.begin()
            await one.send(CLOSE)
            assert (await one.end())[1] == 1000
        counted = accounts_of(stage).log
        assert counted is not None
        await until(lambda: counted.lost == 1)
    async with served(keys, log, write("Seven."), auth="off", keys=None) as stage:
        async with stage.client(CHAT) as chat:
            await chat.send(request())
            await chat.end()
        [line] = await written(log, 1)
    assert (line.key, line.key_id, line.reason) == (None, None, "done")


async def test_reload_opens_the_log_anew(keys: KeyFile, log: Path) -> None:
    async with served(keys, log) as stage:
        old = renamed(log)
        stage.adapter.reload()
        async with client(stage, keys, "other") as one:
            await one.begin()
            await one.send(CLOSE)
            await one.rest()
        await until(log.exists)
        [line] = await written(log, 1)

    assert line.key == "other"
    assert lines(old) == []


@pytest.mark.usefixtures("patient_peers")
async def test_quota_is_shared_by_adapters_of_one_redis(
    keys: KeyFile, log: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: a tenant goes to another adapter when its quota is spent at the first."""
    monkeypatch.setattr(accounts, "ASK_S", PATIENCE_S)
    defaults: dict[str, Any] = RedisUsageStore.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "call_s", PATIENCE_S)
    keys.change("spender", seconds_per_day="2")
    age(redis_server, pool_name(EVERYTHING.name, Mode))
    options: dict[str, Any] = {"dispatcher": redis_server.url, "clock": None}
    async with served(keys, log, **options) as one:
        async with running_adapter(
            dispatcher=redis_server.url, auth="keys", keys=keys.path, usage_log=log
        ) as other:
            async with client(one, keys, "spender") as first:
                await first.expect_until("session.queue_done")
                assert (await first.end())[1] == 1008
            [spent] = await written(log, 1)
            assert spent.seconds >= 2

            async with client(other, keys, "spender") as second:
                assert (await second.end())[1] == 1008


def accounts_of(stage: Stage) -> Accounts:
    """Return the accounts of the adapter."""
    counted = stage.adapter.accounts
    assert counted is not None
    return counted


def tenants(told: dict[str, float]) -> dict[str, float]:
    """The figures of tenants and of the log."""
    return {name: value for name, value in told.items() if "_tenant_" in name or "_usage_" in name}
