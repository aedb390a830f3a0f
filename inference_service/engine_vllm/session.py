"""One session of the vLLM engine: a task that serves its units in order."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Generic

from inference_service.engine_vllm.generator import Generator, Request
from inference_service.interface.engine import (
    Deliver,
    End,
    Event,
    Finalized,
    SessionFailed,
    Sink,
    UnitUsage,
)
from inference_service.session.base.session import (
    Prepared,
    Preprocessor,
    QueuedUnit,
    Run,
    UnitQueue,
    summed,
)


class VllmSession(ABC, Generic[Prepared]):
    """The common part of all sessions.

    Only the thread of the event loop touches it, except for `preprocessor`, which belongs to the media pool.
    Orders are put into `queue`; then `wake` is called.
    """

    def __init__(
        self,
        session_id: str,
        sink: Sink,
        preprocessor: Preprocessor[Prepared],
        generator: Generator,
        deliver: Deliver,
    ) -> None:
        self.id = session_id
        self.queue: UnitQueue[Prepared] = UnitQueue()
        self.preprocessor = preprocessor
        self.told = time.monotonic()
        """Monotonic seconds of the last event for its caller."""
        self.is_over = False
        """Whether the session has failed or is closed; it reports no more units."""
        self._sink = sink
        self._generator = generator
        self._deliver = deliver
        self._usage = UnitUsage()
        self._woken = asyncio.Event()
        self._sampling: asyncio.Task[End] | None = None

    @property
    @abstractmethod
    def run(self) -> Run[Prepared]:
        """The running unit."""

    @property
    @abstractmethod
    def context_tokens(self) -> int:
        """Tokens of its context."""

    @abstractmethod
    def begin(self) -> Event:
        """Begin with the session's prepared opening; return `Ready`, or the reason why there is no
        session.
        """

    @abstractmethod
    def read(self, unit: QueuedUnit[Prepared]) -> None:
        """Make the `run` of a unit and take its input, or set its failure."""

    @abstractmethod
    def refused(self) -> End | None:
        """Return the end of a unit that is not sampled; None if it is to be continued."""

    @abstractmethod
    def request(self) -> Request:
        """Return the request for the running unit."""

    @abstractmethod
    def decide(self, token: int, tell: Callable[[Event], None]) -> End | None:
        """Take a sampled token; return the end of the unit if it ends with this token."""

    @abstractmethod
    def close_unit(self) -> int:
        """Close the unit in the context; return the number of sampled tokens that did not stay there."""

    # ------------------------------------------------------------------------------------------- orders

    @property
    def is_cancelled(self) -> bool:
        """Whether the running unit must end without further tokens."""
        return self.queue.is_cancelled(self.run.unit)

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for the engine."""
        return self._sampling is not None

    def wake(self) -> None:
        """Wake the task after an order."""
        self._woken.set()
        if self._sampling is not None and self.is_cancelled:
            self.interrupt()

    def interrupt(self) -> None:
        """End the sampling of the running unit, which is cancelled."""
        assert self._sampling is not None
        self._sampling.cancel()

    def tell(self, *events: Event) -> None:
        """Pass events on to the caller."""
        self.told = time.monotonic()
        self._deliver([(self._sink, list(events))])

    def fail(self, failure: SessionFailed) -> None:
        """End the session with a failure, once."""
        if not self.is_over:
            self.is_over = True
            self.tell(failure)

    # --------------------------------------------------------------------------------------------- task

    async def live(self) -> None:
        """Serve units until the task is cancelled. Raises `GeneratorDead`."""
        begun = self.begin()
        if isinstance(begun, SessionFailed):
            self.fail(begun)
            return
        self.tell(begun)
        while True:
            await self._until(lambda: self.queue.first is not None)
            assert self.queue.first is not None
            await self._take(self.queue.first)

    async def _take(self, unit: QueuedUnit[Prepared]) -> None:
        self.read(unit)
        self.tell(self.run.prefilled(self.context_tokens))
        await self._until(lambda: unit.overrides is not None)
        self.run.decided_at = time.monotonic()
        end = self.refused()
        if end is None:
            end = await self._continue()
        done = self.run.done(end, self.context_tokens)
        self._usage = summed(self._usage, done.usage)
        self.tell(done)
        await self._until(lambda: unit.finalize)
        discarded = self.close_unit()
        self.tell(
            Finalized(unit.number, self.context_tokens, 0, self._usage, discarded_tokens=discarded),
        )
        self.queue.close_first()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._woken.clear()
            await self._woken.wait()

    async def _continue(self) -> End:
        """Sample in a separate task, so that a cancel ends it at any await."""
        task = self._sampling = asyncio.create_task(self._sample())
        try:
            await asyncio.wait({task})
        finally:
            self._sampling = None
            if not task.done():  # the session is being closed
                task.cancel()
                await asyncio.wait({task})
        return End.CANCELLED if task.cancelled() else task.result()

    async def _sample(self) -> End:
        run = self.run
        async with aclosing(self._generator.generate(self.request())) as steps:
            async for step in steps:
                self.note_heard()
                run.cached = step.cached
                end = self._decide_all(step.ids)
                if end is not None:
                    return end
        raise RuntimeError("vLLM ended a request before its last token.")

    def note_heard(self) -> None:
        """Note the time of the unit's first token."""
        if not self.run.heard_at:
            self.run.heard_at = self.run.decided_at = time.monotonic()

    def _decide_all(self, ids: Sequence[int]) -> End | None:
        events: list[Event] = []
        end = None
        try:
            for token in ids:
                self.run.sampled += 1
                end = self.decide(token, events.append)
                if end is not None:
                    break
        finally:
            if events:
                self.tell(*events)
        return end


AnySession = VllmSession[Any]
