"""One fault in a cluster with a client in each state, and what is left afterwards."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from antiphon_service import semconv
from tests.failures.cluster import PATIENCE_S, Cluster, Running
from tests.failures.link import Link, link_to
from tests.failures.party import Party
from tests.failures.visits import HELD, STATES, Visit

MARGIN_S = 15.0
"""Extra time that a busy machine may take beyond the promised time."""


@dataclass(frozen=True)
class End:
    """A client's events after the fault and the close code; `code` is None while the session goes on."""

    kinds: tuple[str, ...]
    code: int | None
    is_sure: bool = True
    """Else it may go on as well."""


FAILED = End(("error:inference_error", "session.closed"), 1011)
SHUTDOWN = End(("session.closed",), 1012)
UNAVAILABLE = End(("error:service_unavailable",), 1013)
GONE = End((), 1006)
OVER = End((), 1000)
"""The client got its last event before the fault and gets none after it."""
SERVED = End((), None)
"""Its session goes on, or begins, as if nothing had happened."""

CONTINUES = End(("session.moved",), None)
"""Its worker is lost, and another one goes on: a pause, no word lost or told twice."""

BUSY = End(("error:worker_busy",), 1013, is_sure=False)
"""Its worker has not noticed yet that others have gone."""

NAMES = {
    BUSY: "served or busy",
    FAILED: "failed",
    SHUTDOWN: "shut down",
    UNAVAILABLE: "refused",
    GONE: "cut",
    OVER: "over",
    SERVED: "served",
    CONTINUES: "continues",
}


class Scene:
    """A cluster, `party` in its states behind `link`, and `near`, who talks with the same worker."""

    def __init__(self, cluster: Cluster, link: Link, party: Party, near: Visit) -> None:
        self.cluster = cluster
        self.link = link
        self.party = party
        self.near = near
        self.struck_at = 0.0
        self._heard: dict[Visit, int] = {}

    @property
    def visits(self) -> dict[str, Visit]:
        return {**self.party.visits, "near": self.near}

    async def reach(self) -> None:
        held = [state for state in STATES if state != "queued"]
        await self.party.open(*held)
        for state in held:
            await self.cluster.worker.until_it_holds(self.party.visits[state].key, *HELD[state])
        finalize = self.party.visits["finalize"]
        await finalize.until(lambda: "listen" in finalize.kinds(), PATIENCE_S, "listen")
        closing = self.party.visits["closing"]
        await closing.until(lambda: closing.code == 1000, PATIENCE_S, "Close")
        await self.party.open("queued")
        queued = self.party.visits["queued"]
        await queued.until(lambda: bool(queued.events), PATIENCE_S, "place in the queue")
        kinds = [event["type"] for event in queued.events]
        assert kinds[0] == "session.queued", kinds
        assert {*kinds[1:]} <= {"session.queue_update"}, kinds
        self._heard = {visit: len(visit.events) for visit in self.party.visits.values()}
        self.struck_at = time.monotonic()

    async def told(self, ends: dict[str, End], within_s: float) -> None:
        """Every client has its end in time, and hears of it once."""
        for state, end in ends.items():
            visit = self.visits[state]
            if end.code is not None and end.is_sure:
                left = self.struck_at + within_s - time.monotonic()
                await visit.until(lambda visit=visit: visit.code is not None, left, "end")  # type: ignore[misc]
                self._check(visit, end)

    def _check(self, visit: Visit, end: End) -> None:
        kinds = visit.kinds(self._heard.get(visit, 0))
        if visit is self.near:  # who was told more than once in the meantime
            kinds = [kind for kind in kinds if kind == "session.closed" or kind.startswith("error")]
        assert (tuple(kinds), visit.code) == (end.kinds, end.code), (visit.key, visit.kinds())

    def go_on(self) -> None:
        self._release("closing")

    def _release(self, state: str) -> None:
        if state in HELD:
            self.cluster.release(self.party.visits[state].key, *HELD[state])

    async def until_moving(self, ends: dict[str, End], within_s: float) -> None:
        moving = sum(end is CONTINUES for end in ends.values())
        await until_waiting(self.cluster.adapter, moving, within_s)

    async def served(self, ends: dict[str, End]) -> None:
        for state, end in ends.items():
            visit = self.party.visits[state]
            if end is CONTINUES:
                await self._until_answered(visit)
                kinds = visit.kinds(self._heard[visit])
                assert visit.code is None, kinds
                assert kinds.count("session.moved") == 1, kinds
            elif end is SERVED or not end.is_sure:
                await self._until_answered(visit)
                if visit.code is not None:
                    self._check(visit, end)
                kinds = visit.kinds(self._heard[visit])
                assert end is not SERVED or visit.code is None, kinds
                assert visit.code is not None or not {"session.closed", *FAILED.kinds} & {*kinds}, kinds

    async def _until_answered(self, visit: Visit) -> None:
        """Or until it is over. A session that begins anew at a worker waits there anew."""
        ends = time.monotonic() + PATIENCE_S
        while not visit.is_created and visit.code is None:
            assert time.monotonic() < ends, (visit.key, visit.kinds())
            self._release(visit.state)
            await asyncio.sleep(0.1)
        if visit.state == "queued":
            wanted, count = "text", 1
        else:
            self._release(visit.state)
            await visit.say_more()
            wanted, count = "listen", 1 if visit.state == "attaching" else 2
        while visit.kinds().count(wanted) < count and visit.code is None:
            assert time.monotonic() < ends, (visit.key, wanted, visit.kinds())
            self._release(visit.state)  # a session that goes on at another worker waits there anew
            await asyncio.sleep(0.1)


