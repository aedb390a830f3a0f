"""Processes that many tests share; each test has sessions of its own."""

from collections.abc import Iterator

import pytest

from tests.conformance.support.stack import (
    Stack,
    Worker,
    chatting_worker,
    prompted_worker,
    running_stack,
    shipped_worker,
    transcribing_worker,
)
from ws_adapter.worker import registry
from ws_adapter.worker.registry import Occupied

SLOTS = 24

RESUMABLE = ("--resume-window-s", "30")
"""The default resume window of an adapter, in which every session has a resume token."""


@pytest.fixture
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide which sessions hold the workers' slots, as with workers of the previous release."""
    monkeypatch.setattr(registry, "Occupied", lambda question=0, slots=None: Occupied(question))


def _served(worker: Worker, slots: int) -> Iterator[Stack]:
    """Yield an adapter in front of `worker`; at the end assert free slots and a log without tracebacks."""
    with running_stack(worker) as stack:
        yield stack
        stack.wait_until(free_slots=slots)
        assert "Traceback" not in stack.log.text


@pytest.fixture(scope="session")
def scripted() -> Iterator[Worker]:
    """Yield a worker that plays the script in each session's system prompt."""
    with prompted_worker(SLOTS) as worker:
        yield worker


@pytest.fixture(scope="session")
def stack(scripted: Worker) -> Iterator[Stack]:
    """Yield an adapter in front of `scripted`."""
    yield from _served(scripted, SLOTS)


@pytest.fixture(scope="session")
def one_slot() -> Iterator[Stack]:
    """Yield an adapter in front of a worker like `scripted` with one slot."""
    with prompted_worker(1) as worker:
        yield from _served(worker, 1)


@pytest.fixture
async def narrow(one_slot: Stack) -> Stack:
    """Return `one_slot` once its slot is free."""
    await one_slot.until(free_slots=1)
    return one_slot


@pytest.fixture(scope="session")
def transcriber() -> Iterator[Stack]:
    """Yield an adapter whose worker transcribes; `Worker.next` sets the script of the next session."""
    with transcribing_worker(SLOTS) as worker:
        yield from _served(worker, SLOTS)


@pytest.fixture(scope="session")
def one_transcriber() -> Iterator[Stack]:
    """Yield a stack like `transcriber` with one slot."""
    with transcribing_worker(1) as worker:
        yield from _served(worker, 1)


@pytest.fixture
async def narrow_transcriber(one_transcriber: Stack) -> Stack:
    """Return `one_transcriber` once its slot is free."""
    await one_transcriber.until(free_slots=1)
    return one_transcriber


@pytest.fixture(scope="session")
def chatter() -> Iterator[Stack]:
    """Yield an adapter whose worker has chat and full duplex; system messages are scripts."""
    with chatting_worker(SLOTS) as worker:
        yield from _served(worker, SLOTS)


@pytest.fixture(scope="session")
def one_chatter() -> Iterator[Stack]:
    """Yield a stack like `chatter` with one slot."""
    with chatting_worker(1) as worker:
        yield from _served(worker, 1)


@pytest.fixture
async def narrow_chatter(one_chatter: Stack) -> Stack:
    """Return `one_chatter` once its slot is free."""
    await one_chatter.until(free_slots=1)
    return one_chatter


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A tiny model that sees, hears and speaks, with random weights."""
    from tests.inference_service.engine.support import tiny  # torch takes seconds

    folder = tmp_path_factory.mktemp("tiny")
    tiny.save(folder, sees=True)
    with shipped_worker(2, "--model", str(folder)) as worker, running_stack(worker) as stack:
        yield stack
        stack.wait_until(free_slots=2)


@pytest.fixture(scope="session")
def shipped() -> Iterator[Stack]:
    """Yield the stack that users get: an adapter in front of the package's checkpoint."""
    with shipped_worker() as worker, running_stack(worker, options=RESUMABLE) as stack:
        yield stack
        stack.wait_until(free_slots=stack.ask_http("/ready")[1]["slots"])
