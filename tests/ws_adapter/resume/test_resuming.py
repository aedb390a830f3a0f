"""Sessions that lose their connection and go on over another one, over real sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon_service.telemetry.logs import SessionFilter
from tests.support.scrape import Scrape, get, scrape
from tests.support.scripted_engine import ScriptedEngine, hang, listen, running_worker, speak
from tests.ws_adapter.access.test_keys import refused_upgrade
from tests.ws_adapter.support.conversation import CLOSE, INIT, Event, append, pcm
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import PATIENCE_S, Client, ManualClock, Stage, running_adapter, until
from ws_adapter.resume import buffer, connection, sessions

WINDOW_S = 60.0
OPENERS: dict[str, tuple[str, Event, Event]] = {
    "/v1/realtime?mode=audio": ("session.created", INIT, append()),
    "/v1/realtime?mode=audio&earlier=": (
        "session.created",
        {"type": "session.update", "session": {"instructions": "Be brief."}},
        {"type": "input_audio_buffer.append", "audio": pcm()},
    ),
    "/ws/duplex/adx_1?": (
        "prepared",
        {"type": "prepare", "config": {}},
        {"type": "audio_chunk", "audio_base64": pcm()},
    ),
}


@asynccontextmanager
async def stage_of(
    engine: ScriptedEngine | None = None, clock: ManualClock | None = None, **options: Any
) -> AsyncIterator[Stage]:
    options = {"admin_port": 0, "resume_window_s": WINDOW_S, **options}
    engine = engine or ScriptedEngine(listen())
    async with running_worker(engine, slots=engine.slots) as worker:
        async with running_adapter(worker.address, clock=clock, **options) as stage:
            yield stage


def target_of(token: str, last_event: object, path: str = "/v1/realtime?mode=audio") -> str:
    return f"{path}&resume={token}&last_event={last_event}"


def url_of(stage: Stage, token: str, last_event: object, path: str = "/v1/realtime?mode=audio") -> str:
    return stage.address.replace("http://", "ws://") + target_of(token, last_event, path)


async def told(stage: Stage) -> Scrape:
    """Scrape the adapter's metrics."""
    assert stage.adapter.admin_port is not None
    return await scrape(stage.adapter.admin_port)


async def detached(stage: Stage, count: int = 1) -> None:
    """Waits until so many sessions have no connection."""
    async with asyncio.timeout(PATIENCE_S):
        while (await told(stage)).total("antiphon_sessions_detached") != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def refusal(stage: Stage, url: str, **options: Any) -> tuple[Event, int | None]:
    """Return the error event and the close code of a failed resumption."""
    async with stage.client(url, **options) as client:
        events, code = await client.end()
        (event,) = events
        return event, code


async def refused(stage: Stage, url: str, **options: Any) -> tuple[str, int | None]:
    """The code of that refusal, and the close code."""
    event, close = await refusal(stage, url, **options)
    return event["error"]["code"], close


async def lost(stage: Stage, **options: Any) -> str:
    """The token of a session of two events that has lost its connection."""
    async with stage.client(**options) as client:
        token: str = (await client.begin())["resume"]["token"]
        client.vanish()
    return token


async def ended(stage: Stage, **options: Any) -> str:
    """The token of a session that its client has closed."""
    async with stage.client(**options) as client:
        await client.expect_until("session.queue_done")
        await client.send({**INIT, "payload": {}})
        token: str = (await client.expect("session.created"))["resume"]["token"]
        await client.send(CLOSE)
        await client.rest()
    return token


async def resumed_and_lost(stage: Stage, token: str, last_event: int = 2) -> str:
    """Resume a session and lose its connection again; return the new token."""
    async with stage.client(url_of(stage, token, last_event)) as client:
        token = (await client.expect("session.resumed"))["resume"]["token"]
        client.vanish()
    return token


