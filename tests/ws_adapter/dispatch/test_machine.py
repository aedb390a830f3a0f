"""The queue against a model of it: whatever happens in whatever order, its promises hold."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.long import examples
from tests.ws_adapter.dispatch.test_inprocess import POOL, Queue, settle
from tests.ws_adapter.support.backend import Caller, ListedRegistry
from ws_adapter.dispatch.base import QueueView
from ws_adapter.process.errors import QueueFull, WaitCancelled
from ws_adapter.protocol.core.kind import Kind

CAPACITY = 2


@dataclass(eq=False)
class Entry:
    caller: Caller
    again: bool
    seen: list[int] = field(default_factory=list)


class DispatchMachine(RuleBasedStateMachine):
    """The model is two lists: who should wait, in order, and who should have a slot."""

    @initialize(slots=st.sampled_from([0, 1, 1, 2]))
    def start(self, slots: int) -> None:
        self.runner = asyncio.Runner()
        self.waiting: list[Entry] = []
        self.holding: list[Entry] = []
        self.epochs: list[int] = []
        self.run(self._start(slots))

    async def _start(self, slots: int) -> None:
        self.queue = Queue(ListedRegistry(a=slots), capacity=CAPACITY, no_worker_grace_s=1e9)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    @property
    def slots(self) -> int:
        return sum(info.slots for info in self.queue.registry.infos.values())

    @rule(kind=st.sampled_from(Kind), again=st.booleans())
    def enter(self, kind: Kind, again: bool) -> None:
        caller = self.run(self.queue.enter(kind=kind, again=POOL if again else None))
        if not again and len(self.waiting) >= CAPACITY:
            assert isinstance(caller.error, QueueFull)
            return
        ahead = sum(entry.again for entry in self.waiting) if again else len(self.waiting)
        self.waiting.insert(ahead, Entry(caller, again))
        self.grant()

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.holding))
        self.holding.remove(entry)
        self.run(self.queue.leave(entry.caller))
        self.grant()

    @precondition(lambda self: self.waiting or self.holding)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from([*self.waiting, *self.holding]))
        self.run(self._vanish(entry.caller))
        (self.waiting if entry in self.waiting else self.holding).remove(entry)
        self.grant()

    async def _vanish(self, caller: Caller) -> None:
        await caller.vanish()
        await settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.waiting))
        ticket_id = entry.caller.places[0].ticket_id

        assert self.run(self.queue.dispatcher.cancel(ticket_id))
        assert not self.run(self.queue.dispatcher.cancel(ticket_id))
        self.run(settle())
        self.waiting.remove(entry)
        assert isinstance(entry.caller.error, WaitCancelled)

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def cancel_too_late(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.holding))
        if entry.caller.places:
            assert not self.run(self.queue.dispatcher.cancel(entry.caller.places[0].ticket_id))

    @rule(slots=st.sampled_from([0, 1, 1, 2]))
    def restart_workers(self, slots: int) -> None:
        """A restarted worker is a new one; those who were at the old one hold their slots there."""
        self.run(self._replace(slots))
        self.grant()

    async def _replace(self, slots: int) -> None:
        name = f"w{len(self.epochs)}_{len(self.queue.all)}"
        self.queue.registry.set(**({name: slots} if slots else {}))
        await settle()

    @rule(seconds=st.sampled_from([0.5, 3.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.run(self.queue.clock.advance(seconds))
        self.run(settle())

    def grant(self) -> None:
        """Apply to the model the grants that the dispatcher should have made meanwhile."""
        at_ready = [
            entry
            for entry in self.holding
            if entry.caller.lease is not None and entry.caller.lease.worker_id in self.queue.registry.infos
        ]
        for _ in range(max(0, self.slots - len(at_ready))):
            if self.waiting:
                entry = self.waiting.pop(0)
                self.holding.append(entry)
                assert entry.caller.lease is not None, "a free slot and a waiting ticket"
                self.epochs.append(entry.caller.lease.epoch)

    @invariant()
    def those_wait_who_should(self) -> None:
        view: QueueView = self.run(self.queue.dispatcher.view())
        assert [w.place.ticket_id for w in view.waiting] == [
            entry.caller.places[0].ticket_id for entry in self.waiting
        ]
        assert len(view.running) == len(self.holding)
        assert all(entry.caller.lease is None and entry.caller.error is None for entry in self.waiting)
        assert all(w.place.queue_length == len(self.waiting) for w in view.waiting)

    @invariant()
    def slots_have_one_owner(self) -> None:
        leases = [entry.caller.lease for entry in self.holding]
        owned = {(lease.worker_id, lease.slot) for lease in leases if lease is not None}
        assert len(owned) == len(self.holding)

    @invariant()
    def epochs_rise(self) -> None:
        assert self.epochs == sorted(set(self.epochs))

    @invariant()
    def positions_never_grow_and_are_right_without_passers(self) -> None:
        view: QueueView = self.run(self.queue.dispatcher.view())
        for index, (entry, waiting) in enumerate(zip(self.waiting, view.waiting, strict=True)):
            entry.seen.append(waiting.place.position)
            told = [place.position for place in entry.caller.places]
            assert told == sorted(told, reverse=True)
            assert entry.seen == sorted(entry.seen, reverse=True)
            assert 1 <= waiting.place.position <= index + 1
            if not any(other.again for other in self.waiting):
                assert waiting.place.position == index + 1 or any(p < index + 1 for p in entry.seen)

    @invariant()
    def estimates_are_sane(self) -> None:
        view: QueueView = self.run(self.queue.dispatcher.view())
        waits = [waiting.place.estimated_wait_s for waiting in view.waiting]
        assert waits == sorted(waits)
        assert all(wait >= 0 for wait in waits)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.run(self.queue.end())
            view = self.run(self.queue.dispatcher.view())
            assert (view.waiting, view.running) == ((), ())
            assert self.queue.clock.timers == 0
            self.runner.close()


TestDispatchMachine = DispatchMachine.TestCase
TestDispatchMachine.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
