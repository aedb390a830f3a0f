"""Fixtures that more than one package's tests use."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.observed import observed


def pytest_configure() -> None:
    """Ctrl-C works in the commands that tests start, even where these run in the background of a script."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    """Fails the test if a task that it started is still there shortly after its end."""
    before = asyncio.all_tasks()
    yield
    for _ in range(100):
        leaked = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not leaked:
            return
        gc.collect()
        await asyncio.sleep(0.01)
    pytest.fail(f"tasks are left over: {leaked}")


@pytest.fixture
def proper_events() -> Iterator[None]:
    """Fails the test if a WebSocket client of this process sent or got what its dialect does not have."""
    with observed():
        yield