def assert_alike(refusals: Iterable[tuple[Event, int | None]]) -> None:
    """Check that these refusals differ in nothing but their trace."""
    errors = [(event["error"] | {"trace_id": ""}, close) for event, close in refusals]
    assert all(error == errors[0] for error in errors)
    assert (errors[0][0]["code"], errors[0][1]) == ("resume_failed", 1008)


async def lose_and_resume(engine: ScriptedEngine, path: str, first: Stage, second: Stage) -> None:
    """Lose a connection at the first adapter within the second of three units; go on at the second one."""
    name, opener, input_event = OPENERS[path]
    async with first.client(first.address.replace("http://", "ws://") + path) as client:
        await client.send(opener)
        token = (await client.expect_until(name))["resume"]["token"]
        await client.send(input_event)
        last = await client.next()
        seen = len(client.events)
        await client.send(input_event)
        await until(lambda: 2 in engine.session.heard)
        client.vanish()
    await detached(first)
    engine.session.release("generate", 2)

    async with second.client(url_of(second, token, seen - 1, path)) as client:
        resumed = await client.expect("session.resumed")
        assert resumed["last_event"] == seen - 1
        assert resumed["received"] == 3
        assert resumed["resume"]["window_s"] == WINDOW_S
        assert resumed["resume"]["token"] != token
        assert await client.next() == last
        assert (await client.next())["type"] == last["type"]
        await client.send(input_event)
        assert "word" in str(await client.next())
    assert len(engine.sessions) == 1
    assert list(engine.session.heard) == [1, 2, 3]


@pytest.mark.parametrize("path", OPENERS)
async def test_lost_connection_missed_events_come_once_and_in_order(path: str) -> None:
    engine = ScriptedEngine(listen(), hang("generate"), speak("word"))
    async with stage_of(engine) as stage:
        await lose_and_resume(engine, path, stage, stage)


async def test_detached_session_runs_no_unit_and_its_clocks_stand_still() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(hang("generate"))
    async with stage_of(engine, clock, session_limit_audio_s=40, silence_tail_units=0) as stage:
        async with stage.client() as client:
            token = (await client.begin())["resume"]["token"]
            await client.send(append(9.0))
            await until(lambda: 2 in engine.session.heard)
            client.vanish()
        await detached(stage)
        at_worker = len(engine.session.heard)
        await clock.advance(25)
        engine.session.release("generate", 1)
        await until(lambda: ("finalize", 1) in engine.session.calls)
        await clock.advance(4)
        assert len(engine.session.heard) == at_worker, "no unit is given to the worker"

        async with stage.client(url_of(stage, token, 2)) as client:
            await client.expect("session.resumed", *["listen"] * 9)
            await clock.advance(10)
            await client.send(append())
            await client.expect("listen")
            await clock.advance(31)
            events, code = await client.end()
            assert [(e["type"], e.get("reason")) for e in events] == [("session.closed", "timeout")]
            assert code == 1000


async def test_token_is_good_again_if_its_connection_was_lost_before_anything_came_over_it() -> None:
    async with stage_of() as stage:
        first = await lost(stage)
        for _ in range(2):
            second = await resumed_and_lost(stage, first)
            await detached(stage)
        await resumed_and_lost(stage, second)
        await detached(stage)
        assert await refused(stage, url_of(stage, first, 2)) == ("resume_failed", 1008)
        async with stage.client(url_of(stage, second, 2)) as client:
            third = (await client.expect("session.resumed"))["resume"]["token"]
            await client.send(append())
            await client.expect("listen")
            client.vanish()
        await detached(stage)
        assert await refused(stage, url_of(stage, second, 2)) == ("resume_failed", 1008)
        async with stage.client(url_of(stage, third, 3)) as client:
            await client.expect("session.resumed")


