"""Calls of the Redis functions of the shared queue, which `functions.lua` defines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from antiphon_service.pools import STABLE
from antiphon_service.redis import LIBRARY

if TYPE_CHECKING:
    from redis.asyncio import Redis

SOURCE: Final = Path(__file__).with_name("functions.lua").read_text()


class LeaseStats(Struct, frozen=True):
    """A lease; `state` is granted, attached or revoked, `age` in milliseconds."""

    slot: int
    epoch: int
    state: str
    kind: str
    age: float


class WorkerStats(Struct, frozen=True):
    """A worker, its free slots and its leases."""

    id: str
    target: str
    accepting: bool
    slots: int
    free: int
    leases: tuple[LeaseStats, ...] = ()
    revision: str = STABLE


class Mean(Struct, frozen=True):
    """The mean length of sessions of a kind in milliseconds, and their number."""

    mean: float
    samples: int


class Stats(Struct, frozen=True):
    """The answer of the function `stats`."""

    length: int = 0
    waiting: dict[str, int] = {}
    means: dict[str, Mean] = {}
    workers: tuple[WorkerStats, ...] = ()


class TicketView(Struct, frozen=True):
    """A ticket of any adapter; `waited` in milliseconds."""

    ticket: str
    kind: str
    label: str
    waited: float


class Call(NamedTuple):
    """A function to call, and the callback for its answer."""

    function: str
    key: str
    arguments: Sequence[object]
    then: Callable[[Any], None]


async def call_all(client: "Redis", calls: Sequence[Call]) -> None:
    """Call functions in their order, in one pipeline; load the library if Redis does not have it.

    Raises the error of `redis` if a call fails: other calls may have been carried out then, but no callback
    is called.
    """
    answers = await _exchange(client, calls)
    if any(_is_missing(answer) for answer in answers):
        await client.function_load(SOURCE, replace=True)
        answers = await _exchange(client, calls)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    for call, answer in zip(calls, answers, strict=True):
        call.then(answer)


async def _exchange(client: "Redis", calls: Sequence[Call]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for function, key, arguments, _ in calls:
        pipeline.execute_command("FCALL", f"{LIBRARY}_{function}", 1, key, *arguments)
    answers: list[Any] = await pipeline.execute(raise_on_error=False)
    return answers


def _is_missing(answer: Any) -> bool:
    return isinstance(answer, Exception) and "Function not found" in str(answer)
