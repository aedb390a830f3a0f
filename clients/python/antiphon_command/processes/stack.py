"""Workers and adapters on this machine, as child processes over private Unix sockets."""

import asyncio
import http
import http.client
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from antiphon_command.output.failure import Failure
from antiphon_command.processes.backoff import Backoff
from antiphon_command.processes.child import KILL_AFTER_S, Program
from antiphon_command.processes.member import Member
from antiphon_command.processes.plan import Arguments, Plan
from antiphon_command.processes.redis_server import redis_program, redis_url

_BEYOND_DRAIN_S: Final = 30.0
"""The seconds that a process may take to exit after its drain."""

_FIND_WORKER_S: Final = 10.0
"""The seconds that a listening adapter may take to find a ready worker."""

_LONGEST_FOLDER: Final = 70
"""The longest path of the temporary folder, since the path of a socket may have only 107 bytes."""

T = TypeVar("T")


class Stack:
    """The supervisor of all processes: it starts, restarts, replaces and stops them.

    Leaving its block ends all processes and removes all files.
    """

    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        """Create a stack; `tell` gets the output of the processes and the progress."""
        self._plan = plan
        self._tell = tell
        self._folder = Path()
        self._ports: list[str] = []
        self._admin_ports: dict[int, int] = {}
        self._arguments: Arguments | None = None
        self._redis: list[Member] = []
        self._workers: list[Member] = []
        self._adapters: list[Member] = []
        self._is_rolling = False

    @property
    def worker_targets(self) -> list[str]:
        """The gRPC addresses of the workers that take sessions."""
        given = self._given
        return [given.target(index, worker.generation) for index, worker in enumerate(self._workers)]

    @property
    def dispatcher(self) -> str | None:
        """The URL of the Redis with the shared queue; None if the only adapter has a queue of its own."""
        return self._given.dispatcher

    async def __aenter__(self) -> Self:
        usual = tempfile.gettempdir()
        place = usual if len(usual) < _LONGEST_FOLDER else "/tmp"
        self._folder = folder = Path(tempfile.mkdtemp(prefix="antiphon-", dir=place))
        plan = self._plan
        if plan.needs_redis:
            self._redis = [
                Member("Redis server", lambda _: redis_program(folder), self._tell, _backoff(), self._changed)
            ]
        dispatcher = redis_url(folder) if plan.needs_redis else plan.dispatcher
        self._arguments = Arguments.of(plan, folder, dispatcher)
        self._workers = self._members("worker", plan.workers, self._worker)
        self._adapters = self._members("adapter", plan.adapters, self._adapter)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stop(KILL_AFTER_S)
        finally:
            self.kill()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def start(self) -> list[list[str]]:
        """Start the workers, then the adapters; return the addresses of each adapter once all are ready.

        An adapter's addresses are those for clients, the plain one first, and the administration port, if it
        has one. Raises `Failure` if a process ends early or takes too long.
        """
        self._write_workers_file()
        await _all(member.start() for member in self._redis)
        await _all(member.start() for member in self._workers)
        first, *others = self._adapters
        addresses = await first.start()
        # All adapters listen on the ports of the first one, also after a restart.
        clients = addresses if self._plan.admin_port is None else addresses[:-1]
        for option, address in zip(("--port", "--tls-port"), clients, strict=False):
            self._ports += [option, str(_port(address))]
        found = [addresses, *await _all(adapter.start() for adapter in others)]
        if self._plan.admin_port is not None:
            self._admin_ports = {index: _port(told[-1]) for index, told in enumerate(found)}
        await _until_ready(addresses[0])
        self._changed()
        return found

    async def watch(self) -> Failure:
        """Restart processes that end on their own; return the failure that rules out a restart."""
        keeping = [asyncio.create_task(member.keep()) for member in self._members_all]
        try:
            done, _ = await asyncio.wait(keeping, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.wait(keeping)
        return done.pop().result()

    def reload(self) -> None:
        """Make all processes read their keys and certificates again."""
        workers = self._workers if self._plan.workers_reload else ()
        for member in (*workers, *self._adapters):
            member.reload()

    async def roll(self) -> None:
        """Replace the workers and adapters one by one; stop at a failure. Only one roll runs at a time."""
        if self._is_rolling:
            self._tell("  Processes are being replaced already.")
            return
        self._is_rolling = True
        try:
            for member in (*self._workers, *self._adapters):
                self._tell(f"  The {member.name} is replaced.")
                if not await member.roll(self._longest_drain_s):
                    return
            self._tell("  All have been replaced.")
        finally:
            self._is_rolling = False

    async def drain(self) -> bool:
        """Drain all processes, then stop them; return whether all exit codes were 0."""
        return await self._stop(self._longest_drain_s)

    def kill(self) -> None:
        """Kill all processes at once."""
        for member in self._members_all:
            member.kill()

    @property
    def _given(self) -> Arguments:
        assert self._arguments is not None
        return self._arguments

    @property
    def _members_all(self) -> tuple[Member, ...]:
        return (*self._redis, *self._workers, *self._adapters)

    @property
    def _longest_drain_s(self) -> float:
        return self._plan.drain_timeout_s + _BEYOND_DRAIN_S

    async def _stop(self, grace_s: float) -> bool:
        # Adapters stop first, since their sessions need the workers; Redis stops last, since all use it.
        ends = [
            await asyncio.gather(*(member.stop(grace_s) for member in members))
            for members in (self._adapters, self._workers, self._redis)
        ]
        return all(map(all, ends))

    def _members(self, command: str, count: int, program: Callable[[int, int], Program]) -> list[Member]:
        def member(index: int) -> Member:
            name = command if count == 1 else f"{command} {index + 1}"
            run = partial(program, index)
            return Member(name, run, self._tell, _backoff(), self._changed)

        return [member(index) for index in range(count)]

    def _worker(self, index: int, generation: int) -> Program:
        return self._program("worker", self._given.worker(index, generation))

    def _adapter(self, index: int, generation: int) -> Program:
        admin_port = self._admin_ports.get(index)
        arguments = self._given.adapter(index, generation, self._ports, admin_port)
        return self._program("adapter", arguments, self._plan.addresses)

    def _program(self, command: str, arguments: Sequence[str], addresses: int = 1) -> Program:
        return Program.antiphon(command, arguments, str(self._folder), addresses, self._given.variables)

    def _changed(self) -> None:
        self._write_workers_file()
        states = [member.status() for member in self._members_all]
        _replace(self._given.processes_file, json.dumps(states))

    def _write_workers_file(self) -> None:
        """Write the file of workers for an adapter with its own queue."""
        file = self._given.workers_file
        text = "".join(f"{target}\n" for target in self.worker_targets)
        if self.dispatcher is None and (not file.exists() or file.read_text() != text):
            _replace(file, text)
            self.reload()


def _replace(file: Path, text: str) -> None:
    """Replace a file atomically, so that no reader sees half of it."""
    draft = file.with_suffix(".new")
    draft.write_text(text)
    draft.rename(file)


def _port(address: str) -> int:
    port = urlsplit(address).port
    assert port is not None
    return port


def _backoff() -> Backoff:
    return Backoff(random.Random())


async def _all(starts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the coroutines concurrently and return their results; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_ready(address: str) -> None:
    """Wait until the adapter reports that a session could start. Raises `Failure` if it takes too long."""
    try:
        async with asyncio.timeout(_FIND_WORKER_S):
            while True:
                if await asyncio.to_thread(_is_ready, address):
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Failure(f"The adapter did not find the worker within {_FIND_WORKER_S:.0f} s.") from None


def _is_ready(address: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=_FIND_WORKER_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
