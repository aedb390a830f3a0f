"""One member of a stack of processes: it restarts after a crash, and a rolling restart replaces it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from antiphon_command.output.failure import ExitCode, Failure
from antiphon_command.processes.backoff import Backoff
from antiphon_command.processes.child import Child, Ended, Program

START_TIMEOUT_S: Final = 600.0
"""The longest time in seconds for loading and warming up."""

_REPORT_INTERVAL_S: Final = 10.0


class Member:
    """A child process and its successors.

    `program` returns the program of a generation, counted from 0. A roll begins a new generation; a restart
    after a crash does not. `changed` is called when a child has died and when a new one is ready.
    """

    def __init__(
        self,
        name: str,
        program: Callable[[int], Program],
        tell: Callable[[str], None],
        backoff: Backoff,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.generation = 0
        self._restarts = 0
        self._last_end = ""
        self._ended_at: float | None = None
        """The Unix time of the last end."""
        self._program = program
        self._tell = tell
        self._backoff = backoff
        self._changed = changed
        self._child: Child | None = None
        self._successor: Child | None = None
        self._draining: Child | None = None
        """The replaced child, while it drains."""
        self._changing = asyncio.Lock()

    def status(self) -> dict[str, Any]:
        """Return the state for the status page, as `ws_adapter.observability.processes` defines it."""
        child = self._child
        is_ready = child is not None and child.is_running and child.ready_at is not None
        return {
            "name": self.name,
            "state": "ready" if is_ready else "starting",
            "pid": child.pid if child is not None and child.is_running else None,
            "restarts": self._restarts,
            "last_end": self._last_end,
            "ended_at": self._ended_at,
        }

    async def start(self) -> list[str]:
        """Start the first child; return its addresses once it is ready. Raises `Failure` otherwise."""
        self._child = child = await self._spawn(self.generation)
        return await self._ready(child)

    async def keep(self) -> Failure:
        """Restart the child whenever it ends on its own.

        Return the failure that rules out a restart.
        """
        assert self._child is not None
        while True:
            child = self._child
            code = await child.wait()
            async with self._changing:
                if child is self._child:
                    failure = await self._restart(Ended(self.name, "stopped unexpectedly", code))
                    if failure is not None:
                        return failure

    async def roll(self, drain_s: float) -> bool:
        """Replace the child: start the next one, then drain this one for at most `drain_s`.

        Return False, with no change, if the next one is never ready.
        """
        async with self._changing:
            old = self._child
            assert old is not None
            if not await self._begin(self.generation + 1):
                return False
            self._draining = old
            self._changed()
        await old.stop(drain_s)
        self._draining = None
        return True

    async def _begin(self, generation: int) -> bool:
        """Start a child of another generation as the replacement.

        Return False, with no change, if it is never ready.
        """
        self._successor = new = await self._spawn(generation)
        try:
            await self._ready(new)
        except Failure as failure:
            what = str(failure) or f"The {self.name} refuses its settings."
            self._tell(f"  {what} The running one stays.")
            return False
        finally:
            self._successor = None
            if new.ready_at is None:
                new.kill()
        self.generation, self._child = generation, new
        return True

    async def stop(self, grace_s: float) -> bool:
        """Terminate all children, kill them after `grace_s`; return whether all exit codes were 0."""
        running = [child for child in self._children() if child.is_running]
        codes = await asyncio.gather(*(child.stop(grace_s) for child in running))
        return not any(codes)

    def kill(self) -> None:
        """Kill all children at once."""
        for child in self._children():
            child.kill()

    def reload(self) -> None:
        """Make the children read their files again."""
        for child in self._children():
            child.reload()

    def _children(self) -> list[Child]:
        return [child for child in (self._draining, self._child, self._successor) if child is not None]

    async def _restart(self, end: Failure) -> Failure | None:
        clock = asyncio.get_running_loop().time
        assert self._child is not None
        ready_at = self._child.ready_at
        ran_s = clock() - ready_at if ready_at is not None else 0.0
        while True:
            pause_s = self._backoff.after(ran_s)
            summary = getattr(end, "summary", str(end)).rstrip(".")
            self._tell(f"  {summary}; it is started again in {pause_s:.2g} s.")
            self._restarts += 1
            self._last_end, self._ended_at = summary, time.time()
            self._changed()
            await asyncio.sleep(pause_s)
            self._child = child = await self._spawn(self.generation)
            try:
                await self._ready(child)
            except Failure as failure:
                if failure.code == ExitCode.USAGE:
                    return failure
                child.kill()
                end, ran_s = failure, 0.0
            else:
                self._tell(f"  The {self.name} is ready again.")
                self._changed()
                return None

    async def _spawn(self, generation: int) -> Child:
        return await Child.start(self.name, self._program(generation), self._tell)

    async def _ready(self, child: Child) -> list[str]:
        report = asyncio.create_task(self._report_waiting())
        try:
            return await child.ready(START_TIMEOUT_S)
        finally:
            report.cancel()

    async def _report_waiting(self) -> None:
        """Report at intervals that the child is not ready yet."""
        seconds = 0.0
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            seconds += _REPORT_INTERVAL_S
            self._tell(f"  still waiting for the {self.name} to load and warm up: {seconds:.0f} s")
