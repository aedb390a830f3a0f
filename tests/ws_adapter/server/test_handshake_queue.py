"""Many clients that come at once: their handshakes are paced, and no address keeps others out."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from tests.support.scrape import scrape
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import append
from tests.ws_adapter.support.stage import ManualClock, running_adapter, until
from ws_adapter.process.handshake_queue import BURST, LONGEST_WAIT_S, HandshakeQueue

PER_S = 10.0
ROOM = round(PER_S * LONGEST_WAIT_S)
FLOOD = 2 * ROOM


class Visitor:
    """A connection that says to `journal` what becomes of it."""

    def __init__(self, name: str, journal: list[str]) -> None:
        self.name = name
        self.journal = journal
        self.lose: Callable[[], None] = lambda: None

    def when_lost(self, callback: Callable[[], None]) -> None:
        self.lose = callback

    def let_in(self) -> None:
        self.journal.append(self.name)


def queue_of(clock: ManualClock, refused: list[str], per_s: float = PER_S) -> HandshakeQueue[Visitor]:
    return HandshakeQueue(per_s, clock, lambda visitor: refused.append(visitor.name))


async def test_handshakes_begin_in_order_at_the_rate_and_addresses_take_turns() -> None:
    clock, let_in, refused = ManualClock(), list[str](), list[str]()
    queue = queue_of(clock, refused)
    crowd = [Visitor(f"a{number}", let_in) for number in range(BURST + 6)]
    at_once = [queue.enter(visitor, "a") for visitor in crowd]
    other = [Visitor("b0", let_in), Visitor("b1", let_in)]
    assert not any(queue.enter(visitor, "b") for visitor in other)

    assert at_once == [True] * BURST + [False] * 6
    await clock.advance(4 / PER_S)
    assert let_in == ["a4", "b0", "a5", "b1"]
    crowd[6].lose()
    await clock.advance(3 / PER_S)
    assert let_in[4:] == ["a7", "a8", "a9"]
    assert (len(queue), refused, clock.timers) == (0, [], 0)


async def test_full_queue_turns_the_last_one_away_of_the_address_with_the_most() -> None:
    clock, let_in, refused = ManualClock(), list[str](), list[str]()
    queue = queue_of(clock, refused)
    for number in range(BURST + FLOOD):
        queue.enter(Visitor(f"a{number}", let_in), "a")
    assert refused == [f"a{number}" for number in range(BURST + ROOM, BURST + FLOOD)]

    assert not queue.enter(Visitor("honest", let_in), "b")

    assert refused[-1] == f"a{BURST + ROOM - 1}"
    await clock.advance(2.5 / PER_S)
    assert "honest" in let_in
    await clock.advance(LONGEST_WAIT_S)
    assert (len(queue), len(let_in), clock.timers) == (0, ROOM, 0)


async def test_queue_that_is_switched_off_lets_all_begin_at_once() -> None:
    queue = queue_of(ManualClock(), [], per_s=0)
    assert all(queue.enter(Visitor("a", []), "a") for _ in range(FLOOD))


async def test_connection_flood_rejects_no_other_client_and_stalls_no_session() -> None:
    """Attack: more connections at once from one address than the queue has room for."""
    clock = ManualClock()
    engine = ScriptedEngine(listen(), repeat=True, slots=2, info=EVERYTHING)
    options = {"handshakes_per_s": PER_S, "trusted_proxies": ("127.0.0.0/8",), "admin_port": 0}
    async with running_worker(engine, slots=2) as worker, AsyncExitStack() as stack:
        stage = await stack.enter_async_context(running_adapter(worker.address, clock=clock, **options))
        neighbour = await stack.enter_async_context(stage.client())
        await neighbour.begin()

        async def come(address: str) -> ClientConnection:
            headers = {"X-Forwarded-For": address}
            return await connect(stage.url, additional_headers=headers, ping_interval=None)

        flood = [asyncio.create_task(come("203.0.113.5")) for _ in range(FLOOD)]
        port = stage.adapter.admin_port
        assert port is not None
        while (await scrape(port)).value("antiphon_handshakes_waiting") != ROOM:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        honest = asyncio.create_task(come("203.0.113.6"))
        await until(lambda: sum(task.done() for task in flood) == FLOOD - ROOM + 1)
        for _ in range(3):
            await neighbour.send(append(1.0))
            await neighbour.expect("listen")
        await clock.advance(3 / PER_S)

        await (await honest).close()
        await clock.advance(LONGEST_WAIT_S)
        came = await asyncio.gather(*flood, return_exceptions=True)
        refused = [each for each in came if isinstance(each, InvalidStatus)]
        assert {each.response.status_code for each in refused} == {503}
        assert {each.response.headers["Retry-After"] for each in refused} == {"2"}
        for each in came:
            if isinstance(each, ClientConnection):
                each.transport.abort()
