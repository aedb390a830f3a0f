"""The vLLM engine: one thread with an event loop, on which every session is a task."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from antiphon.contract import Reason
from inference_service.engine_vllm.generator import Generator, GeneratorDead
from inference_service.engine_vllm.loop import LoopThread
from inference_service.engine_vllm.session import AnySession
from inference_service.errors import UnitRefused
from inference_service.interface.engine import (
    Closed,
    Deliver,
    EngineSession,
    ModelInfo,
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
from inference_service.session.base.session import PROGRESS_S

logger = logging.getLogger(__name__)

_FATAL: Final = SessionFailed("ENGINE_FATAL", "vLLM's engine has ended; the worker ends.")
_FAILED: Final = SessionFailed(Reason.INFERENCE_FAILED, "The worker failed in a step of this session.")
_CHECK_S: Final = 0.5
"""Seconds between checks that vLLM is alive, and progress events."""
_STOP_S: Final = 10.0

SessionFactory = Callable[[str, Any, Sink], AnySession]
"""Makes a session of one kind, from its name, setup and sink."""


class VllmEngine:
    """A generator and the sessions over it. Implements `Engine`."""

    def __init__(
        self,
        generator: Generator,
        thread: LoopThread,
        kinds: Mapping[type[SessionSetup], SessionFactory],
        info: ModelInfo,
        slots: int,
        deliver: Deliver,
        on_fatal: OnFatal,
    ) -> None:
        """Create the engine; `thread` is that of the generator, and is stopped with the engine."""
        self.info = info
        self.slots = slots
        self._generator = generator
        self._thread = thread
        self._kinds = kinds
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._media = MediaPool()
        self._sessions: dict[AnySession, asyncio.Task[None] | None] = {}
        """All open sessions, each with its task once it has begun."""
        self._on_ticks: list[OnTicks] = []
        self._ticks = 0
        self._advanced = time.monotonic()
        """Time at which the generator made its last step, or had no work."""
        self._is_dead = self._is_stopped = False
        generator.on_step = self._stepped
        self._watch = asyncio.run_coroutine_threadsafe(self._watch_over(), thread.loop)

    def watch(self, on_ticks: OnTicks) -> None:
        self._on_ticks.append(on_ticks)

    def occupancy(self) -> Occupancy:
        load = self._generator.load
        return Occupancy(
            kv_tokens=load.used_blocks * load.block_tokens,
            kv_capacity_tokens=load.blocks * load.block_tokens,
            device_memory_bytes=None,
            used_pages=load.used_blocks,
            free_pages=load.blocks - load.used_blocks,
            prefix_tokens=load.prefix_tokens,
        )

    @property
    def busy_since(self) -> float | None:
        return self._advanced if any(it.is_waited_for for it in list(self._sessions)) else None

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> EngineSession:
        session = self._kinds[type(setup)](session_id, setup, sink)

        def wait() -> None:
            self._thread.post(lambda: self._wait(session))

        lane, beside = self._media.lane(wait), self._media.lane(wait)
        live = LiveSession(self, session, lane, beside)
        self._thread.post(lambda: self._sessions.setdefault(session))
        lane.submit(session.preprocessor.priority(None), lambda: self._prepare(session))
        return live

    def order(self, session: AnySession, order: Order) -> None:
        """Queue an order for the engine's thread; an error in it counts as the session's."""
        self._thread.post(lambda: self._follow(session, order))

    def close(self, session: AnySession) -> None:
        """Queue the end of a session on the engine's thread."""
        self._thread.post(lambda: self._release(session))

    def stop(self) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        try:
            self._thread.run(self._end(), _STOP_S)
        except TimeoutError:
            logger.warning("vLLM did not end within %g s", _STOP_S)
        self._thread.stop(_STOP_S)
        self._media.stop()

    # ------------------------------------------------------------------------------------ on the media pool

    def _prepare(self, session: AnySession) -> None:
        refusal = None
        try:
            session.preprocessor.begin()
        except UnitRefused as refused:
            failure = refused.failure
            refusal = SessionFailed(Reason.CONFIG_INVALID, failure.message, failure.field)
        except Exception:
            logger.exception("a session could not be prepared", extra={"session_id": session.id})
            refusal = SessionFailed(Reason.INFERENCE_FAILED, "The worker could not prepare this session.")
        self._thread.post(lambda: self._begin(session, refusal))

    # ------------------------------------------------------------------------------- on the engine's thread

    def _begin(self, session: AnySession, refusal: SessionFailed | None) -> None:
        if session not in self._sessions:
            return  # it was closed meanwhile
        if self._is_dead or refusal is not None:
            session.fail(refusal or _FATAL)
            return
        task = self._sessions[session] = asyncio.get_running_loop().create_task(session.live())
        task.add_done_callback(lambda ended: self._ended(session, ended))

    def _ended(self, session: AnySession, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, GeneratorDead):
            self._die(str(error))
        elif error is not None:
            logger.error("a session failed", exc_info=error, extra={"session_id": session.id})
            session.fail(_FAILED)

    def _follow(self, session: AnySession, order: Order) -> None:
        if session not in self._sessions or session.is_over:
            return
        try:
            order()
            session.wake()
        except Exception:
            logger.exception("an order failed", extra={"session_id": session.id})
            session.fail(_FAILED)

    def _release(self, session: AnySession) -> None:
        if session not in self._sessions:
            return
        task = self._sessions.pop(session)
        session.is_over = True
        if task is None or task.done():
            session.tell(Closed())
        else:
            task.add_done_callback(lambda _: session.tell(Closed()))
            task.cancel()

    def _wait(self, session: AnySession) -> None:
        """Report progress of a session whose preparation waits for other sessions."""
        if session in self._sessions:
            self._tell_progress(session)

    def _tell_progress(self, session: AnySession) -> None:
        if not session.is_over and time.monotonic() - session.told >= PROGRESS_S:
            session.tell(Progress(session.queue.first.number if session.queue.first else 0))

    def _stepped(self, requests: int, tokens: int) -> None:
        """Report a step of vLLM's scheduler. Its work has no deadline, so it makes no session late."""
        began, self._advanced = self._advanced, time.monotonic()
        if tokens:
            self._ticks += 1
            ticked = Ticked(
                self._ticks, began, self._advanced, requests, tokens, rest_s=self._advanced - began
            )
            self._deliver([(on_ticks, [ticked]) for on_ticks in self._on_ticks])

    async def _watch_over(self) -> None:
        """Detect the end of vLLM while it has no request, and report progress to sessions that wait."""
        while not self._is_dead:
            await asyncio.sleep(_CHECK_S)
            if self._generator.is_dead:
                self._die("vLLM's engine process has ended")
            waiting = [session for session in self._sessions if session.is_waited_for]
            if not waiting:
                self._advanced = time.monotonic()
            for session in waiting:  # if a step takes too long, the watchdog ends the worker
                self._tell_progress(session)

    async def _end(self) -> None:
        self._is_dead = True
        self._watch.cancel()
        tasks = [task for task in self._sessions.values() if task is not None]
        for session in self._sessions:
            session.is_over = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._generator.stop()

    def _die(self, message: str) -> None:
        """Fail every session, present and future, because vLLM cannot compute any more."""
        if not self._is_dead:
            self._is_dead = True
            try:
                for session in self._sessions:
                    session.fail(_FATAL)
            finally:
                self._on_fatal(message)
