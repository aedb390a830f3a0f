"""Processes that many tests share: they do not disturb each other, because each has sessions of its own."""

from collections.abc import Iterator

import pytest

from tests.conformance.stack import Stack, Worker, prompted_worker, running_stack, shipped_worker

SLOTS = 24


@pytest.fixture(scope="session")
def scripted() -> Iterator[Worker]:
    """A worker whose sessions bring their scripts along, for any number of adapters."""
    with prompted_worker(SLOTS) as worker:
        yield worker


@pytest.fixture(scope="session")
def stack(scripted: Worker) -> Iterator[Stack]:
    """An adapter with the options that users meet, in front of `scripted`.

    Whatever its clients did, every slot is free in the end.
    """
    with running_stack(scripted) as stack:
        yield stack
        stack.wait_until(free_slots=SLOTS)
        assert "Traceback" not in stack.log.text


@pytest.fixture(scope="session")
def impatient(scripted: Worker) -> Iterator[Stack]:
    """An adapter for which a second is a long time."""
    options = ("--init-timeout-s", "0.5", "--session-limit-video-s", "1")
    with running_stack(scripted, options=options) as stack:
        yield stack


@pytest.fixture(scope="session")
def one_slot() -> Iterator[Stack]:
    """An adapter whose worker has one slot, and brings its script along as `scripted`."""
    with prompted_worker(1) as worker, running_stack(worker) as stack:
        yield stack
        stack.wait_until(free_slots=1)
        assert "Traceback" not in stack.log.text


@pytest.fixture
async def narrow(one_slot: Stack) -> Stack:
    """`one_slot`, with its slot free."""
    await one_slot.until(free_slots=1)
    return one_slot


@pytest.fixture(scope="session")
def shipped() -> Iterator[Stack]:
    """What users meet: an adapter in front of the checkpoint of the package."""
    with shipped_worker() as worker, running_stack(worker) as stack:
        yield stack
        stack.wait_until(free_slots=stack.ask_http("/ready")[1]["slots"])
