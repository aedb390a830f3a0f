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
"""The default drain time in seconds for running conversations."""

_QUIET: Final = ("--log-level", "warning")
"""The log options of a child, whose output is shared with the banner: only warnings and errors."""


@dataclass(frozen=True)
class Plan:
    """The plan of a stack; `worker` and `adapter` are arguments for each process of that command."""

    worker: Sequence[str]
    adapter: Sequence[str]
    workers: int = 1
    adapters: int = 1
    devices: Sequence[str] = ()
    """The devices, assigned to the workers in turn; empty for the workers' default."""
    admin_port: int | None = None
    """The port of the first adapter; the next adapter has the next port. 0 chooses a free one for each."""
    dispatcher: str | None = None
    """The URL of the Redis with the shared queue; without it the only adapter has the queue."""
    shared: Sequence[str] = ()
    """The further arguments of all processes for the connection to Redis."""
    drain_timeout_s: float = DRAIN_TIMEOUT_S

    @property
    def needs_redis(self) -> bool:
        """Whether the stack must start a Redis, since several adapters share a queue and none was named."""
        return self.adapters > 1 and self.dispatcher is None

    @property
    def workers_reload(self) -> bool:
        """Whether the workers have certificates that they read again on SIGHUP."""
        return "--dispatcher-ca" in self.shared or "--dispatcher-cert" in self.shared

    @property
    def addresses(self) -> int:
        """The number of addresses that each adapter prints."""
        return 1 + ("--tls-cert" in self.adapter) + (self.admin_port is not None)


@dataclass(frozen=True)
class Arguments:
    """The arguments of each process of `plan`, whose sockets are in `folder`."""

    plan: Plan
    folder: Path
    dispatcher: str | None
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    """The environment variables of all processes."""

    @classmethod
    def of(cls, plan: Plan, folder: Path, dispatcher: str | None) -> "Arguments":
        """Return the arguments.

        Keys that several adapters share are generated unless the environment has them.
        """
        names = (WORKER_KEY, CLIENT_SECRET_KEY) if dispatcher is not None else ()
        variables = {name: os.environ.get(name) or secrets.token_hex(32) for name in names}
        # The URL may contain a password, so it is no argument. Empty, it overrides the environment.
        variables[DISPATCHER] = dispatcher or ""
        return cls(plan, folder, dispatcher, variables)

    @property
    def workers_file(self) -> Path:
        """The file with the names of the workers, for an adapter with its own queue."""
        return self.folder / "workers"

    @property
    def processes_file(self) -> Path:
        """The file with the state of all processes, for the adapters' status pages."""
        return self.folder / "processes.json"

    def target(self, worker: int, generation: int) -> str:
        """Return the address at which a worker listens, both numbers counted from 0."""
        return f"unix:{self.folder / f'worker-{worker + 1}-{generation}.sock'}"

    def worker(self, index: int, generation: int) -> list[str]:
        """Return the command line of worker `index`."""
        plan, target = self.plan, self.target(index, generation)
        device = ("--device", plan.devices[index % len(plan.devices)]) if plan.devices else ()
        name = ("--worker-id", f"worker-{index + 1}") if plan.workers > 1 else ()
        shared = ("--advertise", target) if self.dispatcher is not None else ()
        return [*plan.worker, *device, *name, "--listen", target, *shared, *self._all()]

    def adapter(self, index: int, generation: int, ports: Sequence[str], admin_port: int | None) -> list[str]:
        """Return the command line of adapter `index`.

        `ports` are the options for the ports of the first adapter, once it listens. `admin_port` is the
        former administration port of this adapter, if it had one.
        """
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
