"""Keys with expiry, modes, models, origins and limits; client secrets bound to less than their key."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, listen, running_worker
from tests.ws_adapter.access.test_keys import refused_upgrade
from tests.ws_adapter.access.test_secret_requests import ask, secret
from tests.ws_adapter.observability.test_metrics import figures
from tests.ws_adapter.support.conversation import INIT, Event, codes
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Client, ManualClock, Stage, running_adapter
from tests.ws_adapter.web.test_routes import url

OURS, EVIL = "https://ours.example", "https://evil.example"
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
NOT_ALLOWED = [
    ({"modes": "audio"}, "/v1/realtime?mode=chat", "mode_not_allowed"),
    ({"modes": "audio"}, "/ws/chat", "mode_not_allowed"),
    ({"modes": "audio"}, "/ws/duplex/session", "mode_not_allowed"),
    ({"modes": "audio"}, "/v1/transcription", "mode_not_allowed"),
    ({"modes": "audio"}, "/v1/realtime?model=alpha", "mode_not_allowed"),
    ({"modes": "chat"}, "/v1/live/sessions", "mode_not_allowed"),
    ({"modes": "chat"}, "/v1/realtime?intent=transcription", "mode_not_allowed"),
    ({"models": "beta"}, "/v1/realtime?model=alpha", "model_not_allowed"),
    ({"origins": OURS}, "/v1/realtime?mode=audio", "origin_not_allowed"),
    ({"origins": OURS}, "/v1/realtime?model=alpha", "origin_not_allowed"),
    ({"origins": OURS}, "/v1/live/sessions", "origin_not_allowed"),
]


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys", "bob", "trusted", "admin")


@asynccontextmanager
async def served(keys: KeyFile, **options: Any) -> AsyncIterator[Stage]:
    """Two models, each of which serves everything, to pages of any origin."""
    options = {"allowed_origins": ("*",), **options}
    engines = [
        ScriptedEngine(listen(), slots=2, info=replace(EVERYTHING, name=name), repeat=True)
        for name in ("alpha", "beta")
    ]
    async with running_worker(engines[0], slots=2) as one, running_worker(engines[1], slots=2) as other:
        workers = one.address, other.address
        async with running_adapter(*workers, auth="keys", keys=keys.path, **options) as stage:
            await stage.until(free_slots=4)
            yield stage


async def refused(stage: Stage, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and code of what a WebSocket is answered that is not let in."""
    response = await refused_upgrade(stage, path, additional_headers=headers)
    return response.status_code, json.loads(response.body)["error"]["code"]


async def bearer(stage: Stage, headers: dict[str, str], **body: Any) -> dict[str, str]:
    """A client secret, as a header."""
    return {"Authorization": f"Bearer {await secret(stage, headers, **body)}"}


@asynccontextmanager
async def opened(stage: Stage, headers: dict[str, str], query: str = "?model=alpha") -> AsyncIterator[Client]:
    async with stage.client(url(stage, "/v1/realtime" + query), additional_headers=headers) as client:
        yield client


def date(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_key_without_right_gets_403_and_other_key_is_admitted(keys: KeyFile) -> None:
    for number, (fields, _, _) in enumerate(NOT_ALLOWED):
        keys.add(f"alice{number}", **fields)
    other = {**keys.bearer("bob"), "Origin": EVIL}
    async with served(keys, admin_port=0) as stage:
        for number, (_, path, code) in enumerate(NOT_ALLOWED):
            headers = {**keys.bearer(f"alice{number}"), "Origin": EVIL}
            assert await refused(stage, path, headers) == (403, code), NOT_ALLOWED[number]
            async with stage.client(url(stage, path), additional_headers=other):
                pass
        counted = await figures(stage, keys.bearer("admin"))
        assert counted['antiphon_rejected_total{reason="origin"}'] == 3
        assert counted['antiphon_rejected_total{reason="forbidden"}'] == 8


async def test_key_for_one_model_gets_a_worker_of_no_other(keys: KeyFile) -> None:
    """The attack: name no model, where the protocol asks for none, and take a slot of any pool."""
    keys.add("alice", models="beta")
    async with served(keys) as stage:
        async with (
            stage.client(additional_headers=keys.bearer("alice")) as first,
            stage.client(additional_headers=keys.bearer("alice")) as second,
            stage.client(additional_headers=keys.bearer("alice")) as third,
        ):
            await first.begin()
            await second.begin()
            # Both slots of the one model are taken, and the other has two.
            await third.expect("session.queued")


async def test_model_that_the_key_is_not_for_is_refused_in_the_words_of_each_dialect(keys: KeyFile) -> None:
    keys.add("alice", models="beta")
    async with served(keys) as stage:
        headers = keys.bearer("alice")
        async with stage.client(additional_headers=headers) as client:
            await client.expect("session.queue_done")
            await client.send({**INIT, "payload": {"model": "alpha"}})
            error = await client.expect("error")
            assert (error["error"]["code"], error["error"]["param"]) == ("invalid_payload", "payload.model")
            assert "beta" in error["error"]["message"]
            await client.send({**INIT, "payload": {"model": "beta"}})
            await client.expect("session.created")
        async with stage.client(url(stage, "/v1/live/sessions"), additional_headers=headers) as client:
            await client.send({"type": "session.start", "session": {"model": "alpha"}})
            assert (await client.expect("error"))["error"]["code"] == "model_not_found"
        async with stage.client(url(stage, "/v1/transcription"), additional_headers=headers) as client:
            await client.expect("session.created")
            await client.send({"type": "session.update", "model": "alpha"})
            assert (await client.expect("error"))["code"] == "model_not_found"


async def test_model_that_the_key_is_not_for_is_refused_also_while_no_worker_is_known(keys: KeyFile) -> None:
    """The attack: name another model at a moment when the adapter cannot know what is served."""
    keys.add("alice", models="beta")
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path}
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            await client.expect("session.queued")
            await client.send({**INIT, "payload": {"model": "alpha"}})
            while (event := await client.next())["type"] == "session.queue_update":
                pass
            assert codes([event]) == ["invalid_payload"]


