"""Clients that use lost connections against others, beside a neighbour that talks on."""

import asyncio
import hmac
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_engine import ScriptedEngine, listen
from tests.ws_adapter.resume.test_resuming import (
    assert_alike,
    detached,
    ended,
    lines,
    lost,
    refusal,
    refused,
    resumed_and_lost,
    stage_of,
    url_of,
)
from tests.ws_adapter.support.conversation import append
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Client, ManualClock, until
from ws_adapter.access.signing_keys import parse_signing_keys
from ws_adapter.resume import connection, sessions
from ws_adapter.resume.tokens import ResumeTokens

MANY = 4


async def test_many_detached_sessions_of_one_key_leave_their_slots_to_the_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keys = KeyFile(tmp_path / "keys", "mallory", "bob", "carol")
    mallory, bob, carol = ({"additional_headers": keys.bearer(name)} for name in ("mallory", "bob", "carol"))
    clock = ManualClock()
    engine = ScriptedEngine(listen(), slots=MANY + 1, repeat=True)
    async with stage_of(engine, clock, auth="keys", keys=keys.path) as stage, AsyncExitStack() as exits:
        neighbour = await exits.enter_async_context(stage.client(**bob))
        await neighbour.begin()
        tokens = []
        for _ in range(MANY):
            async with stage.client(**mallory) as client:
                tokens.append((await client.begin())["resume"]["token"])
                client.vanish()
        await until(lambda: caplog.text.count("session detached: its connection was lost") == MANY)
        newcomers: list[Client] = []
        for _ in range(MANY):
            newcomer = await exits.enter_async_context(stage.client(**carol))
            await newcomer.expect("session.queued")
            newcomers.append(newcomer)

        await lines([neighbour])
        await clock.advance(connection.SLOT_KEPT_S + 0.1)
        for newcomer in newcomers:
            await newcomer.expect_until("session.queue_done")
        await lines([neighbour])

        for token in tokens:
            assert await refused(stage, url_of(stage, token, 2), **mallory) == ("resume_failed", 1008)


async def test_client_that_comes_and_goes_leaves_its_slot_to_the_queue_once_it_stays_away() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(listen(), slots=1)
    async with stage_of(engine, clock, session_limit_audio_s=40, silence_tail_units=0) as stage:
        token = await lost(stage)
        for _ in range(9):
            await detached(stage)
            await clock.advance(4.0)
            token = await resumed_and_lost(stage, token)
        await detached(stage)
        async with stage.client() as newcomer:
            await newcomer.expect("session.queued")
            await clock.advance(connection.SLOT_KEPT_S + 0.1)
            await newcomer.expect_until("session.queue_done")


async def test_refusal_of_a_signed_token_takes_the_same_steps_whether_or_not_its_session_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = b"0123456789abcdef"
    engine = ScriptedEngine(listen(), slots=2)
    compared: list[tuple[int, int]] = []

    class Counted:
        """Notes the sizes of what is compared."""

        @staticmethod
        def compare_digest(one: Any, other: Any) -> bool:
            compared.append((len(one), len(other)))
            return hmac.compare_digest(one, other)

    async with stage_of(engine, client_secret_key=key) as stage:
        closed, used = await ended(stage), await lost(stage)
        async with stage.client(url_of(stage, used, 2)) as client:
            await client.expect("session.resumed")
            await until(lambda: engine.sessions[0].is_closed)
            unknown, _ = ResumeTokens(parse_signing_keys(key, "")).make("sess_000000000000", bytes(16))
            answers, steps = [], []
            monkeypatch.setattr(sessions, "hmac", Counted)
            for token in (closed, used, unknown):
                compared.clear()
                answers.append(await refusal(stage, url_of(stage, token, 2)))
                steps.append(list(compared))

            assert_alike(answers)
            assert steps[0]
            assert steps[0] == steps[1] == steps[2]
            await client.send(append())
            await client.expect("listen")


async def test_crowd_that_plays_used_tokens_again_takes_no_session_from_a_neighbour() -> None:
    engine = ScriptedEngine(listen(), slots=2, repeat=True)
    async with stage_of(engine) as stage, stage.client() as neighbour:
        await neighbour.begin()
        used = await lost(stage)
        async with stage.client(url_of(stage, used, 2)) as client:
            await client.expect("session.resumed")
            await lines([client])

            attack = asyncio.gather(*(refused(stage, url_of(stage, used, 2)) for _ in range(100)))
            await lines([neighbour] * 3)

            assert {code for code, _ in await attack} == {"resume_failed"}
            await lines([client, neighbour])
