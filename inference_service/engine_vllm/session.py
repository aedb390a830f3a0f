"""One session of the vLLM engine: a task that takes its units one after another."""

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
    """Common part of all sessions.

    Only the thread of the event loop touches it, but for `preprocessor`, which is the media pool's. Orders
    are put into `queue`, after which `wake` is called.
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
        """When its caller heard of it last; monotonic seconds."""
        self.is_over = False
        """Whether it has failed, and takes part in nothing any more."""
        self._sink = sink
        self._generator = generator
        self._deliver = deliver
        self._usage = UnitUsage()
        self._woken = asyncio.Event()
        self._sampling: asyncio.Task[End] | None = None

    @property
    @abstractmethod
    def run(self) -> Run[Prepared]:
        """The unit under way."""

    @property
    @abstractmethod
    def context_tokens(self) -> int:
        """Tokens of its context."""

    @abstractmethod
    def begin(self) -> Event:
        """Take what the session begins with: `Ready`, or why there is no session."""

    @abstractmethod
    def read(self, unit: QueuedUnit[Prepared]) -> None:
        """Make `run` of a unit and take its input, or set why it cannot be taken as its failure."""

    @abstractmethod
    def refused(self) -> End | None:
        """Return how the unit ends without sampling; None if it is to be continued."""

    @abstractmethod
    def request(self) -> Request:
        """Return what is to be continued."""

    @abstractmethod
    def decide(self, token: int, tell: Callable[[Event], None]) -> End | None:
        """Take a sampled token; how the unit ends if it ends with it."""

    @abstractmethod
    def fold(self) -> int:
        """Close the unit in the context; how many sampled tokens did not stay there."""

    # ------------------------------------------------------------------------------------------- orders

    @property
    def is_cancelled(self) -> bool:
        """Whether the unit under way is to end without another token."""
        return self.queue.is_cancelled(self.run.unit)

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for the engine."""
        return self._sampling is not None

    def wake(self) -> None:
        """An order has been followed."""
        self._woken.set()
        if self._sampling is not None and self.is_cancelled:
            self.interrupt()

    def interrupt(self) -> None:
        """End the sampling of the unit under way, which is cancelled."""
        assert self._sampling is not None
        self._sampling.cancel()

    def tell(self, *events: Event) -> None:
        """Pass events on to the caller."""
        self.told = time.monotonic()
        self._deliver([(self._sink, list(events))])

    def fail(self, failure: SessionFailed) -> None:
        """End the session, once."""
        if not self.is_over:
            self.is_over = True
            self.tell(failure)

    # --------------------------------------------------------------------------------------------- task

    async def live(self) -> None:
        """Take units until the task is cancelled. Raises `GeneratorDead`."""
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
        discarded = self.fold()
        self.tell(
            Finalized(unit.number, self.context_tokens, 0, self._usage, discarded_tokens=discarded),
        )
        self.queue.close_first()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._woken.clear()
            await self._woken.wait()

    async def _continue(self) -> End:
        """Sample in a task of its own, so that a cancel ends it wherever it waits."""
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