async def test_client_that_closes_after_a_resume_still_gets_its_last_event() -> None:
    engine = ScriptedEngine(listen())
    async with stage_of(engine) as stage:
        token = await lost(stage)
        async with stage.client(url_of(stage, token, 2)) as client:
            await client.expect("session.resumed")
            await client.send(CLOSE)
            events, code = await client.end()
            assert [event["type"] for event in events] == ["session.closed"]
            assert code == 1000
        await until(lambda: engine.session.is_closed)
        assert await refused(stage, url_of(stage, token, 2)) == ("resume_failed", 1008)


async def test_close_of_the_client_ends_the_session_at_once() -> None:
    engine = ScriptedEngine(listen(), slots=4)
    async with stage_of(engine, ManualClock()) as stage:
        for code in (1000, 1001, 1005, 3000):
            async with stage.client() as client:
                token = (await client.begin())["resume"]["token"]
                if code == 1005:
                    client.socket.protocol.send_close()
                    client.socket.send_data()
                    await client.rest()
                else:
                    await client.socket.close(code)
            await until(lambda: engine.session.is_closed)
            assert await refused(stage, url_of(stage, token, 2)) == ("resume_failed", 1008), code


async def test_detached_session_ends_with_its_window() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(listen())
    async with stage_of(engine, clock) as stage:
        token = await lost(stage)
        await detached(stage)
        await clock.advance(WINDOW_S - 0.5)
        assert not engine.session.is_closed
        await clock.advance(0.6)
        await until(lambda: engine.session.is_closed)
        await detached(stage, 0)
        assert await refused(stage, url_of(stage, token, 2)) == ("resume_failed", 1008)
        now = await told(stage)
        assert now.value("antiphon_resumes_total", outcome="expired") == 1
        assert now.value("antiphon_resumes_total", outcome="refused") == 1
        assert now.value("antiphon_rejected_total", reason="resume") == 1


async def test_detached_session_yields_slot_to_queued_session() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(listen(), slots=1)
    async with stage_of(engine, clock) as stage:
        async with stage.client() as client, stage.client() as waiting:
            token = (await client.begin())["resume"]["token"]
            await waiting.expect("session.queued")
            client.vanish()
            await detached(stage)
            await clock.advance(connection.SLOT_KEPT_S - 0.5)
            assert not engine.session.is_closed
            await clock.advance(0.6)
            await waiting.expect_until("session.queue_done")
        assert await refused(stage, url_of(stage, token, 2)) == ("resume_failed", 1008)


async def test_session_before_its_first_token_ends_with_its_connection() -> None:
    engine = ScriptedEngine(listen(), slots=1)
    async with stage_of(engine, ManualClock()) as stage:
        async with stage.client() as client:
            await client.expect("session.queue_done")
            client.vanish()
        await stage.until(free_slots=1)


async def test_window_of_zero_offers_nothing() -> None:
    engine = ScriptedEngine(listen(), slots=1)
    async with stage_of(engine, resume_window_s=0) as stage:
        async with stage.client() as client:
            assert "resume" not in await client.begin()
            client.vanish()
        await until(lambda: engine.session.is_closed)
        assert await refused(stage, url_of(stage, "rs_AAAA", 2)) == ("resume_failed", 1008)


async def test_session_ended_while_detached_is_reported_at_resume() -> None:
    engine = ScriptedEngine(listen())
    async with running_worker(engine) as worker:
        options: dict[str, Any] = {"admin_port": 0, "resume_window_s": WINDOW_S}
        async with running_adapter(worker.address, **options) as stage:
            token = await lost(stage)
            await detached(stage)
            worker.worker.interrupt()
            worker.worker.interrupt()
            await worker.run
            async with stage.client(url_of(stage, token, 2)) as client:
                await client.expect("session.resumed")
                events, code = await client.end()
                assert events[-1]["type"] == "session.closed"
                assert code in (1011, 1012)


async def test_detached_session_holds_up_no_shutdown() -> None:
    async with stage_of() as stage:
        await lost(stage)
        await detached(stage)
        stage.adapter.interrupt()
        stage.adapter.interrupt()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.shield(stage.task) == 0


