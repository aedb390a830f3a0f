"""The engine: one thread that owns the device and runs the units of all sessions tick by tick."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any

import torch

from antiphon.contract import Reason
from antiphon_service.semconv import Preparation
from inference_service.device.graph import make_current
from inference_service.device.preparations import PREPARATIONS
from inference_service.engine.batch.memory import held_bytes
from inference_service.engine.guard import DeviceLost
from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.errors import UnitRefused
from inference_service.interface.engine import (
    Closed,
    Deliver,
    EngineSession,
    Occupancy,
    OnFatal,
    OnTicks,
    Progress,
    SessionFailed,
    Sink,
    Ticked,
)
from inference_service.interface.setups import SessionSetup
from inference_service.media.pool import MediaPool
from inference_service.session.base.live_session import LiveSession, Order
from inference_service.session.base.session import Session, Stage

logger = logging.getLogger(__name__)

MOST_TICKS = 64
"""Limit of ticks that wait to be reported with the next event."""

_FATAL = SessionFailed("ENGINE_FATAL", "The model's device state is lost; the worker ends.")


class Inbox:
    """A thread-safe FIFO of orders, bounded by the unit windows of the sessions that write to it."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[Order] = SimpleQueue()

    def put(self, order: Order) -> None:
        """Add an order; never blocks."""
        self._orders.put(order)

    def take(self, wait: bool) -> Order | None:
        """Return the next order; None if there is none and `wait` is False. For one thread only."""
        return self._orders.get() if wait or not self._orders.empty() else None

    def take_within(self, seconds: float) -> Order | None:
        """Return the next order; None if none arrives within `seconds`. For one thread only."""
        try:
            return self._orders.get(timeout=seconds)
        except Empty:
            return None


