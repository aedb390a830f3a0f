"""A worker in the queue that adapters share, on a real Redis whose clock the test turns."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from antiphon import AuthError, QueueFull, SessionClosed
from antiphon.contract import Reason
from antiphon.grpc import Finalized, Session, get_info
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.leases import DEFAULT_POOL, lease_mac
from antiphon_service.pools import pool_name
from antiphon_service.redis import DIRECTORY, prefix
from inference_service import registration
from inference_service.errors import ConfigurationError
from tests.conformance.support.stack import shipped_worker
from tests.inference_service.support.caller import until
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import PATIENT, RunningWorker, ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.pool import Pool

KEY = b"a key of 16 byte"
FAR = {"dispatcher": "redis://h", "listen": "0.0.0.0:0"}
"""A worker that other machines reach."""
CONFIG = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)
POOL = pool_name("scripted", ["audio"])
SILENCE = bytes(4 * 16_000)


class Shared:
    """A worker and the queue in which it is registered."""

    def __init__(self, worker: RunningWorker, pool: Pool, key: bytes | None) -> None:
        self.worker = worker
        self.pool = pool
        self._key = key

    @property
    def told(self) -> dict[str, Any] | None:
        known = [w for w in self.pool.stats()["workers"] if w["target"] == self.worker.address]
        return known[0] if known else None

    @property
    def worker_id(self) -> str:
        assert self.told is not None
        return str(self.told["id"])

    async def until(self, **state: Any) -> None:
        await until(lambda: (told := self.told) is not None and state.items() <= told.items())

    async def next_beat(self) -> None:
        """Waits until the worker has spoken once more."""
        key, worker_id = f"{prefix(POOL)}worker_exp", self.worker_id
        self.pool.jump_ms(1)
        before = self.pool.redis.zscore(key, worker_id)
        await until(lambda: self.pool.redis.zscore(key, worker_id) != before)

    @property
    def leases(self) -> dict[int, tuple[int, str]]:
        return self.pool.leases(self.worker_id)

    async def grant(self, ticket: str) -> tuple[int, int, str]:
        """Slot, epoch and token of a lease that is given at once."""
        answer = self.pool.enqueue(ticket)
        assert answer[0] == "granted", answer
        _, worker_id, slot, epoch, target = answer
        assert target == self.worker.address
        return slot, epoch, self.token(worker_id, slot, epoch)

    def token(self, worker_id: str, slot: int, epoch: int) -> str:
        mac = lease_mac(self._key, DEFAULT_POOL, worker_id, slot, epoch) if self._key else ""
        return f"{slot}:{epoch}:{mac}"

    def session(self, token: str | None) -> Any:
        return Session.open(self.worker.address, CONFIG, lease=token)

    async def refusal(self, token: str | None) -> str:
        with pytest.raises((AuthError, QueueFull)) as refused:
            async with self.session(token):
                pass
        return str(refused.value.reason)


@asynccontextmanager
async def shared(
    redis_server: RedisServer, engine: ScriptedEngine | None = None, key: bytes | None = None, **options: Any
) -> AsyncIterator[Shared]:
    pool = Pool(redis_server, POOL)
    engine = engine or ScriptedEngine(listen(), slots=2, repeat=True)
    async with running_worker(
        engine, slots=engine.slots, worker_key=key, dispatcher=redis_server.url, **options
    ) as worker:
        it = Shared(worker, pool, key)
        await until(lambda: it.told)
        yield it


async def finalized(session: Any) -> None:
    """Waits until a silent unit is over."""
    await session.send_unit(SILENCE)
    async for output in session:
        if isinstance(output, Finalized):
            break


async def test_worker_registers_its_slots_and_deregisters_on_stop(redis_server: RedisServer) -> None:
    async with shared(redis_server) as it:
        told = it.told
        assert told is not None
        assert told["id"] == (await get_info(it.worker.address)).worker_id
        assert (told["slots"], told["free"], told["accepting"], told["load"]) == (2, 2, True, 0)
        await until(lambda: it.pool.directory("pools") == [POOL])
    assert it.told is None
    left = it.pool.keys()
    assert [key for key in left if key.startswith(("w:", "l:", "free:")) or key == "avail"] == []


async def test_a_worker_that_comes_before_any_adapter_says_once_that_it_waits_for_one(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> list[logging.LogRecord]:
        return [it for it in caplog.records if it.name == "inference_service.registration"]

    caplog.set_level(logging.INFO, "inference_service.registration")
    monkeypatch.setattr(registration, "RETRY_S", 0.01)
    redis_server.empty()
    redis_server.command("FUNCTION", "FLUSH")
    asked = AsyncMock(side_effect=registration.call)
    monkeypatch.setattr(registration, "call", asked)
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1, dispatcher=redis_server.url):
        await until(lambda: asked.await_count >= 3)
        pool = Pool(redis_server, POOL)
        await until(lambda: pool.stats()["workers"])
        await until(lambda: len(said()) > 1)

    waits, registered = said()
    assert waits.levelname == "INFO"
    assert "waits for an adapter" in waits.getMessage()
    assert registered.getMessage() == "registered with the dispatcher"


@pytest.mark.parametrize("key", [KEY, None], ids=["signed", "unsigned"])
@pytest.mark.sample("signed")
async def test_lease_is_one_session_then_its_slot_free(redis_server: RedisServer, key: bytes | None) -> None:
    engine = ScriptedEngine(listen(), slots=1, slow_cleanup=True)
    limits = replace(PATIENT, cleanup_s=0.1)  # the calls end, and the slot is not clean yet
    async with shared(redis_server, engine, key, limits=limits) as it:
        slot, epoch, token = await it.grant("t1")
        async with it.session(token):
            # Long before the next beat is due.
            await until(lambda: it.leases == {slot: (epoch, "attached")})
            assert it.pool.enqueue("t2")[0] == "queued"
        await until(lambda: engine.session.is_closing)
        await it.next_beat()
        assert it.leases == {slot: (epoch, "attached")}
        engine.slow_cleanup = False
        engine.session.finish_cleanup()
        await until(lambda: it.leases and it.leases[slot][1] == "granted")
        assert it.leases[slot][0] > epoch
        assert await it.refusal(token) == Reason.STALE_LEASE


async def test_two_sessions_never_share_a_slot(redis_server: RedisServer) -> None:
    """A lease of a slot that has a session is refused, however new the lease."""
    async with shared(redis_server) as it:
        slot, epoch, token = await it.grant("t1")
        async with it.session(token) as session:
            assert await it.refusal(it.token(it.worker_id, slot, epoch + 5)) == Reason.NO_FREE_SLOT
            assert await it.refusal(it.token(it.worker_id, slot, epoch + 4)) == Reason.STALE_LEASE
            await finalized(session)


async def test_only_slots_that_are_not_offered_need_no_lease(redis_server: RedisServer) -> None:
    async with shared(redis_server) as it:
        assert await it.refusal(None) == Reason.LEASE_MISSING
    async with shared(redis_server, unleased_slots=1) as it:
        assert it.told is not None
        assert (it.told["slots"], (await get_info(it.worker.address)).slots) == (1, 1)
        async with it.session(None):
            await it.until(free=1)
            assert await it.refusal(None) == Reason.NO_FREE_SLOT
            _, _, token = await it.grant("t1")
            async with it.session(token):
                assert it.pool.enqueue("t2")[0] == "queued"


async def test_a_lease_given_back_is_stale_and_its_slot_free_at_once(redis_server: RedisServer) -> None:
    async with shared(redis_server, ScriptedEngine(listen(), slots=1)) as it:
        slot, epoch, token = await it.grant("t1")
        assert it.pool.lease_return(it.worker_id, slot, epoch) == 1
        await until(lambda: it.leases == {})
        assert await it.refusal(token) == Reason.STALE_LEASE
        _, later, _ = await it.grant("t2")
        assert later > epoch


async def test_a_lease_that_is_revoked_ends_its_session(redis_server: RedisServer) -> None:
    async with shared(redis_server) as it:
        slot, epoch, token = await it.grant("t1")
        async with it.session(token) as session:
            await until(lambda: it.leases == {slot: (epoch, "attached")})
            revoked = f"{epoch} revoked 1700000000000 audio t1"
            it.pool.redis.hset(f"{prefix(POOL)}l:{it.worker_id}", slot, revoked)
            with pytest.raises(SessionClosed) as ended:
                async for _ in session:
                    pass
            assert ended.value.reason == Reason.LEASE_REVOKED
        await until(lambda: it.leases == {})


async def test_nothing_is_granted_to_a_worker_that_drains(redis_server: RedisServer) -> None:
    async with shared(redis_server, drain_timeout_s=60.0) as it:
        _, _, token = await it.grant("t1")
        async with it.session(token) as session:
            it.worker.worker.interrupt()
            await it.until(accepting=False)
            assert it.pool.enqueue("t2")[0] == "queued"
            # Health and refusals come after it: nobody is sent here any more.
            await until(lambda: it.worker.worker._servicer.state.name == "DRAINING")
            await finalized(session)
            assert it.told is not None
        await asyncio.wait({it.worker.run}, timeout=PATIENCE_S)
        assert it.told is None


async def test_worker_without_time_is_not_offered_to_sessions(redis_server: RedisServer) -> None:
    async with shared(redis_server) as it:
        has_time = True
        it.worker.worker.admission.has_time = lambda: has_time  # type: ignore[method-assign]
        _, _, token = await it.grant("t1")
        has_time = False
        assert await it.refusal(token) == Reason.NO_FREE_SLOT
        await it.until(accepting=False)
        assert it.pool.enqueue("t2")[0] == "queued"
        has_time = True
        await it.until(accepting=True)
        assert it.pool.beat("t2")[0][0] == it.worker_id


async def test_a_worker_waits_for_redis_and_for_its_functions(redis_server: RedisServer) -> None:
    redis_server.stop(keep_data=False)
    engine = ScriptedEngine(listen(), slots=2)
    async with running_worker(engine, slots=2, dispatcher=redis_server.url, unleased_slots=1) as worker:
        async with Session.open(worker.address, CONFIG):  # it serves meanwhile
            redis_server.start()
            pool = Pool(redis_server, POOL)
            it = Shared(worker, pool, None)
            await until(lambda: it.told)
            redis_server.empty()
            await until(lambda: worker.worker._registrar.is_available is False)  # type: ignore[union-attr]
            it = Shared(worker, Pool(redis_server, POOL), None)
            await until(lambda: it.told)


async def test_emptied_redis_recovers_leases_and_continues_above_their_epoch(
    redis_server: RedisServer,
) -> None:
    async with shared(redis_server) as it:
        it.pool.redis.set(f"{prefix(POOL)}epoch", 5000)
        slot, epoch, token = await it.grant("t1")
        async with it.session(token):
            await until(lambda: it.leases == {slot: (epoch, "attached")})
            redis_server.restart(keep_data=False)
            it.pool = Pool(redis_server, POOL)
            await until(lambda: it.told)
            assert it.leases == {slot: (epoch, "attached")}
            other, later, _ = await it.grant("t2")
            assert (other, later > epoch + 1000) == (1 - slot, True)
        await until(lambda: slot not in it.leases)


async def test_slot_freed_during_redis_outage_is_reported_later(redis_server: RedisServer) -> None:
    async with shared(redis_server) as it:
        _, _, token = await it.grant("t1")
        async with it.session(token):
            await until(lambda: [state for _, state in it.leases.values()] == ["attached"])
            redis_server.stop()
        redis_server.start()
        it.pool = Pool(redis_server, POOL, settled=False)
        await until(lambda: it.told and it.leases == {})
        await it.until(free=2)


@pytest.fixture
def shipped(redis_server: RedisServer) -> Iterator[str]:
    """The address of a worker with the shipped checkpoint, in a process of its own."""
    with shipped_worker(2, "--dispatcher", redis_server.tcp_url) as worker:
        yield worker.target


async def test_a_conversation_goes_on_while_redis_hangs(redis_server: RedisServer, shipped: str) -> None:
    """Not in its units, and not in its end; its slot is told to be free once Redis answers again."""
    Pool(redis_server)
    await until(lambda: redis_server.command("FCALL", "antiphon_v1_pools", "1", DIRECTORY).startswith(b"*1"))
    model = await get_info(shipped)
    modes = ["audio", "video", "chat", "transcription"]
    pool = Pool(redis_server, pool_name(model.model, modes))
    await until(lambda: pool.stats()["workers"])
    answer = pool.enqueue("t1")
    assert answer[0] == "granted"
    _, worker_id, slot, epoch, target = answer
    assert target == shipped
    async with Session.open(target, CONFIG, lease=f"{slot}:{epoch}:") as session:
        await until(lambda: pool.leases(worker_id) == {slot: (epoch, "attached")})
        redis_server.pause()
        try:
            heard = []
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                tasks.create_task(_talk(session))
                async for output in session:
                    if isinstance(output, Finalized):
                        heard.append(output.unit)
            assert heard == [1, 2, 3]
        finally:
            redis_server.resume()
    await until(lambda: pool.leases(worker_id) == {})
    assert pool.enqueue("t2")[0] == "granted"


async def _talk(session: Session) -> None:
    """At the pace of speech, for longer than an answer of Redis is waited for."""
    for _ in range(3):
        await session.send_unit(SILENCE)
        await asyncio.sleep(1.0)
    session.half_close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dispatcher": "http://h"}, "Cannot reach a dispatcher"),
        ({"dispatcher": "redis://h", "dispatcher_ca": Path("ca.pem")}, "write rediss:// for TLS"),
        ({"dispatcher": "rediss://h", "dispatcher_ca": Path("no.pem")}, r"Cannot read no\.pem"),
        ({"dispatcher": "rediss://h", "dispatcher_password_file": Path("none")}, "Cannot read the password"),
        (FAR | {"worker_key": KEY, "insecure_grpc": True}, "--advertise"),
        (FAR | {"advertise": "w:1"}, "without a worker key"),
    ],
)
async def test_worker_that_cannot_be_dialled_does_not_start(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        async with running_worker(ScriptedEngine(listen()), **options):
            pass