async def test_unusable_resume_tokens_get_identical_rejections(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "bob")
    engine = ScriptedEngine(listen(), slots=2)
    async with stage_of(engine, auth="keys", keys=keys.path) as stage:
        alice, bob = ({"additional_headers": keys.bearer(name)} for name in ("alice", "bob"))
        closed = await ended(stage, **alice)
        used = await lost(stage, **alice)
        async with stage.client(url_of(stage, used, 2), **alice) as client:
            token = (await client.expect("session.resumed"))["resume"]["token"]

            forged = token[:-2] + ("AA" if token[-2:] != "AA" else "BB")
            cases = {
                "forged": (forged, alice),
                "garbage": ("rs_" + "A" * 120, alice),
                "empty": ("", alice),
                "foreign": (token, bob),
                "used": (used, alice),
                "ended": (closed, alice),
            }
            assert_alike(
                [
                    await refusal(stage, url_of(stage, value, 2), **options)
                    for value, options in cases.values()
                ]
            )
            assert (await refused_upgrade(stage, target_of(token, 2))).status_code == 401

            await client.send(append())
            await client.expect("listen")


async def test_token_of_another_protocol_opens_nothing() -> None:
    async with stage_of() as stage, stage.client() as client:
        token = (await client.begin())["resume"]["token"]

        event, code = await refusal(stage, url_of(stage, token, 2, "/ws/duplex/adx_1?"))

        assert (event["code"], code) == ("resume_failed", 1008)
        await client.send(append())
        await client.expect("listen")


async def test_second_connection_takes_over_and_the_first_is_closed() -> None:
    engine = ScriptedEngine(listen())
    async with stage_of(engine) as stage, stage.client() as first:
        token = (await first.begin())["resume"]["token"]
        await first.send(append())
        await first.expect("listen")
        async with stage.client(url_of(stage, token, 3)) as second:
            await second.expect("session.resumed")
            assert await first.end() == ([], 4001)
            await second.send(append())
            await second.expect("listen")
            assert list(engine.session.heard) == [1, 2]
            assert await refused(stage, url_of(stage, token, 3)) == ("resume_failed", 1008)
            await second.send(append())
            await second.expect("listen")


async def test_one_detached_session_too_many_ends_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_DETACHED", 2)
    engine = ScriptedEngine(listen(), slots=3)
    async with stage_of(engine) as stage:
        tokens = []
        for _ in range(3):
            async with stage.client() as client:
                tokens.append((await client.begin())["resume"]["token"])
                client.vanish()
            await detached(stage, min(2, len(tokens)))
        await until(lambda: engine.sessions[0].is_closed)
        event, _ = await refusal(stage, url_of(stage, tokens[0], 2))
        assert event["error"]["code"] == "resume_failed"
        for token in tokens[1:]:
            async with stage.client(url_of(stage, token, 2)) as client:
                await client.expect("session.resumed")


async def test_flood_of_resumes_is_refused_and_the_session_stays() -> None:
    clock = ManualClock()
    async with stage_of(clock=clock) as stage:
        token = await lost(stage)
        for _ in range(connection.RESUMES_BURST):
            token = await resumed_and_lost(stage, token)
        assert await refused(stage, url_of(stage, token, 2)) == ("rate_limited", 1013)
        await clock.advance(1 / connection.RESUMES_PER_S)
        async with stage.client(url_of(stage, token, 2)) as client:
            await client.expect("session.resumed")


async def test_flood_of_forged_tokens_disturbs_no_session() -> None:
    async with stage_of() as stage, stage.client() as client:
        token = (await client.begin())["resume"]["token"]
        forged = [f"{token[:-4]}{number:04x}" for number in range(100)]

        answers = await asyncio.gather(*(refused(stage, url_of(stage, each, 2)) for each in forged))

        assert {code for code, _ in answers} == {"resume_failed"}
        await lines([client])


