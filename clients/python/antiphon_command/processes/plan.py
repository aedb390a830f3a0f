"""The processes of a stack, and the arguments of each."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from antiphon_command.arguments.dispatcher import DISPATCHER
from antiphon_command.arguments.shared_key import CLIENT_SECRET_KEY, WORKER_KEY

DRAIN_TIMEOUT_S: Final = 60.0
"""How long running conversations may go on, unless told otherwise."""

_QUIET: Final = ("--log-level", "warning")
"""In a terminal that somebody else reads only what is wrong belongs."""


@dataclass(frozen=True)
class Plan:
    """`worker` and `adapter` are arguments of these commands that hold for each of them."""

    worker: Sequence[str]
    adapter: Sequence[str]
    workers: int = 1
    adapters: int = 1
    devices: Sequence[str] = ()
    """Dealt out to the workers in turn; none leaves them to themselves."""
    admin_port: int | None = None
    """Of the first adapter; the next has the next. 0 is any free one for each."""
    dispatcher: str | None = None
    """URL of the Redis that they share their queue through; without it one adapter has it to itself."""
    shared: Sequence[str] = ()
    """More arguments of all, of how that is reached."""
    drain_timeout_s: float = DRAIN_TIMEOUT_S

    @property
    def needs_redis(self) -> bool:
        """Whether nobody has named the one that there has to be."""
        return self.adapters > 1 and self.dispatcher is None

    @property
    def workers_reload(self) -> bool:
        """Whether the workers have certificates that they read again on SIGHUP."""
        return "--dispatcher-ca" in self.shared or "--dispatcher-cert" in self.shared

    @property
    def addresses(self) -> int:
        """How many each adapter tells."""
        return 1 + ("--tls-cert" in self.adapter) + (self.admin_port is not None)


@dataclass(frozen=True)
class Arguments:
    """Those of each process of `plan`, whose sockets are in `folder`."""

    plan: Plan
    folder: Path
    dispatcher: str | None
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    """Of the environment of all."""

    @classmethod
    def of(cls, plan: Plan, folder: Path, dispatcher: str | None) -> "Arguments":
        """Return what several adapters sign alike has one key, made here unless the environment has one."""
        names = (WORKER_KEY, CLIENT_SECRET_KEY) if dispatcher is not None else ()
        variables = {name: os.environ.get(name) or secrets.token_hex(32) for name in names}
        # It may have a password in it; and without one that of the environment is not meant.
        variables[DISPATCHER] = dispatcher or ""
        return cls(plan, folder, dispatcher, variables)

    @property
    def workers_file(self) -> Path:
        """Names the workers to an adapter that has the queue to itself."""
        return self.folder / "workers"

    @property
    def processes_file(self) -> Path:
        """Tells the adapters how all processes are, for their status pages."""
        return self.folder / "processes.json"

    def target(self, worker: int, generation: int) -> str:
        """Return where a worker listens, both counted from 0."""
        return f"unix:{self.folder / f'worker-{worker + 1}-{generation}.sock'}"

    def worker(self, index: int, generation: int) -> list[str]:
        """Of a worker."""
        plan, target = self.plan, self.target(index, generation)
        device = ("--device", plan.devices[index % len(plan.devices)]) if plan.devices else ()
        name = ("--worker-id", f"worker-{index + 1}") if plan.workers > 1 else ()
        shared = ("--advertise", target) if self.dispatcher is not None else ()
        return [*plan.worker, *device, *name, "--listen", target, *shared, *self._all()]

    def adapter(self, index: int, generation: int, ports: Sequence[str], admin_port: int | None) -> list[str]:
        """Of an adapter; `ports` are options that are known once the first adapter listens, and `admin_port`
        is where this one was before, if it was."""
        plan = self.plan
        peers = f"unix:{self.folder / f'adapter-{index + 1}-{generation}.sock'}"
        shared = ("--peer-listen", peers) if self.dispatcher is not None else ()
        found = ("--workers-file", str(self.workers_file)) if self.dispatcher is None else ()
        administration: tuple[str, ...] = ()
        if plan.admin_port is not None:
            chosen = admin_port or (plan.admin_port + index if plan.admin_port else 0)
            administration = ("--admin-port", str(chosen))
        told = ("--processes-file", str(self.processes_file))
        return [*plan.adapter, *ports, "--reuse-port", *administration, *found, *shared, *told, *self._all()]

    def _all(self) -> tuple[str, ...]:
        return (*self.plan.shared, "--drain-timeout-s", f"{self.plan.drain_timeout_s:g}", *_QUIET)
