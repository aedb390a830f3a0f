"""Keys: the file, where a client may put one, what needs one, and what happens when one is withdrawn."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from tests.support.scripted_engine import ScriptedEngine, hang, listen, running_worker
from tests.ws_adapter.observability.test_metrics import figures
from tests.ws_adapter.support.conversation import append, codes
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import PATIENCE_S, Client, Stage, running_adapter, until
from ws_adapter.access.keys import Key, Keys, make_key
from ws_adapter.process.errors import ConfigurationError


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys", "alice", "bob", "admin")


@asynccontextmanager
async def guarded(
    keys: KeyFile, slots: int = 2, engine: ScriptedEngine | None = None, **options: Any
) -> AsyncIterator[Stage]:
    async with running_worker(engine or ScriptedEngine(listen(), slots=slots), slots=slots) as worker:
        async with running_adapter(worker.address, auth="keys", keys=keys.path, **options) as stage:
            yield stage


async def refused_upgrade(stage: Stage, target: str = "/v1/realtime?mode=audio", **options: Any) -> Response:
    """Return the answer to a WebSocket that is not let in."""
    with pytest.raises(InvalidStatus) as refusal:
        await connect(stage.address.replace("http", "ws") + target, **options)
    return refusal.value.response


def test_only_the_hash_of_a_key_is_kept() -> None:
    secret, key = make_key("alice")

    assert key.hash == hashlib.sha256(secret.encode()).hexdigest()
    assert key.line == f"alice:{key.hash}"
    assert secret not in repr(key)


def test_keys_are_found_by_their_secret(keys: KeyFile) -> None:
    known = Keys(keys.path)

    assert known.find(keys.secrets["bob"]) == keys.keys["bob"]
    assert known.find(keys.secrets["admin"]) == Key("admin", keys.keys["admin"].hash, is_admin=True)
    for wrong in ("", "bob", keys.keys["bob"].hash, keys.secrets["bob"][:-1], "\udcff"):
        assert known.find(wrong) is None


HASH = "0" * 64


@pytest.mark.parametrize("marks", [[], ["is_admin"], ["is_trusted"], ["is_admin", "is_trusted"]])
def test_key_rights_are_read_after_its_hash(tmp_path: Path, marks: list[str]) -> None:
    secret, key = make_key("alice", **dict.fromkeys(marks, True))
    (tmp_path / "keys").write_text(f"{key.line}\n")

    found = Keys(tmp_path / "keys").find(secret)
    assert found == key
    assert [mark for mark in ("is_admin", "is_trusted") if getattr(found, mark)] == marks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice", "Line 1 of .* is no key"),
        ("alice:ak_very-secret", "Line 1 of .* is no key"),
        (f"\n# x\nalice:{HASH[1:]}", "Line 3 of .* is no key"),
        (f"alice:{HASH}:root", "Line 1 of .* is no key"),
        (f"alice:{HASH}:", "Line 1 of .* is no key"),
        (f"alice:{HASH}:admin:x", "Line 1 of .* is no key"),
        (f"alice:{HASH}:admin,", "Line 1 of .* is no key"),
        (f"al ice:{HASH}", "Line 1 of .* is no key"),
        (f"alice:{HASH}\nalice:{'1' * 64}", "Line 2 of .* repeats a name or a hash"),
        (f"alice:{HASH}\nbob:{HASH}", "Line 2 of .* repeats a name or a hash"),
        ("# nobody\n", "There is no key in .* antiphon key NAME"),
        (f"# x\nalice:{HASH}:colour=red", "Line 2 of .*: there is no field 'colour'; expected expires"),
        (f"alice:{HASH}:admin colour", "Line 1 of .* is no key"),
        (f"alice:{HASH}:modes=chat admin", "Line 1 of .* is no key"),
        (f"alice:{HASH}:connections=2 connections=3", "Line 1 of .*: 'connections' appears twice"),
        (f"alice:{HASH}:expires=31.1.2030", "Line 1 of .*: expires must be a date such as 2030-01-31"),
        (f"alice:{HASH}:expires=2030-02-30", "Line 1 of .*: expires must be .*, not '2030-02-30'"),
        (f"alice:{HASH}:expires=2030-01-31T18:00:00+01:00", "Line 1 of .*: expires must be"),
        (f"alice:{HASH}:modes=chat,singing", "Line 1 of .*: modes must be of audio, video, chat, transcr"),
        (f"alice:{HASH}:modes=", "Line 1 of .*: modes must be"),
        (f"alice:{HASH}:models=a,,b", "Line 1 of .*: models must be names of models"),
        (f"alice:{HASH}:origins=example.org", "Line 1 of .*: origins must be origins such as https://"),
        (f"alice:{HASH}:origins=https://example.org/", "Line 1 of .*: origins must be"),
        (f"alice:{HASH}:connections=0", "Line 1 of .*: connections must be a number from 1 to 1000000"),
        (f"alice:{HASH}:opens_per_min=-1", "Line 1 of .*: opens_per_min must be"),
        (f"alice:{HASH}:direct_slots=1e3", "Line 1 of .*: direct_slots must be"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match=message) as error:
        Keys(path)
    assert "very-secret" not in str(error.value)


def test_line_with_every_field_is_read_as_it_was_written(tmp_path: Path) -> None:
    fields = {
        "expires": "2030-01-31",
        "modes": "chat,audio",
        "models": "antiphon-mini,openbmb/MiniCPM-o-4_5",
        "origins": "https://Example.org,http://localhost:3000",
        "connections": "20",
        "opens_per_min": "60",
        "direct_slots": "2",
    }
    secret, key = make_key("alice", fields, is_admin=True)
    (tmp_path / "keys").write_text(f"{key.line}\n")

    assert Keys(tmp_path / "keys").find(secret) == key
    assert key.line == (
        f"alice:{key.hash}:admin expires=2030-01-31T00:00:00Z modes=audio,chat "
        "models=antiphon-mini,openbmb/MiniCPM-o-4_5 origins=http://localhost:3000,https://example.org "
        "connections=20 opens_per_min=60 direct_slots=2"
    )


def test_expired_key_is_no_fault_of_the_file(tmp_path: Path) -> None:
    """An adapter that is started again on the day after has to start."""
    (tmp_path / "keys").write_text(f"alice:{HASH}:expires=2020-01-31T18:00:00Z\n")

    (key,) = Keys(tmp_path / "keys")._keys.values()

    assert not key.has_expired(1_580_493_599)
    assert key.has_expired(1_580_493_600)


async def test_file_that_is_missing_or_binary_and_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        Keys(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="Cannot read the keys"):
        async with running_adapter("127.0.0.1:1", wait=False, auth="keys", keys=tmp_path / "none"):
            pass
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        Keys(tmp_path / "binary")
    for name in ("", "a:b", "a b", "x" * 65, "é"):
        with pytest.raises(ConfigurationError, match="is no name of a key"):
            make_key(name)


async def test_key_is_taken_from_the_first_place_and_from_the_query_only_where_allowed(keys: KeyFile) -> None:
    target = f"/v1/realtime?mode=audio&token={keys.secrets['alice']}"
    wrong: Any = {"Authorization": "Bearer wrong"}
    offered: Any = ["realtime", f"openai-insecure-api-key.{keys.secrets['alice']}"]
    async with guarded(keys) as stage:
        assert (await refused_upgrade(stage, target)).status_code == 401
        with_wrong_key = await refused_upgrade(stage, subprotocols=offered, additional_headers=wrong)
        assert with_wrong_key.status_code == 401
        basic = {"Authorization": "Basic eDp5"}
        async with stage.client(subprotocols=offered, additional_headers=basic) as client:
            assert client.socket.subprotocol == "realtime"
            assert client.socket.response is not None
            assert keys.secrets["alice"] not in str(client.socket.response.headers)
            await client.begin()
    async with guarded(keys, auth_query=True) as stage:
        async with stage.client(stage.address.replace("http", "ws") + target) as client:
            await client.begin()


async def test_request_without_key_gets_401_and_live_gets_error_after_upgrade(keys: KeyFile) -> None:
    """Live clients take an error event for final, but retry a failed upgrade."""
    async with guarded(keys) as stage:
        live = stage.address.replace("http", "ws") + "/v1/live/sessions"
        for credentials in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}):
            response = await refused_upgrade(stage, additional_headers=credentials)
            assert response.status_code == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert b'"code":"unauthorized"' in response.body
            assert b"key" in response.body
            async with stage.client(live, additional_headers=credentials) as client:
                (event,), close = await client.end()
            assert (event["error"]["code"], close) == ("invalid_api_key", 3000)
        assert (await stage.request("/readyz"))[2]["free_slots"] == 2


PAGES = {
    "/health": (200, 200, 200),
    "/healthz": (200, 200, 200),
    "/ready": (200, 200, 200),
    "/readyz": (200, 200, 200),
    "/version": (200, 200, 200),
    "/api/queue/ticket_0123456789ab": (200, 200, 200),
    "/status": (401, 200, 200),
    "/v1/models": (401, 200, 200),
    "/api/default_ref_audio": (401, 200, 200),
    "/api/queue": (401, 403, 200),
    "/nothing": (404, 404, 404),
}


async def test_which_page_needs_which_key(keys: KeyFile) -> None:
    async with guarded(keys) as stage:
        for headers, column in (({}, 0), (keys.bearer("alice"), 1), (keys.bearer("admin"), 2)):
            seen = {path: (await stage.request(path, headers=headers))[0] for path in PAGES}
            assert seen == {path: statuses[column] for path, statuses in PAGES.items()}


async def test_sessions_of_a_withdrawn_key_end_in_their_own_words(keys: KeyFile) -> None:
    async with guarded(keys, slots=3) as stage:
        headers = keys.bearer("alice")
        duplex_url = stage.address.replace("http", "ws") + "/ws/duplex/adx_1"
        async with (
            stage.client(additional_headers=headers) as alice,
            stage.client(duplex_url, additional_headers=headers) as duplex,
            stage.client(additional_headers=keys.bearer("bob")) as bob,
        ):
            await alice.begin()
            await duplex.expect("queue_done")
            await bob.begin()
            async with stage.client(additional_headers=headers) as waiting:
                await waiting.expect("session.queued")

                keys.remove("alice")
                stage.adapter.reload()

                for client in (alice, waiting):
                    events, close = await client.end()
                    assert codes(events) == ["unauthorized"]
                    assert events[0]["error"]["type"] == "client_error"
                    assert close == 3000
            events, close = await duplex.end()
            assert [event.get("code") for event in events if event["type"] == "error"] == ["unauthorized"]
            assert close == 3000
            await stage.until(free_slots=2)
            await bob.send({"type": "session.close", "reason": "user_stop"})
            assert (await bob.end())[1] == 1000
            assert (await refused_upgrade(stage, additional_headers=headers)).status_code == 401


@pytest.mark.parametrize("leaves", ["vanishes", "says so"])
async def test_key_withdrawn_while_its_slot_is_cleaned_leaves_nothing_counted(
    keys: KeyFile, leaves: str
) -> None:
    """The session has ended and still waits for its slot to be clean: nothing of it counts any more."""
    engine = ScriptedEngine(hang("prefill"), slots=1, slow_cleanup=True)
    async with guarded(keys, 1, engine, connections_per_key=1, admin_port=0) as stage:
        admin = keys.bearer("admin")
        async with stage.client(additional_headers=keys.bearer("alice")) as alice:
            await alice.begin()
            await alice.send(*[append(1)] * 4)
            async with asyncio.timeout(PATIENCE_S):
                while not (await figures(stage, admin))["antiphon_inflight_bytes"]:
                    pass
            if leaves == "vanishes":
                alice.vanish()
            else:
                await alice.send({"type": "session.close"})
                await alice.end()
        await until(lambda: engine.session.is_closing)

        keys.remove("alice")
        stage.adapter.reload()

        now = await figures(stage, admin)
        assert now["antiphon_inflight_bytes"] == 0
        assert now['antiphon_slots{state="free"}'] == 0
        engine.session.finish_cleanup()
        await stage.until(free_slots=1)
        now = await figures(stage, admin)
        assert now["antiphon_inflight_bytes"] == 0
        assert now['antiphon_sessions_active{mode="audio_duplex"}'] == 0


async def test_new_secret_under_an_old_name_is_another_key(keys: KeyFile) -> None:
    async with guarded(keys) as stage:
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            await client.begin()
            keys.add("alice")
            stage.adapter.reload()
            assert codes((await client.end())[0]) == ["unauthorized"]
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            await client.begin()


async def test_unusable_file_changes_nothing(keys: KeyFile, caplog: pytest.LogCaptureFixture) -> None:
    async with guarded(keys) as stage:
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            await client.begin()
            keys.path.write_text("alice:ak_oops\n")

            stage.adapter.reload()

            assert "Line 1 of" in caplog.text
            assert "ak_oops" not in caplog.text
            await client.send({"type": "session.close", "reason": "user_stop"})
            assert (await client.end())[1] == 1000
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            await client.begin()


async def test_key_withdrawn_during_the_handshake(keys: KeyFile) -> None:
    """Whenever it happens, nobody stays in with a key that is gone."""
    async with guarded(keys) as stage:
        connecting = [
            asyncio.create_task(connect(stage.url, additional_headers=keys.bearer("alice")).__aenter__())
            for _ in range(5)
        ]
        await asyncio.wait(connecting, return_when=asyncio.FIRST_COMPLETED)
        keys.remove("alice")
        stage.adapter.reload()

        for outcome in await asyncio.gather(*connecting, return_exceptions=True):
            if isinstance(outcome, InvalidStatus):
                assert outcome.response.status_code == 401
            else:
                assert not isinstance(outcome, BaseException)
                events = await Client(outcome).rest()
                assert codes([event for event in events if event["type"] == "error"]) == ["unauthorized"]


async def test_secrets_are_never_logged(keys: KeyFile, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ws_adapter")
    async with guarded(keys, auth_query=True) as stage:
        target = f"/v1/realtime?mode=audio&token={keys.secrets['bob']}"
        async with stage.client(stage.address.replace("http", "ws") + target) as client:
            await client.begin()
        async with stage.client(additional_headers=keys.bearer("alice")) as client:
            await client.begin()
        await refused_upgrade(stage, additional_headers={"Authorization": "Bearer ak_wrong-secret"})
        keys.remove("alice")
        stage.adapter.reload()

    log = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("ws_adapter"))
    assert log
    for secret in (*keys.secrets.values(), "ak_wrong-secret"):
        assert secret not in log