async def test_events_that_are_not_kept_end_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the number was never sent."""
    monkeypatch.setattr(buffer, "MOST_EVENTS", 2)
    engine = ScriptedEngine(listen(), slots=9)
    async with stage_of(engine) as stage:
        for last_event in (0, 1, 2, 3, "", "x", "-1", "7", "999999999999"):
            async with stage.client() as client:
                token = (await client.begin())["resume"]["token"]
                await client.send(append(4.0))
                await client.expect(*["listen"] * 4)
                client.vanish()
            assert await refused(stage, url_of(stage, token, last_event)) == ("resume_failed", 1008)
            await until(lambda: engine.session.is_closed)


async def test_detached_session_keeps_its_place_among_the_connections_of_its_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keys = KeyFile(tmp_path / "keys", "alice")
    engine = ScriptedEngine(listen(), slots=2)
    async with stage_of(engine, auth="keys", keys=keys.path, connections_per_key=1) as stage:
        alice: dict[str, Any] = {"additional_headers": keys.bearer("alice")}
        token = await lost(stage, **alice)
        await until(lambda: "session detached: its connection was lost" in caplog.text)
        assert (await refused_upgrade(stage, **alice)).status_code == 429
        async with stage.client(url_of(stage, token, 2), **alice) as client:
            await client.expect("session.resumed")
            assert (await refused_upgrade(stage, **alice)).status_code == 429
            await client.send(CLOSE)
            await client.rest()
        await until(lambda: engine.session.is_closed)

        async with asyncio.timeout(PATIENCE_S), stage.client(**alice) as client:
            await client.begin()


async def test_withdrawn_key_ends_its_detached_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keys = KeyFile(tmp_path / "keys", "alice", "bob")
    engine = ScriptedEngine(listen())
    async with stage_of(engine, auth="keys", keys=keys.path) as stage:
        await lost(stage, additional_headers=keys.bearer("alice"))
        await until(lambda: "session detached: its connection was lost" in caplog.text)
        keys.remove("alice")
        stage.adapter.reload()
        await until(lambda: engine.session.is_closed)


async def test_log_and_status_page_tell_of_detached_and_resumed_sessions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with caplog.filtering(SessionFilter()):
        async with stage_of() as stage:
            async with stage.client() as client:
                created = await client.begin()
                client.vanish()
            await detached(stage)
            assert (await told(stage)).total("antiphon_sessions_active") == 1
            assert stage.adapter.admin_port is not None
            assert "1 without a connection" in (await get(stage.adapter.admin_port, "/")).body
            async with stage.client(url_of(stage, created["resume"]["token"], 2)) as client:
                await client.expect("session.resumed")
    records = [record for record in caplog.records if record.name == sessions.__name__]
    seen = [(record.getMessage(), vars(record)["session_id"]) for record in records]
    assert seen[:2] == [
        ("session detached: its connection was lost", created["session_id"]),
        ("session resumed", created["session_id"]),
    ]


async def lines(clients: list[Client]) -> None:
    """Every client gets the answer to one append."""
    for client in clients:
        await client.send(append())
        await client.expect("listen")


async def test_half_of_the_connections_lost_at_once_all_come_back() -> None:
    engine = ScriptedEngine(listen(), slots=20)
    async with stage_of(engine) as stage:
        tokens: list[str] = []

        async def visit(number: int) -> None:
            async with stage.client() as client:
                token = (await client.begin())["resume"]["token"]
                await lines([client])
                if number % 2:
                    client.vanish()
                    tokens.append(token)
                    return
                await lines([client] * 3)

        async def come_back(token: str) -> None:
            async with stage.client(url_of(stage, token, 3)) as client:
                await client.expect("session.resumed")
                await lines([client] * 2)

        await asyncio.gather(*map(visit, range(20)))
        await asyncio.gather(*map(come_back, tokens))

        assert len(engine.sessions) == 20
