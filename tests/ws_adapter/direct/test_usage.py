"""Tests of the usage of direct callers: the adapter counts what the worker reports and logs it once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import AuthError, ConnectError
from antiphon.grpc import Session, acquire
from antiphon.grpc.outputs import Finalized, UnitDone
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.leases import read_token
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import EVERYTHING, write
from tests.ws_adapter.direct.test_acquire import backend, port_of
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, until
from ws_adapter.usage.line import UsageLine, decode
from ws_adapter.usage.store import LocalUsageStore

CONFIG = pb.SessionConfig(mode=pb.SESSION_MODE_CHAT)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "usage.jsonl"


@asynccontextmanager
async def served(tmp_path: Path, log: Path, **fields: str) -> AsyncIterator[tuple[Stage, str]]:
    """An adapter, and the key of the one who calls."""
    keys = KeyFile(tmp_path / "keys")
    keys.add("caller", **fields)
    says = replace(write("Seven.", "Eight."), tokens=600)
    async with backend(2, None, says, auth="keys", keys=keys.path, usage_log=log) as (stage, _):
        yield stage, keys.secrets["caller"]


async def written(log: Path, count: int) -> list[UsageLine]:
    await until(lambda: len(lines(log)) >= count)
    return lines(log)


def lines(log: Path) -> list[UsageLine]:
    return [decode(text) for text in log.read_bytes().splitlines()]


async def turn(stage: Stage, key: str) -> None:
    async with asyncio.timeout(PATIENCE_S), acquire(port_of(stage), "chat", key=key) as lease:
        async with Session.open(lease, CONFIG) as session:
            await session.send_turn("Hello?")
            left: set[Any] = {UnitDone, Finalized}
            async for output in session:
                left.discard(type(output))
                if not left:
                    break


async def test_direct_session_has_one_line_with_the_tokens_of_its_worker(tmp_path: Path, log: Path) -> None:
    async with served(tmp_path, log) as (stage, key):
        for number in (1, 2):
            await turn(stage, key)
            await written(log, number)
    told = await written(log, 2)
    assert len(told) == 2
    for line in told:
        assert (line.key, line.via, line.dialect, line.mode) == ("caller", "grpc", "grpc", "chat")
        assert (line.model, line.reason) == (EVERYTHING.name, "ended_at_worker")
        assert line.output_tokens == 600
        assert line.input_tokens > 0
        assert line.seconds >= 1


async def test_lease_lasts_no_longer_than_the_quota(tmp_path: Path, log: Path) -> None:
    """Attack: a caller takes several leases at once, each for all that is left of the quota."""
    async with served(tmp_path, log, seconds_per_day="50") as (stage, key):
        async with asyncio.timeout(PATIENCE_S), acquire(port_of(stage), "chat", key=key) as lease:
            token = read_token(lease.token)
            assert token is not None
            assert token.claims is not None
            assert token.claims.max_duration_s == 50

            with pytest.raises(ConnectError) as refused:
                async with acquire(port_of(stage), "chat", key=key):
                    pass
            assert (refused.value.reason, refused.value.retryable) == ("QUOTA_EXCEEDED", False)

            async with Session.open(lease, CONFIG) as session:
                await session.send_turn("Hello?")
        told = await written(log, 2)
        assert sorted(line.seconds > 0 for line in told) == [False, True]
        # The unused part of a lease's quota is there for the next lease, once the cache has expired.
        assert stage.adapter.accounts is not None
        stage.adapter.accounts._spent.clear()
        await turn(stage, key)


async def test_session_that_outlives_its_adapter_has_paid_for_its_lease(tmp_path: Path, log: Path) -> None:
    """Attack: a session goes on at its worker while the rest of its slice is given back for another one."""
    async with served(tmp_path, log, seconds_per_day="50") as (stage, key):
        async with asyncio.timeout(PATIENCE_S), acquire(port_of(stage), "chat", key=key) as lease:
            async with Session.open(lease, CONFIG) as session:
                await session.send_turn("Hello?")
                async for output in session:
                    if isinstance(output, Finalized):
                        break
                accounts = stage.adapter.accounts
                assert accounts is not None
                await until(lambda: any(meter.charge.keeps_slice for meter in accounts._open))
                stage.adapter.interrupt()
                stage.adapter.interrupt()
                await asyncio.wait({stage.task})

        assert isinstance(accounts._usage_store, LocalUsageStore)
        [(spent_ms, _)] = accounts._usage_store._used.values()
        assert spent_ms == 50_000
        assert [line.reason for line in lines(log)] == ["ended_at_worker"]


async def test_unused_lease_is_billed(tmp_path: Path, log: Path) -> None:
    """Attack: a caller takes leases, holds slots with them, and never comes."""
    async with served(tmp_path, log) as (stage, key):
        async with asyncio.timeout(PATIENCE_S), acquire(port_of(stage), "chat", key=key):
            pass
        [line] = await written(log, 1)
    assert line.reason == "never_began"
    assert line.seconds >= 1


async def test_key_with_a_quota_of_tokens_opens_no_direct_session(tmp_path: Path, log: Path) -> None:
    async with served(tmp_path, log, tokens_per_day="5000") as (stage, key):
        with pytest.raises(AuthError, match="tokens_per_day"):
            await turn(stage, key)
