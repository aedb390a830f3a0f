"""Fixtures of the worker's tests: nothing may be left over after a test."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from tests.inference_service.support.caller import Caller, channel_to
from tests.support.scripted_engine import ScriptedEngine, running_worker

Served = Callable[..., AbstractAsyncContextManager[Callable[..., Caller]]]
SessionOf = Callable[..., AbstractAsyncContextManager[Caller]]


@pytest.fixture(autouse=True)
def _leak_check(request: pytest.FixtureRequest) -> None:
    """Every asynchronous test is followed by a search for tasks that it left behind."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("no_leaked_tasks")


@pytest.fixture
def served() -> Served:
    """`async with served(engine) as new_caller`: a worker on loopback and callers of it."""

    @asynccontextmanager
    async def serve(engine: ScriptedEngine, **options: Any) -> AsyncIterator[Callable[..., Caller]]:
        async with running_worker(engine, **options) as worker, channel_to(worker.address) as channel:
            yield lambda *arguments: Caller(channel, *arguments)

    return serve


@pytest.fixture
def session_of(served: Served) -> SessionOf:
    """`async with session_of(engine, **config) as caller`: an ACTIVE session of a worker on loopback."""

    @asynccontextmanager
    async def open_session(engine: ScriptedEngine, **config: Any) -> AsyncIterator[Caller]:
        async with served(engine) as new_caller:
            caller = await new_caller().ready(**config)
            yield caller

    return open_session