@asynccontextmanager
async def scene_in(cluster: Cluster, name: str, *, is_process: bool = False) -> AsyncIterator[Scene]:
    await cluster.renew()
    await _greet(cluster)
    for running in cluster.processes.values():
        running.before = running.before or running.files
    async with link_to(cluster.url.removeprefix("ws://")) as link:
        near = Visit(f"{name}-near", "neighbour")
        talk = asyncio.create_task(near.run(cluster.other_url))
        party = Party(f"ws://{link.address}", name, is_process=is_process)
        try:
            await cluster.hear(near)
            scene = Scene(cluster, link, party, near)
            await scene.reach()
            yield scene
            if near.code is None:
                await cluster.hear(near)
                near.is_talking = False
                await near.until(lambda: near.code is not None, PATIENCE_S, "end")
                assert near.code == 1000
        except BaseException:
            cluster.is_spoiled = True
            raise
        finally:
            await party.leave()
            talk.cancel()
            await asyncio.wait({talk})
        assert talk.cancelled() or talk.exception() is None, talk.exception()
    try:
        await _greet(cluster)
        await check_clean(cluster)
    except BaseException:
        cluster.is_spoiled = True
        raise


async def _greet(cluster: Cluster) -> None:
    for url in {cluster.url, cluster.other_url}:
        await _greet_at(url)


async def _greet_at(url: str) -> None:
    """Complete a guest session; retry on `worker_busy` while dead sessions still hold slots."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        guest = Visit("guest", "neighbour", is_talking=False)
        async with asyncio.timeout(PATIENCE_S):
            await guest.run(url)
        if (guest.units, guest.code) == (1, 1000):
            return
        assert guest.kinds() == list(BUSY.kinds), guest.kinds()
        assert time.monotonic() < ends, "nobody is let in"


async def check_clean(cluster: Cluster) -> None:
    """Check that only `far` holds a slot, a queue place, a page or a file, and talks on."""
    there = int(cluster.has_far)
    if there:
        await cluster.hear(cluster.far)
    for name, sessions in cluster.active.items():
        await until_active(cluster.processes[name], sessions)
    workers = (cluster.worker, cluster.other)

    async def attached() -> int:
        return sum([await _attached_to(worker) for worker in workers])

    await _until_equal(attached, there)
    cluster.far_has_moved = bool(there) and await _attached_to(cluster.worker) == 1
    empty, far_at = reversed(workers) if cluster.far_has_moved else workers
    await until_slots(empty, attached=0)
    await until_slots(far_at, attached=there)
    await _until_gauges(empty, {semconv.KV_TOKENS: 0})
    for name, running in cluster.processes.items():
        before = running.before or running.files  # a new process has nothing to be held against
        await _until_closed(name, running, before)
        assert "Traceback" not in running.log.text, running.log.text
    await cluster.check_queue()


async def _until_closed(name: str, running: Running, before: list[str]) -> None:
    end = time.monotonic() + PATIENCE_S
    while len(found := running.files) > len(before):
        assert time.monotonic() < end, f"the {name} has open {found}, and had before {before}"
        await asyncio.sleep(0.02)


async def until_active(adapter: Running, sessions: int, within_s: float = PATIENCE_S) -> None:
    wanted = {semconv.QUEUE_LENGTH: 0.0, semconv.SESSIONS_ACTIVE: float(sessions)}
    await _until_gauges(adapter, wanted, within_s)


async def until_waiting(adapter: Running, sessions: int, within_s: float) -> None:
    async def read() -> bool:
        return (await adapter.scrape()).total(semconv.QUEUE_LENGTH.name) >= sessions

    await _until_equal(read, True, within_s)


async def _until_gauges(
    running: Running, wanted: dict[semconv.Metric, float], within_s: float = PATIENCE_S
) -> None:
    async def read() -> dict[semconv.Metric, float]:
        page = await running.scrape()
        return {metric: page.total(metric.name) for metric in wanted}

    await _until_equal(read, wanted, within_s)


async def until_slots(running: Running, attached: int, within_s: float = PATIENCE_S) -> None:
    async def read() -> dict[str, float | None]:
        page = await running.scrape()
        states = ("attached", "held", "cleaning")
        return {state: page.value(semconv.SLOTS.name, state=state) or 0.0 for state in states}

    await _until_equal(read, {"attached": attached, "held": 0, "cleaning": 0}, within_s)


async def _attached_to(running: Running) -> int:
    return int((await running.scrape()).value(semconv.SLOTS.name, state="attached") or 0)


async def _until_equal(
    read: Callable[[], Awaitable[object]], wanted: object, within_s: float = PATIENCE_S
) -> None:
    end = time.monotonic() + within_s
    while (found := await read()) != wanted:
        assert time.monotonic() < end, (found, wanted)
        await asyncio.sleep(0.05)
