"""Fixtures of all tests of the adapter: nothing may be left over after one."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.stage import Stage, running_adapter
from ws_adapter.peers.shared import RedisPeers


@pytest.fixture(autouse=True)
def _leak_check(request: pytest.FixtureRequest) -> None:
    """Every asynchronous test is followed by a search for tasks that it left behind."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("no_leaked_tasks")


@pytest.fixture
async def lonely() -> AsyncIterator[Stage]:
    """An adapter without a worker."""
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        yield stage


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a short path, since the path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sockets-") as path:
        yield Path(path)


@pytest.fixture
def patient_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts of `RedisPeers`, since Redis answers late on a busy machine."""
    defaults: dict[str, Any] = RedisPeers.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "ask_s", PATIENCE_S)
    monkeypatch.setitem(defaults, "life_s", PATIENCE_S)
