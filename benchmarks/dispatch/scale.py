"""Resources for a number of conversations, computed from results of the benchmarks.

`python -m benchmarks.dispatch scale` prints the tables; `--document` writes them into `docs/scale.md`.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.load.payload import APPEND, PCM, RESULT, SPEECH
from benchmarks.report import put, table

RESULTS: Final = Path(__file__).parent / "results"
DOCUMENT: Final = Path(__file__).parents[2] / "docs/scale.md"
_BENCHMARKS: Final = Path(__file__).parents[1]
_BEGIN: Final = "<!-- computed by `python -m benchmarks.dispatch scale` -->\n"
_END: Final = "<!-- end -->\n"

SIZES: Final = (1_000, 100_000, 10_000_000)

SESSION_S: Final = 120.0
"""Assumed length of a conversation in seconds."""

WAITING: Final = 0.1
"""Assumed number of waiting clients per conversation."""

OPENS: Final = 1.5
"""Assumed number of connection attempts per conversation."""

PER_CARD: Final = 64
"""Conversations per GPU: a goal, not measured."""

FILL: Final = 0.5
"""The largest planned load of a core of Redis, and of a network line, as a share."""

LINE_GBIT: Final = 25.0


@dataclass(frozen=True)
class Costs:
    """Costs in CPU-seconds and bytes: per conversation, per second of one, or per event of the queue."""

    adapter_sessions: float
    """The number of sessions of an adapter on one core."""
    session_bytes: float
    spoken: float
    """The share of its time in which a model speaks."""
    worker_s: float
    ticket_beat_s: float
    slot_s: float
    """The cost of one worker slot in heartbeats, per second."""
    start_s: float
    lease_state_s: float
    arrival_s: float
    peer_beat_s: float
    machines: tuple[str, ...]

    @property
    def public_bits(self) -> float:
        """Bits to and from a client per second of a conversation."""
        return 8 * (len(APPEND) + self.spoken * len(RESULT))

    @property
    def worker_bits(self) -> float:
        """Bits to and from the worker per second of a conversation."""
        return 8 * (len(PCM) + self.spoken * len(SPEECH))


def measured() -> Costs:
    """Read the costs from the files of results."""
    queue, limits = _rows("dispatch/results/queue"), _rows("dispatch/results/limits")
    each = "CPU-us of Redis each"
    density, idle = _read("adapter/results/density"), _rows("adapter/results/idle")
    crowd, service = _rows("crowd/results/real_time"), _rows("crowd/results/service")
    beats = _named(queue, "heartbeats of 10000")
    worker = _named(queue, "heartbeats of a worker")
    state = _named(queue, "state of a pool")
    busy = _named(queue, "sessions end and begin")
    waiting = 10_000 / 10
    # The row at full speed includes the heartbeats of the same time: subtract their cost.
    workers, slots = 50, 16
    beside = beats["of a core"] + workers * worker[each] / 1e6
    return Costs(
        adapter_sessions=density["goals"][0]["value"],
        session_bytes=_named(idle, "adapter", "process")["KiB per session"] * 1024,
        spoken=crowd[0]["spoken"],
        worker_s=sum(
            _named(service, part, "part")["CPU-ms per unit"] / 1000 for part in ("service", "engine's thread")
        ),
        ticket_beat_s=beats[each] / waiting / 1e6,
        slot_s=worker[each] / slots / 1e6,
        start_s=max(0.0, busy["of a core"] - beside) / busy["per second"],
        lease_state_s=state[each] / (workers * slots) / 1e6,
        arrival_s=_named(limits, "new sessions")[each] / 1e6,
        peer_beat_s=_named(limits, "heartbeats")[each] / 1e6,
        machines=tuple(
            dict.fromkeys(
                _read(name)["machine"]
                for name in ("dispatch/results/queue", "adapter/results/density", "crowd/results/service")
            )
        ),
    )


class Redis:
    """The load of one Redis in cores, with `sessions` conversations."""

    def __init__(self, costs: Costs, sessions: float) -> None:
        starts, adapters = sessions / SESSION_S, max(1.0, sessions / costs.adapter_sessions)
        self.tickets = sessions * WAITING * costs.ticket_beat_s
        self.starts = starts * costs.start_s
        self.workers = sessions * costs.slot_s
        self.limits = starts * OPENS * costs.arrival_s + adapters * costs.peer_beat_s
        self.state = adapters * sessions * costs.lease_state_s / STATE_EVERY_S
        self.all = self.tickets + self.starts + self.workers + self.limits + self.state


STATE_EVERY_S: Final = 1.0
"""The seconds between an adapter's requests for the state of a pool."""


def largest(fits: Callable[[float], bool]) -> float:
    """Return the largest number of conversations that `fits` accepts."""
    low, high = 1.0, 1e12
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def tables() -> str:
    """Return the measured costs, the needs and the limits as Markdown tables."""
    costs = measured()
    return "\n\n".join(
        (_costs(costs), _needs(costs), _bounds(costs), *(f"Measured: {m}." for m in costs.machines))
    )