async def test_models_are_listed_as_far_as_the_key_is_for_them(keys: KeyFile) -> None:
    keys.add("alice", models="beta", modes="chat")
    async with served(keys) as stage:
        for name, ids in (("alice", ["beta"]), ("bob", ["alpha", "beta"])):
            listed = (await stage.request("/v1/models", headers=keys.bearer(name)))[2]["data"]
            assert [model["id"] for model in listed] == ids
        (told,) = (await stage.request("/v1/models", headers=keys.bearer("alice")))[2]["data"]
        assert (told["modes"], told["semantic_vad"]) == (["chat"], False)


async def test_semantic_vad_becomes_server_vad_for_keys_and_secrets_not_for_audio(keys: KeyFile) -> None:
    keys.add("alice", modes="chat")
    audio = {"input": {"turn_detection": {"type": "semantic_vad"}}}
    async with served(keys) as stage:
        bound = await bearer(stage, keys.bearer("bob"), bind={"mode": "chat"})
        for headers, detection in (
            (keys.bearer("alice"), "server_vad"),
            (keys.bearer("bob"), "semantic_vad"),
            (bound, "server_vad"),
        ):
            async with opened(stage, headers) as client:
                await client.expect("session.created", "conversation.created")
                await client.send({"type": "session.update", "session": {"type": "realtime", "audio": audio}})
                session = (await client.expect("session.updated"))["session"]
                assert session["audio"]["input"]["turn_detection"]["type"] == detection


