"""Processes that many tests share: they do not disturb each other, because each has sessions of its own."""

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
"""As a user's adapter is: every session offers a token."""


@pytest.fixture
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers do not say who has their slots, as those of the contract before: only a refusal tells."""
    monkeypatch.setattr(registry, "Occupied", lambda question=0, slots=None: Occupied(question))


def _served(worker: Worker, slots: int) -> Iterator[Stack]:
    """An adapter with the options that users meet.

    Whatever its clients did, every slot is free in the end and nothing went wrong unseen.
    """
    with running_stack(worker) as stack:
        yield stack
        stack.wait_until(free_slots=slots)
        assert "Traceback" not in stack.log.text


@pytest.fixture(scope="session")
def scripted() -> Iterator[Worker]:
    """A worker whose sessions bring their scripts along, for any number of adapters."""
    with prompted_worker(SLOTS) as worker:
        yield worker


@pytest.fixture(scope="session")
def stack(scripted: Worker) -> Iterator[Stack]:
    """An adapter with the options that users meet, in front of `scripted`."""
    yield from _served(scripted, SLOTS)


@pytest.fixture(scope="session")
def one_slot() -> Iterator[Stack]:
    """An adapter whose worker has one slot, and brings its script along as `scripted`."""
    with prompted_worker(1) as worker:
        yield from _served(worker, 1)


@pytest.fixture
async def narrow(one_slot: Stack) -> Stack:
    """`one_slot`, with its slot free."""
    await one_slot.until(free_slots=1)
    return one_slot


@pytest.fixture(scope="session")
def transcriber() -> Iterator[Stack]:
    """An adapter whose worker transcribes, and plays to each session the script it was told last."""
    with transcribing_worker(SLOTS) as worker:
        yield from _served(worker, SLOTS)


@pytest.fixture(scope="session")
def one_transcriber() -> Iterator[Stack]:
    """The same with one slot."""
    with transcribing_worker(1) as worker:
        yield from _served(worker, 1)


@pytest.fixture
async def narrow_transcriber(one_transcriber: Stack) -> Stack:
    """`one_transcriber`, with its slot free."""
    await one_transcriber.until(free_slots=1)
    return one_transcriber


@pytest.fixture(scope="session")
def chatter() -> Iterator[Stack]:
    """An adapter whose worker chats, and converses; system messages are scripts."""
    with chatting_worker(SLOTS) as worker:
        yield from _served(worker, SLOTS)


@pytest.fixture(scope="session")
def one_chatter() -> Iterator[Stack]:
    """The same with one slot."""
    with chatting_worker(1) as worker:
        yield from _served(worker, 1)


@pytest.fixture
async def narrow_chatter(one_chatter: Stack) -> Stack:
    """`one_chatter`, with its slot free."""
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