def write() -> None:
    """Write the tables into `docs/scale.md`."""
    put(tables(), DOCUMENT, _BEGIN, _END)


def _costs(costs: Costs) -> str:
    us = 1e6
    return table(
        ("what was measured", "value", "where"),
        [
            (
                "sessions of one adapter's core, p99 within 10 ms",
                f"{costs.adapter_sessions:,.0f}",
                "adapter density",
            ),
            ("memory of a session in the adapter, KiB", f"{costs.session_bytes / 1024:.0f}", "adapter idle"),
            ("share of its time that a model speaks, workload W", f"{costs.spoken:.2f}", "crowd real_time"),
            (
                "CPU-ms of a worker without the model, per second of a conversation",
                f"{costs.worker_s * 1000:.2f}",
                "crowd service",
            ),
            ("Redis: CPU-us of a second of waiting", f"{costs.ticket_beat_s * us:.1f}", "dispatch queue"),
            (
                "Redis: CPU-us of a session, from ticket to free slot",
                f"{costs.start_s * us:.0f}",
                "dispatch queue",
            ),
            ("Redis: CPU-us of a second of a slot", f"{costs.slot_s * us:.2f}", "dispatch queue"),
            (
                "Redis: CPU-us of one slot in an adapter's request for the state",
                f"{costs.lease_state_s * us:.2f}",
                "dispatch queue",
            ),
            (
                "Redis: CPU-us of a new session that limits count",
                f"{costs.arrival_s * us:.0f}",
                "dispatch limits",
            ),
            (
                "public traffic per second of a conversation, both directions, Mbit",
                f"{costs.public_bits / 1e6:.2f}",
                "message sizes",
            ),
        ],
    )


def _needs(costs: Costs) -> str:
    def row(what: str, value: Callable[[float], float], shape: str = ",.0f") -> tuple[str, ...]:
        return (what, *(format(value(size), shape) for size in SIZES))

    def redis(part: str) -> Callable[[float], float]:
        return lambda size: float(getattr(Redis(costs, size), part))

    pool = largest(lambda size: Redis(costs, size).all <= FILL)
    return table(
        ("conversations", *(f"{size:,}" for size in SIZES)),
        [
            row("adapters, a core each", lambda size: math.ceil(size / costs.adapter_sessions)),
            row("memory of their sessions, GiB", lambda size: size * costs.session_bytes / 2**30, ",.1f"),
            row(f"GPUs at {PER_CARD} a card (a goal, not measured)", lambda size: math.ceil(size / PER_CARD)),
            row("cores of workers without the models", lambda size: size * costs.worker_s, ",.1f"),
            row("public network, Gbit/s", lambda size: size * costs.public_bits / 1e9, ",.1f"),
            row("network to workers, Gbit/s", lambda size: size * costs.worker_bits / 1e9, ",.1f"),
            row("starts a second", lambda size: size / SESSION_S),
            row("waiting clients", lambda size: size * WAITING),
            row("one Redis, cores: heartbeats of tickets", redis("tickets"), ",.3f"),
            row("one Redis, cores: starts and ends", redis("starts"), ",.3f"),
            row("one Redis, cores: heartbeats of workers", redis("workers"), ",.3f"),
            row("one Redis, cores: limits", redis("limits"), ",.3f"),
            row("one Redis, cores: state for adapters", redis("state"), ",.3f"),
            row("groups with a Redis of their own, half a core each", lambda size: math.ceil(size / pool)),
        ],
    )


def _bounds(costs: Costs) -> str:
    def line(bits: float) -> float:
        return FILL * LINE_GBIT * 1e9 / bits

    def redis(part: str) -> float:
        return largest(lambda size: getattr(Redis(costs, size), part) <= FILL)

    bounds = [
        ("one adapter's core", costs.adapter_sessions),
        (f"a public line of {LINE_GBIT:g} Gbit/s, half full", line(costs.public_bits)),
        (f"a line to workers of {LINE_GBIT:g} Gbit/s, half full", line(costs.worker_bits)),
        ("half a core of Redis: state for adapters alone", redis("state")),
        ("half a core of Redis: starts and ends alone", redis("starts")),
        ("half a core of Redis: heartbeats of tickets alone", redis("tickets")),
        ("half a core of Redis: heartbeats of workers alone", redis("workers")),
        ("half a core of Redis: limits alone", redis("limits")),
        ("half a core of Redis: all of it", redis("all")),
    ]
    ordered = sorted(bounds, key=lambda bound: bound[1])
    return table(("limit", "conversations"), [(name, f"{at:,.0f}") for name, at in ordered])


def _read(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((_BENCHMARKS / f"{name}.json").read_text())
    return figures


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _read(name)["rows"]
    return rows


def _named(rows: Sequence[dict[str, Any]], beginning: str, column: str = "what") -> dict[str, Any]:
    return next(row for row in rows if str(row[column]).startswith(beginning))
