"""A pool's functions on a real Redis, with a clock that the test sets."""

import json
import re
from pathlib import Path
from typing import Any

import redis

import ws_adapter.dispatch
from antiphon_service.redis import DIRECTORY, LIBRARY, prefix
from tests.support.redis_server import RedisServer

SOURCE = (Path(ws_adapter.dispatch.__file__).parent / "functions.lua").read_text()
_NOW = re.compile(r"local function now\(\)\n.*?\nend\n", re.DOTALL)
_TURNED = "local function now()\n  return tonumber(redis.call('GET', 'now'))\nend\n"
START_MS = 1_700_000_000_000
SETTLE_MS = 3000
TICKET_TTL, WORKER_TTL = 3000, 6000


def turned_source() -> str:
    """The library with a clock that is a key. What is shipped has no such way in."""
    source, count = _NOW.subn(lambda _: _TURNED, SOURCE)
    assert count == 1
    return source


class Pool:
    """One pool; every method but those of the clock is one call of the function of that name."""

    def __init__(self, server: RedisServer, name: str = "m/audio", *, settled: bool = True) -> None:
        self.redis: Any = redis.Redis(unix_socket_path=str(server.socket), decode_responses=True)
        self.prefix = prefix(name)
        self.redis.set("now", START_MS)
        self.redis.function_load(turned_source(), replace=True)
        if settled:
            self.settle()

    def settle(self) -> None:
        """Let the time pass in which an empty database grants nothing."""
        self.stats()
        self.pass_ms(SETTLE_MS)

    def pass_ms(self, ms: int) -> None:
        """Let time pass with at least one call a second."""
        while ms > 0:
            self.jump_ms(min(ms, 1000))
            self.stats()
            ms -= 1000

    def jump_ms(self, ms: int) -> None:
        """Let time pass without any call."""
        self.redis.incrby("now", ms)

    def call(self, name: str, *arguments: object) -> Any:
        return self.redis.fcall(f"{LIBRARY}_{name}", 1, self.prefix, *map(str, arguments))

    def worker_beat(
        self,
        worker: str,
        slots: int = 1,
        *held: tuple[int, int],
        accepting: int = 1,
        highest: int = 0,
        target: str | None = None,
    ) -> list[tuple[int, int]]:
        pairs = [number for lease in held for number in lease]
        highest = max([highest, *(epoch for _, epoch in held)])
        target = target or f"{worker}:1"
        flat = self.call("worker_beat", worker, target, WORKER_TTL, accepting, slots, 0.5, highest, *pairs)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def slot_free(self, worker: str, slot: int, epoch: int) -> int:
        return int(self.call("slot_free", worker, slot, epoch))

    def worker_leave(self, worker: str) -> None:
        self.call("worker_leave", worker)

    def enqueue(
        self,
        ticket: str,
        adapter: str = "ad",
        *,
        kind: str = "audio",
        most: int = 1000,
        prior: object = 0,
        label: str = "",
        waited: int = 0,
        holder: str = "",
        slots: int = 0,
    ) -> list[Any]:
        """With a holder `slots` are the most that it may have."""
        name, share = ("enqueue_for", [holder, slots]) if holder else ("enqueue", [])
        answer: list[Any] = self.call(
            name, ticket, adapter, TICKET_TTL, kind, most, prior, label, waited, *share
        )
        return answer

    def beat(self, *tickets: str, adapter: str = "ad") -> list[Any]:
        """One for each ticket: its position, a word, or the lease."""
        _, places, *grants = self.call("adapter_beat", adapter, TICKET_TTL, *tickets)
        leases = iter(grants)
        words = places.split()
        assert len(words) == len(tickets)
        return [
            int(word) if word.isdigit() else next(leases) if word == "granted" else word for word in words
        ]

    def leave(self, ticket: str) -> int:
        return int(self.call("leave", ticket))

    def cancel(self, ticket: str) -> int:
        return int(self.call("cancel", ticket))

    def lease_return(self, worker: str, slot: int, epoch: int) -> int:
        return int(self.call("lease_return", worker, slot, epoch))

    def stats(self, *kinds: str) -> dict[str, Any]:
        answer: dict[str, Any] = {"workers": [], **json.loads(self.call("stats", *kinds))}
        for worker in answer["workers"]:
            worker.setdefault("leases", [])
        return answer

    def waiting(self, first: int = 0, count: int = 1000) -> list[dict[str, Any]]:
        return list(json.loads(self.call("waiting", first, count)))

    def find(self, ticket: str) -> tuple[int, str]:
        """Its position and label."""
        position, *told = self.call("find", ticket)
        return position, json.loads(told[0])["label"] if told else ""

    def directory(self, name: str, *arguments: object) -> Any:
        return self.redis.fcall(f"{LIBRARY}_{name}", 1, DIRECTORY, *map(str, arguments))

    def keys(self) -> set[str]:
        """Return the pool's Redis keys other than counters and means."""
        counters = {"clock", "boot", "seq", "epoch"}
        names = {key.removeprefix(self.prefix) for key in self.redis.keys(f"{self.prefix}*")}
        return {name for name in names if name not in counters and not name.startswith("mean:")}

    def leases(self, worker: str) -> dict[int, tuple[int, str]]:
        """Slot -> epoch and state."""
        for known in self.stats()["workers"]:
            if known["id"] == worker:
                return {lease["slot"]: (lease["epoch"], lease["state"]) for lease in known["leases"]}
        return {}
