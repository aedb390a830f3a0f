"""An engine whose generator fails, stands still or is closed, over a model of transformers."""

import asyncio
import queue
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_service.engine_vllm import engine as module
from inference_service.engine_vllm.generator import Request, Sampled
from inference_service.interface.engine import Closed, Done, End, Piece, Progress, Ready, SessionFailed
from inference_service.interface.setups import StreamInput, Tenant
from tests.inference_service.engine_vllm.support import engines
from tests.inference_service.engine_vllm.support.engines import HAS_VLLM, Rig
from tests.support.patience import PATIENCE_S

A, B, C = 5, 17, 42


@pytest.fixture
def plain(folder: Path) -> Iterator[Rig]:
    rig = engines.start("plain", folder)
    yield rig
    rig.engine.stop()


def failing(plain: Rig, error: Exception) -> None:
    """The next request ends in this error after its first token."""
    usual = plain.generator.generate

    async def generate(request: Request) -> AsyncGenerator[Sampled, None]:
        plain.generator.generate = usual  # type: ignore[method-assign]
        yield Sampled((A,))
        raise error

    plain.generator.generate = generate  # type: ignore[method-assign]


def test_vllm_is_not_imported_by_these_tests() -> None:
    assert HAS_VLLM or "vllm" not in sys.modules


def test_dead_generator_ends_every_session_once(plain: Rig) -> None:
    busy, idle = plain.stream(0, engines.GREEDY), plain.chat(1)
    idle.until(Ready)
    plain.generator.is_dead = True
    busy.send(StreamInput((A, B, C)))
    for talker in (busy, idle):
        assert talker.until(SessionFailed).reason == "ENGINE_FATAL"
    assert plain.fatal.get(timeout=PATIENCE_S)
    late = plain.chat(2)
    assert late.until(SessionFailed).reason == "ENGINE_FATAL"
    for talker in (busy, idle, late):
        talker.close()
    assert plain.fatal.empty()


def test_engine_death_while_idle_is_detected(plain: Rig) -> None:
    idle = plain.chat()
    idle.until(Ready)
    plain.generator.is_dead = True
    assert plain.fatal.get(timeout=PATIENCE_S)
    assert idle.until(SessionFailed).reason == "ENGINE_FATAL"


def test_failed_request_ends_its_session_alone(plain: Rig, greedy: Any) -> None:
    failing(plain, ValueError("broken"))
    first, second = plain.stream(0), plain.stream(1)
    first.send(StreamInput((A, B)))
    assert first.until(SessionFailed).reason == "INFERENCE_FAILED"
    assert second.chunk([A, B, C]).ids == greedy([A, B, C], 4)
    first.close()
    second.close()
    assert plain.fatal.empty()


def test_request_is_aborted_when_its_session_closes(plain: Rig) -> None:
    for end in ("close", "cancel"):
        talker = plain.stream(0, engines.LONG)
        number = talker.send(StreamInput((A, B, C)))
        talker.until(Piece)
        if end == "cancel":
            talker.session.cancel(number)
            assert talker.until(Done).end in (End.CANCELLED, End.CHUNK)
        talker.close()
        assert plain.generator.open == 0


def test_cancel_ends_a_unit_that_waits_for_its_first_token(plain: Rig) -> None:
    generator = plain.generator
    waiting: queue.Queue[str] = queue.Queue()

    async def held(request: Request) -> AsyncGenerator[Sampled, None]:
        waiting.put("begun")
        try:
            await asyncio.Event().wait()
            yield Sampled((A,))
        finally:
            waiting.put("aborted")

    generator.generate = held  # type: ignore[method-assign]
    talker, other = plain.stream(0), plain.stream(1)
    for end in ("cancel", "close"):
        number = talker.send(StreamInput((A, B, C)))
        assert waiting.get(timeout=PATIENCE_S) == "begun"
        if end == "cancel":
            talker.session.cancel(number)
            assert talker.finish(number).done.end is End.CANCELLED
        else:
            talker.close()
        assert waiting.get(timeout=PATIENCE_S) == "aborted"
    other.close()


def test_cancel_after_the_last_token_changes_nothing(plain: Rig, greedy: Any) -> None:
    talker = plain.stream()
    number = talker.send(StreamInput((A, B, C)))
    talker.until(Done)
    talker.session.cancel(number)
    said = talker.finish(number)
    assert (said.done.end, said.ids) == (End.CHUNK, greedy([A, B, C], 4))
    talker.close()


def test_no_event_comes_after_stop(plain: Rig) -> None:
    talker = plain.stream(0, engines.LONG)
    talker.send(StreamInput((A, B, C)))
    talker.until(Piece)
    plain.engine.stop()
    while not talker.told.empty():
        assert not isinstance(talker.told.get(), Closed | SessionFailed)
    plain.engine.stop()
    assert talker.told.empty()


def test_order_after_close_changes_nothing(plain: Rig) -> None:
    talker = plain.stream()
    talker.close()
    talker.session.prefill(1, StreamInput((A,)))
    talker.session.cancel(1)
    other = plain.stream(1)
    other.chunk([A])
    other.close()
    assert talker.told.empty()


def test_requests_of_tenants_carry_their_salts(plain: Rig) -> None:
    for salt in (b"one", b"two"):
        talker = plain.stream(tenant=Tenant(salt))
        talker.chunk([A])
        talker.close()
    assert [it.cache_salt for it in plain.generator.requests] == [b"one".hex(), b"two".hex()]


def test_waiting_session_gets_progress_events(plain: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRESS_S", 0.0)
    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    release: queue.Queue[None] = queue.Queue()
    generator = plain.generator

    async def slow(request: Request) -> AsyncGenerator[Sampled, None]:
        while release.empty():
            generator.on_step(1, 1)
            await asyncio.sleep(0.01)
        yield Sampled((A,))

    generator.generate = slow  # type: ignore[method-assign]
    talker = plain.stream()
    talker.send(StreamInput((A, B, C)))
    assert talker.until(Progress).unit == 1
    since = plain.engine.busy_since
    assert since is not None
    release.put(None)
    talker.close()
    assert plain.engine.busy_since is None