class LiveEngine:
    """A loaded model and its loop. Implements `Engine`."""

    def __init__(
        self,
        runtime: Runtime,
        slots: int,
        deliver: Deliver,
        on_fatal: OnFatal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._tick = Tick(runtime)
        self._clock = clock
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._sessions: dict[int, Session[Any]] = {}
        self._preparing: set[Session[Any]] = set()
        """Sessions that have not begun."""
        self._on_ticks: list[OnTicks] = []
        self._ticks: list[Ticked] = []
        self.inbox = Inbox()
        self._media = MediaPool()
        self.info = runtime.info
        self.slots = slots
        self.busy_since: float | None = None
        self._is_dead = False
        self._stopped = False
        self._fills_processors = runtime.device.type == "cpu" and _processors() <= torch.get_num_threads()
        """Whether the engine's threads take all processors, so that none is left to the recogniser."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def watch(self, on_ticks: OnTicks) -> None:
        self._on_ticks.append(on_ticks)

    def occupancy(self) -> Occupancy:
        cache = self._runtime.language.cache
        used = sum(session.context.tokens for session in list(self._sessions.values()))
        return Occupancy(
            used,
            self.slots * cache.capacity,
            held_bytes(self._runtime.device),
            cache.pool.used,
            cache.pool.idle,
            cache.pool.free,
            cache.adopted_rows,
            PREPARATIONS.late[Preparation.CAPTURE],
            PREPARATIONS.late[Preparation.COMPILATION],
        )

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> EngineSession:
        session = self._runtime.open(session_id, slot, setup, sink)
        self._preparing.add(session)
        lane, beside = (self._media.lane(lambda: self.inbox.put(lambda: self._wait(session))) for _ in "ab")
        live = LiveSession(self, session, lane, beside)
        session.beside = live.do_beside
        lane.submit(session.preprocessor.priority(None), lambda: self._prepare(session))
        return live

    def _prepare(self, session: Session[Any]) -> None:
        """Prepare a session's opening, outside the engine's thread."""
        refusal = None
        try:
            session.preprocessor.begin()
        except UnitRefused as refused:
            failure = refused.failure
            refusal = SessionFailed(Reason.CONFIG_INVALID, failure.message, failure.field)
        except Exception:
            logger.exception("a session could not be prepared")
            refusal = SessionFailed(Reason.INFERENCE_FAILED, "The worker could not prepare this session.")
        self.inbox.put(lambda: self._begin(session, refusal))

    def order(self, session: Session[Any], order: Order) -> None:
        """Queue an order for the engine's thread; an error in it counts as the session's."""
        self.inbox.put(lambda: self._tick.guard.attempt(session, order))

    def close(self, session: Session[Any]) -> None:
        """Queue the release of a session on the engine's thread."""
        self.inbox.put(lambda: self.release(session))

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.inbox.put(lambda: None)
        self._thread.join(timeout=10)
        self._media.stop()

    # ------------------------------------------------------------------ on the engine thread

    @torch.inference_mode()
    def _run(self) -> None:
        make_current(self._runtime.device)
        while not self._stopped:
            try:
                self._loop_once()
            except DeviceLost as lost:
                self._die(str(lost))
            except Exception as error:
                logger.exception("the engine failed")
                self._die(f"{type(error).__name__}: {error}")

    def _loop_once(self) -> None:
        """Carry out the waiting orders, then one tick. A dead engine only carries out orders."""
        sessions = self._sessions.values()
        wait = self._is_dead or not self._tick.has_work(sessions)
        self.busy_since = None if wait else self._clock()
        self._follow(wait)
        if not self._is_dead and (ticked := self._tick.run(sessions, self._follow, self._tell)):
            self._ticks.append(ticked)
        self._flush()
        if self._media.units_without_words and self._fills_processors:
            self._pause()

    def _pause(self) -> None:
        """Leave the processor to the recogniser while units wait for its words.

        Work without a deadline then gets an eighth of the time, as it does while units wait: see `Share`.
        """
        end = self._clock() + self._tick.pause_s
        sessions = self._sessions.values()
        while self._media.units_without_words and not (self._stopped or self._tick.has_units(sessions)):
            left = end - self._clock()
            if left <= 0:
                return
            if (order := self.inbox.take_within(left)) is not None:
                order()
            self.busy_since = self._clock()

    def _follow(self, wait: bool = False) -> None:
        """Carry out the waiting orders; wait for at least one if `wait`."""
        while (order := self.inbox.take(wait)) is not None:
            self.busy_since = self._clock()
            order()
            wait = False
        self.busy_since = self._clock()

    def _begin(self, session: Session[Any], refusal: SessionFailed | None) -> None:
        if session not in self._preparing:
            return  # it was closed meanwhile
        self._preparing.remove(session)
        self._sessions[session.slot] = session
        session.stage = Stage.OPENING
        if self._is_dead or refusal is not None:
            session.fail(refusal or _FATAL)

    def _wait(self, session: Session[Any]) -> None:
        """Report progress of a session whose preparation waits for other sessions."""
        now = time.monotonic()
        if not session.may_tell(now):
            return
        if session in self._preparing:
            self._deliver([(session.sink, [Progress(0)])])
        elif self._sessions.get(session.slot) is session:
            session.tell_progress(now)

    def release(self, session: Session[Any]) -> None:
        """Release a session: its caches are emptied before its slot is offered again."""
        if self._sessions.get(session.slot) is session:
            del self._sessions[session.slot]
        else:
            self._preparing.discard(session)
        try:
            session.leave()
            if not self._is_dead:
                self._runtime.clear(session.slot)
                if (tenant := session.context.tenant).is_session:
                    self._runtime.language.cache.forget(tenant.salt)
        except Exception as error:
            # Entries left in the slot would leak into the next session.
            raise DeviceLost(f"slot {session.slot} cannot be emptied: {error}") from error
        finally:
            self._deliver([(session.sink, [Closed()])])

    def _tell(self, sessions: Iterable[Session[Any]]) -> None:
        if told := _taken(sessions, self._clock()):
            self._deliver(told)

    def _flush(self) -> None:
        now = self._clock()
        told = _taken((it for it in self._sessions.values() if it.events and not it.holds_back(now)), now)
        if self._ticks and (told or len(self._ticks) >= MOST_TICKS):
            told[:0] = [(on_ticks, self._ticks) for on_ticks in self._on_ticks]
            self._ticks = []
        if told:
            self._deliver(told)

    def _die(self, message: str) -> None:
        """Fail every session, present and future, because the device's state is lost."""
        if not self._is_dead:
            self._is_dead = True
            try:
                self._deliver([(session.sink, [_FATAL]) for session in self._sessions.values()])
            finally:
                self._on_fatal(message)


def _processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _taken(sessions: Iterable[Session[Any]], now: float) -> list[tuple[Callable[[Any], None], Any]]:
    """Take the events of these sessions; return them with their receivers."""
    told: list[tuple[Callable[[Any], None], Any]] = []
    for session in sessions:
        if session.events:
            told.append((session.sink, session.take_events(now)))
    return told
