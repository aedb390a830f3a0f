"""The processes of a cluster: adapters and workers over one Redis, each of them killed or replaced alone."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from redis import Redis

from antiphon_service.redis import LIBRARY
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer

DRAIN_S: Final = 120.0
"""Longer than a conversation: nothing that is replaced may end one."""

SHIPPED: Final = ("antiphon_command", "worker", "--no-admission")
"""The checkpoint of the package; the machine may be slower than the talkers."""

_ADMIT_ALL: Final = ("--max-cpu", "0", "--max-loop-lag-ms", "0", "--resume-window-s", "0")


def until(condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Returns what `condition` does as soon as that is true; fails if it never is."""
    end = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(0.05)
    return found


class Node:
    def __init__(self, name: str, words: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words], stdout=log, stderr=log, env=os.environ | environment
            )

    def address(self, what: str = "ready") -> str:
        def told() -> str | None:
            assert self.process.poll() is None, self.log
            marker = f" {what} on "
            return next((line.split(marker)[1] for line in self.log.splitlines() if marker in line), None)

        return str(until(told, f"{self.name} is {what}"))

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def end(self, number: signal.Signals = signal.SIGTERM, within_s: float = DRAIN_S) -> int:
        self.process.send_signal(number)
        return self.process.wait(within_s)


@dataclass
class Cluster:
    """Everything that runs, in `folder`; `worker` is the module and the arguments of one."""

    folder: Path
    slots: int
    worker: Sequence[str] = SHIPPED
    adapters: dict[str, str] = field(default_factory=dict)
    """Name -> where clients find it, of those that take them."""
    nodes: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.redis = RedisServer(self.folder, 'save ""')
        self._numbers = itertools.count(1)
        key = "k" * 32
        self._shared = {"ANTIPHON_WORKER_KEY": key, "ANTIPHON_CLIENT_SECRET_KEY": key}

    def start(self, adapters: int = 2, workers: int = 2) -> None:
        self.redis.start()
        self._shared["ANTIPHON_DISPATCHER"] = self.redis.url
        for name in [self.spawn_worker() for _ in range(workers)]:
            self.nodes[name].address()
        for name in [self.spawn_adapter() for _ in range(adapters)]:
            self.join(name)
        until(lambda: self.free_slots() == workers * self.slots, "all slots are known")

    def spawn_worker(self) -> str:
        name = f"worker-{next(self._numbers)}"
        target = f"unix:{self.folder / f'{name}.sock'}"
        words = (*self.worker, "--slots", str(self.slots), "--listen", target, "--advertise", target)
        return self._spawn(name, (*words, "--worker-id", name, "--drain-timeout-s", f"{DRAIN_S:g}"))

    def spawn_adapter(self) -> str:
        """Another adapter, which is not waited for, and which nobody is sent to before it has joined."""
        name = f"adapter-{next(self._numbers)}"
        words = ("antiphon_command", "adapter", "--port", "0", "--admin-port", "0", *_ADMIT_ALL)
        return self._spawn(name, (*words, "--drain-timeout-s", f"{DRAIN_S:g}"))

    def join(self, name: str) -> None:
        self.adapters[name] = self.nodes[name].address()

    def leave(self, name: str) -> Node:
        """Route no more clients to this adapter and return its node, for the caller to end."""
        self.adapters.pop(name, None)
        return self.nodes.pop(name)

    def status(self, name: str) -> dict[str, Any]:
        url = f"{self.nodes[name].address('administration')}/status.json"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return dict(json.load(answer))

    def held(self) -> dict[str, int]:
        """Worker -> leases of its slots that the queue knows; and who still waits, as `queue`."""
        with Redis(unix_socket_path=str(self.redis.socket), decode_responses=True) as client:
            found = Counter[str]()
            for key in client.keys("antiphon:{*}:worker_exp"):
                told = json.loads(
                    client.execute_command("FCALL", f"{LIBRARY}_stats", 1, key.removesuffix("worker_exp"))
                )
                found["queue"] += told["length"]
                for worker in told.get("workers") or ():
                    found[worker["id"]] += len(worker.get("leases") or ())
            return dict(found)

    def free_slots(self) -> int:
        url = next(iter(self.adapters.values()))
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE_S) as answer:
                return int(json.load(answer)["free_slots"])
        except OSError:
            return -1

    def close(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.kill()
        for node in self.nodes.values():
            node.process.wait()
        self.redis.stop()

    def _spawn(self, name: str, words: Sequence[str]) -> str:
        self.nodes[name] = Node(name, words, self.folder, self._shared)
        return name
