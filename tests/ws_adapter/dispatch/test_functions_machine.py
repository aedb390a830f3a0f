"""The functions of the shared queue against a model of them, on a clock that the test turns."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.long import examples
from tests.support.redis_server import RedisServer
from tests.ws_adapter.support.pool import TICKET_TTL, WORKER_TTL, Pool

CAPACITY = 3
GRANT_MS = 10_000
NAMES = ("a", "b")
SLOTS = 2
MOST = 2
"""Slots that one holder may have."""


@dataclass
class Worker:
    """As the dispatcher should know it; `leases`: slot -> [epoch, state, ticket, when a grant expires]."""

    expires: int
    accepting: bool
    free: dict[int, int]
    leases: dict[int, list] = field(default_factory=dict)


class Model:
    """A minimal model of what the functions should do."""

    def __init__(self) -> None:
        self.time = self.seq = self.epoch = 0
        self.queue: list[tuple[int, str]] = []
        self.expiry: dict[str, int] = {}
        self.workers: dict[str, Worker] = {}
        self.granted: list[int] = []

    def begin(self) -> None:
        for ticket in [ticket for ticket, at in self.expiry.items() if at <= self.time]:
            self.drop(ticket)
        for name in [name for name, worker in self.workers.items() if worker.expires <= self.time]:
            del self.workers[name]
        for worker in self.workers.values():
            for lease in worker.leases.values():
                if lease[1] == "granted" and lease[3] <= self.time:
                    lease[1] = "revoked"

    def match(self) -> None:
        while self.queue:
            able = [(len(w.leases), name) for name, w in self.workers.items() if w.accepting and w.free]
            if not able:
                return
            worker = self.workers[min(able)[1]]
            slot = min(worker.free, key=lambda slot: (worker.free[slot], slot))
            del worker.free[slot]
            self.epoch += 1
            _, ticket = self.queue.pop(0)
            del self.expiry[ticket]
            worker.leases[slot] = [self.epoch, "granted", ticket, self.time + GRANT_MS]
            self.granted.append(self.epoch)

    def drop(self, ticket: str) -> None:
        self.queue = [entry for entry in self.queue if entry[1] != ticket]
        self.expiry.pop(ticket, None)

    def release(self, name: str, slot: int) -> None:
        del self.workers[name].leases[slot]
        self.workers[name].free[slot] = self.time

    def held(self) -> Counter[str]:
        """Number of tickets and leases by holder."""
        leases = [lease[2] for worker in self.workers.values() for lease in worker.leases.values()]
        tickets = [*leases, *(ticket for _, ticket in self.queue)]
        return Counter(holder for ticket in tickets if (holder := holder_of(ticket)))

    def lease_of(self, ticket: str) -> list | None:
        leases = (lease for worker in self.workers.values() for lease in worker.leases.values())
        return next((lease for lease in leases if lease[2] == ticket and lease[1] == "granted"), None)


def holder_of(ticket: str) -> str:
    """The holder for whom the slots of a ticket are counted; empty for every third one."""
    return ("", "h", "i")[int(ticket.removeprefix("t")) % 3] if ticket != "-" else ""


class FunctionsMachine(RuleBasedStateMachine):
    """Each rule is one call, made of Redis and of the model; `held` is what the workers really have."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.server.empty()
        self.pool = Pool(self.server)
        self.model = Model()
        self.count = 0
        self.held: dict[str, dict[int, int]] = {name: {} for name in NAMES}

    @rule(ahead=st.booleans())
    def enqueue(self, ahead: bool) -> None:
        model, ticket = self.model, f"t{self.count}"
        self.count += 1
        holder = holder_of(ticket)
        prior = "head" if ahead else 0
        answer = self.pool.enqueue(ticket, most=CAPACITY, prior=prior, holder=holder, slots=MOST)
        model.begin()
        model.match()
        if not ahead and len(model.queue) >= CAPACITY:
            assert answer == ["full"]
            return
        if not ahead and holder and model.held()[holder] >= MOST:
            assert answer == ["limit", MOST]
            return
        model.seq += 1
        model.queue = sorted([*model.queue, (model.seq - (10**9 if ahead else 0), ticket)])
        model.expiry[ticket] = model.time + TICKET_TTL
        model.match()
        assert answer[0] == ("granted" if model.lease_of(ticket) else "queued")

    @precondition(lambda self: self.model.queue)
    @rule(data=st.data())
    def adapter_beat(self, data: st.DataObject) -> None:
        model = self.model
        tickets = data.draw(st.lists(st.sampled_from([t for _, t in model.queue]), unique=True, min_size=1))
        answers = self.pool.beat(*tickets)
        model.begin()
        model.expiry |= {ticket: model.time + TICKET_TTL for ticket in tickets if ticket in model.expiry}
        model.match()
        order = [ticket for _, ticket in model.queue]
        for ticket, answer in zip(tickets, answers, strict=True):
            lease = model.lease_of(ticket)
            if ticket in order:
                assert answer == order.index(ticket) + 1
            else:
                assert answer[2] == lease[0] if lease else answer == "gone"

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = f"t{data.draw(st.integers(0, self.count - 1))}"
        self.pool.leave(ticket)
        self.model.begin()
        lease = self.model.lease_of(ticket)
        if lease:
            lease[1] = "revoked"
        self.model.drop(ticket)
        self.model.match()

    @rule(name=st.sampled_from(NAMES), accepting=st.sampled_from([1, 1, 1, 0]))
    def worker_beat(self, name: str, accepting: int) -> None:
        """Send a heartbeat; like a real worker, free each revoked slot that no session has."""
        model, held = self.model, self.held[name]
        revoked = self.pool.worker_beat(name, SLOTS, *held.items(), accepting=accepting)
        model.begin()
        worker = model.workers.setdefault(name, Worker(0, True, dict.fromkeys(range(SLOTS), model.time)))
        worker.expires, worker.accepting = model.time + WORKER_TTL, bool(accepting)
        highest = max(held.values(), default=0)
        model.epoch = highest + 1000 if highest > model.epoch else model.epoch
        for slot, epoch in held.items():
            lease = worker.leases.get(slot)
            if lease and lease[0] == epoch:
                lease[1] = "attached" if lease[1] == "granted" else lease[1]
            elif not lease or lease[0] < epoch or lease[1] != "granted":
                worker.free.pop(slot, None)
                worker.leases[slot] = [epoch, "attached", "-", 0]
        for slot in [s for s, le in worker.leases.items() if le[1] == "attached" and held.get(s) != le[0]]:
            model.release(name, slot)
        model.match()
        assert dict(revoked) == {s: le[0] for s, le in worker.leases.items() if le[1] == "revoked"}
        for slot, epoch in revoked:
            if held.get(slot) != epoch:
                self.slot_free(name, slot, epoch)

    def slot_free(self, name: str, slot: int, epoch: int) -> None:
        answer = self.pool.slot_free(name, slot, epoch)
        self.model.begin()
        worker = self.model.workers.get(name)
        is_its = worker is not None and slot in worker.leases and worker.leases[slot][0] == epoch
        if is_its:
            self.model.release(name, slot)
        self.model.match()
        assert answer == is_its

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def attach(self, data: st.DataObject, name: str) -> None:
        """A session comes to its worker, which tells nobody before its next beat."""
        worker = self.model.workers.get(name)
        leases = {s: le[0] for s, le in worker.leases.items() if le[1] == "granted"} if worker else {}
        free = [slot for slot in leases if slot not in self.held[name]]
        if free:
            slot = data.draw(st.sampled_from(free))
            self.held[name][slot] = leases[slot]

    @rule(data=st.data(), name=st.sampled_from(NAMES), is_heard=st.booleans())
    def finish(self, data: st.DataObject, name: str, is_heard: bool) -> None:
        """A session is over and its slot clean; Redis may be away when the worker says so."""
        if self.held[name]:
            slot = data.draw(st.sampled_from(sorted(self.held[name])))
            epoch = self.held[name].pop(slot)
            if is_heard:
                self.slot_free(name, slot, epoch)

    @rule(name=st.sampled_from(NAMES))
    def worker_leave(self, name: str) -> None:
        self.pool.worker_leave(name)
        self.model.begin()
        self.model.workers.pop(name, None)
        self.model.match()

    @rule(ms=st.sampled_from([1, 400, 1000, 2000]))
    def wait(self, ms: int) -> None:
        self.pool.jump_ms(ms)
        self.model.time += ms
        self.model.begin()
        self.model.match()

    @invariant()
    def redis_and_model_agree(self) -> None:
        model = self.model
        stats = self.pool.stats()
        assert [seen["ticket"] for seen in self.pool.waiting()] == [ticket for _, ticket in model.queue]
        told = {
            worker["id"]: (
                {le["slot"]: (le["epoch"], le["state"]) for le in worker["leases"]},
                worker["free"],
            )
            for worker in stats["workers"]
        }
        assert told == {
            name: ({slot: (le[0], le[1]) for slot, le in worker.leases.items()}, len(worker.free))
            for name, worker in model.workers.items()
        }
        assert sum(stats["waiting"].values()) == stats["length"] == len(model.queue)
        held = self.pool.redis.hgetall(f"{self.pool.prefix}held")
        assert {holder: int(count) for holder, count in held.items()} == model.held()

    @invariant()
    def promises_are_kept(self) -> None:
        model = self.model
        assert model.granted == sorted(set(model.granted))
        assert not model.queue or not any(w.accepting and w.free for w in model.workers.values())
        assert all(w.free.keys().isdisjoint(w.leases) for w in model.workers.values())

    def teardown(self) -> None:
        """When all stop, nothing is left but the counters."""
        self.pool.pass_ms(GRANT_MS + WORKER_TTL)
        assert self.pool.keys() == set()
        self.pool.redis.close()


@pytest.fixture
def machine(redis_server: RedisServer) -> type[FunctionsMachine]:
    FunctionsMachine.server = redis_server
    return FunctionsMachine


def test_functions_do_what_the_model_does(machine: type[FunctionsMachine]) -> None:
    health = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=health
        ),
    )