async def test_expired_key_is_refused_as_an_unknown_one_and_counted_apart(
    keys: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    keys.add("alice", expires=date(clock.unix() + 30))
    async with served(keys, clock=clock, admin_port=0) as stage:
        path, unknown = "/v1/realtime?mode=audio", {"Authorization": "Bearer ak_nobody"}
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            await client.begin()
            await clock.advance(31)
            events, close = await client.end()
            assert codes([event for event in events if event["type"] == "error"]) == ["unauthorized"]
            assert "expired" in events[0]["error"]["message"]
            assert close == 3000

        assert await refused(stage, path, keys.bearer("alice")) == await refused(stage, path, unknown)
        assert (await stage.request("/v1/models", headers=keys.bearer("alice")))[0] == 401
        async with opened(stage, keys.bearer("alice")) as client:
            assert (await client.expect("error"))["error"]["code"] == "invalid_api_key"
        counted = await figures(stage, keys.bearer("admin"))
        assert counted['antiphon_rejected_total{reason="expired"}'] == 3
        assert counted['antiphon_rejected_total{reason="auth"}'] == 1
        assert {record.reason for record in caplog.records if hasattr(record, "reason")} >= {"expired"}


async def test_key_expiry_extended_before_deadline_keeps_its_sessions(keys: KeyFile) -> None:
    clock = ManualClock()
    keys.add("alice", expires=date(clock.unix() + 30))
    async with served(keys, clock=clock) as stage:
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            await client.begin()
            keys.change("alice", expires=date(clock.unix() + 50))
            stage.adapter.reload()
            await clock.advance(31)
            async with stage.client(additional_headers=keys.bearer("alice")) as second:
                await second.begin()
            await clock.advance(20)
            assert codes((await client.end())[0][:1]) == ["unauthorized"]


class SetClock(ManualClock):
    """A clock whose calendar can be set, as by an operator."""

    offset_s = 0.0

    def unix(self) -> float:
        return super().unix() + self.offset_s


async def test_key_expires_within_a_minute_after_the_wall_clock_was_set(keys: KeyFile) -> None:
    clock = SetClock()
    keys.add("alice", expires=date(clock.unix() + 3600))
    async with served(keys, clock=clock) as stage:
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            await client.begin()
            clock.offset_s = 3600
            await clock.advance(60)
            assert codes((await client.end())[0][:1]) == ["unauthorized"]


async def test_client_secret_expires_with_its_key(keys: KeyFile) -> None:
    clock = ManualClock()
    keys.add("alice", expires=date(clock.unix() + 30))
    async with served(keys, clock=clock) as stage:
        status, told = await ask(stage, keys.bearer("alice"), expires_after={"seconds": 600})
        assert (status, told["expires_at"]) == (200, int(clock.unix() + 30))
        bearer = {"Authorization": f"Bearer {told['value']}"}
        keys.change("alice", expires=date(clock.unix() + 5))
        stage.adapter.reload()
        await clock.advance(10)
        async with opened(stage, bearer) as client:
            assert (await client.expect("error"))["error"]["code"] == "invalid_api_key"


async def test_limits_of_a_key_go_before_those_of_all_and_hold_from_two_addresses(keys: KeyFile) -> None:
    """Two keys, two addresses, and client secrets: all that comes by one key counts for that key."""
    keys.add("alice", connections="1", opens_per_min="3")
    options = {"trusted_proxies": ("127.0.0.0/8",), "connections_per_key": 2}
    async with served(keys, **options) as stage:
        here, there = ({"X-Forwarded-For": f"203.0.113.{number}"} for number in (1, 2))
        made = await bearer(stage, {**keys.bearer("alice"), **here})
        async with opened(stage, {**made, **here}) as client:
            await client.expect("session.created")
            for headers in ({**made, **there}, {**keys.bearer("alice"), **there}):
                assert await refused(stage, "/v1/realtime?model=alpha", headers) == (429, "rate_limited")
            async with opened(stage, {**keys.bearer("bob"), **here}), opened(stage, keys.bearer("bob")):
                assert (await refused(stage, "/v1/realtime?model=alpha", keys.bearer("bob")))[0] == 429
        for _ in range(2):
            async with opened(stage, {**made, **there}):
                pass
        assert await refused(stage, "/v1/realtime?model=alpha", {**made, **here}) == (429, "rate_limited")


async def test_client_secret_of_a_trusted_key_continues_no_trace(keys: KeyFile) -> None:
    """The attack: a page that was given a secret decides what is recorded, by a traceparent of its own."""
    async with served(keys) as stage:
        made = await bearer(stage, keys.bearer("trusted"))
        for headers, is_continued in ((keys.bearer("trusted"), True), (made, False)):
            async with opened(stage, {**headers, "traceparent": TRACEPARENT}) as client:
                assert client.socket.response is not None
                assert (client.socket.response.headers["antiphon-trace-id"] == TRACE) is is_continued


async def test_client_secret_bound_to_an_origin_or_a_model_opens_nothing_else(keys: KeyFile) -> None:
    """The attack: the secret of one page is used by another, or by a program, which names no origin."""
    path = "/v1/realtime?model=alpha"
    async with served(keys) as stage:
        made = await bearer(stage, keys.bearer("bob"), bind={"origin": "https://OURS.example"})
        async with opened(stage, {**made, "Origin": OURS}) as client:
            await client.expect("session.created")
        for headers in (made, {**made, "Origin": EVIL}):
            assert await refused(stage, path, headers) == (403, "origin_not_allowed")

        made = await bearer(stage, keys.bearer("bob"), bind={"model": "beta"})
        assert await refused(stage, path, made) == (403, "model_not_allowed")
        for query in ("", "?model=beta"):
            async with opened(stage, made, query) as client:
                assert (await client.expect("session.created"))["session"]["model"] == "beta"


async def test_client_secret_for_more_than_its_key_is_for_is_not_made(keys: KeyFile) -> None:
    alpha = {"type": "realtime", "model": "alpha"}
    cases: list[tuple[dict[str, str], Event, int, str, str]] = [
        ({"models": "beta"}, {"bind": {"model": "alpha"}}, 403, "model_not_allowed", "bind.model"),
        ({"models": "beta"}, {"session": alpha}, 403, "model_not_allowed", "session.model"),
        ({"modes": "chat"}, {"bind": {"mode": "transcription"}}, 403, "mode_not_allowed", "bind.mode"),
        ({"modes": "chat"}, {"session": {"type": "transcription"}}, 403, "mode_not_allowed", "session.type"),
        ({"modes": "audio"}, {}, 403, "mode_not_allowed", "session.type"),
        ({"origins": OURS}, {"bind": {"origin": EVIL}}, 403, "origin_not_allowed", "bind.origin"),
        ({}, {"bind": {"origin": f"{OURS}/page"}}, 400, "invalid_value", "bind.origin"),
        ({}, {"bind": {"origin": "ours"}}, 400, "invalid_value", "bind.origin"),
        ({}, {"bind": {"mode": "video"}}, 400, "invalid_value", "bind.mode"),
        ({}, {"bind": {"mode": "transcription"}}, 400, "invalid_value", "bind.mode"),
        ({}, {"bind": {"model": "gamma"}}, 400, "invalid_value", "session.model"),
        ({}, {"bind": {"key": "x"}}, 400, "unknown_parameter", "bind.key"),
    ]
    for number, (fields, *_) in enumerate(cases):
        keys.add(f"alice{number}", **fields)
    async with served(keys) as stage:
        for number, (_, body, *expected) in enumerate(cases):
            status, told = await ask(stage, keys.bearer(f"alice{number}"), **body)
            assert [status, told["error"]["code"], told["error"]["param"]] == expected, cases[number]


async def test_client_secret_is_for_no_more_than_its_key_is_when_it_is_used(keys: KeyFile) -> None:
    """The attack: secrets are collected while the key is for everything, and used after it was restricted."""
    keys.add("alice")
    async with served(keys) as stage:
        free = await bearer(stage, keys.bearer("alice"))
        bound = await bearer(stage, keys.bearer("alice"), bind={"model": "alpha"})
        keys.change("alice", models="beta", origins=OURS)
        stage.adapter.reload()

        path, page = "/v1/realtime?model=alpha", {"Origin": OURS}
        assert await refused(stage, path, {**free, **page}) == (403, "model_not_allowed")
        assert await refused(stage, path, free) == (403, "origin_not_allowed")
        async with opened(stage, {**free, **page}, "?model=beta") as client:
            await client.expect("session.created")
        # Nothing is left that both allow.
        path, headers = "/v1/realtime?model=beta", {**bound, **page}
        assert await refused(stage, path, headers) == (403, "model_not_allowed")
        async with opened(stage, headers, "") as client:
            assert (await client.expect("error"))["error"]["code"] == "invalid_model"


async def test_signing_keys_rotate_without_ending_secrets_that_are_in_use(
    keys: KeyFile, tmp_path: Path
) -> None:
    """Two adapters; the steps of the procedure, with a secret of before and one of after each."""
    old, new = "o" * 32, "n" * 32
    file = tmp_path / "signing"
    file.write_text(f"{old}\n")
    async with (
        served(keys, client_secret_key_file=file) as one,
        served(keys, client_secret_key_file=file) as other,
    ):

        async def is_taken(stage: Stage, made: dict[str, str]) -> bool:
            async with opened(stage, made) as client:
                return (await client.next())["type"] == "session.created"

        before = await bearer(one, keys.bearer("bob"))
        for lines, reloaded in (
            (f"# being rotated\n{old}\n{new}\n", (one, other)),
            (f"{new}\n{old}\n", (one,)),
        ):
            file.write_text(lines)
            for stage in reloaded:
                stage.adapter.reload()
            made = await bearer(one, keys.bearer("bob"))
            for stage in (one, other):
                assert await is_taken(stage, before)
                assert await is_taken(stage, made)
        file.write_text(f"{new}\n")
        one.adapter.reload()
        assert await is_taken(one, made)
        assert not await is_taken(one, before)


async def test_signing_keys_that_cannot_be_read_change_nothing(
    keys: KeyFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    file = tmp_path / "signing"
    file.write_text("k" * 32)
    async with served(keys, client_secret_key_file=file) as stage:
        made = await bearer(stage, keys.bearer("bob"))
        for text, message in (
            ("short\n", "Line 1 of .* has 5 bytes"),
            (f"{'k' * 32}\n{'k' * 32}\n", "Line 2 of .* repeats a key"),
            ("# none\n", "There is no key of client secrets in"),
        ):
            caplog.clear()
            file.write_text(text)
            stage.adapter.reload()
            assert re.search(message, caplog.text)
            assert "short" not in caplog.text
            assert "nothing changes" in caplog.text
            async with opened(stage, made) as client:
                await client.expect("session.created")


async def test_session_for_model_without_worker_is_rejected_after_grace(keys: KeyFile) -> None:
    keys.add("alice", models="gamma")
    async with served(keys, no_worker_grace_s=0.2) as stage:
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            async with asyncio.timeout(30):
                events, close = await client.end()
            assert codes([event for event in events if event["type"] == "error"]) == ["service_unavailable"]
            assert close == 1013
