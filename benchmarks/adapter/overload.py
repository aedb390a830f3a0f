"""Goodput of an adapter at twice the admitted load, and the time to recover afterwards.

Clients send in real time. With admission control, sessions open and begin to send until one is rejected: this
is the admitted load. Without admission control, a sweep of loads finds the capacity: the highest goodput in
units per second. Twice the admitted load is measured twice. The goal compares the lower goodput with the
capacity, or with the sent units if the capacity is higher. Then half of the admitted load shows the recovery.
"""

import time
from dataclasses import dataclass

from benchmarks.load.crowd import Crowd, Tally
from benchmarks.load.processes import Process, adapter, running
from benchmarks.report import Goal, Report

UNBOUNDED = ("--max-cpu", "0")
STEP = 50
MOST = 4000
RECOVERED = 0.99
RECOVERY_S = 5.0

Row = tuple[str, int, float, float, float, float, float, float]


@dataclass(frozen=True)
class Outcome:
    """The results of an adapter under load."""

    admitted: int
    rows: list[Row]
    capacity: float
    """The capacity in units a second."""
    kept: float
    """The goodput at twice the admitted load, as a share of the capacity.

    It is a share of the sent load if that is less.
    """
    recovery_s: float


async def admitted(worker: str, *options: str) -> int:
    """Return the number of sending sessions that an adapter with these options admits."""
    with adapter(worker, *options) as process:
        crowd = Crowd(process.port)
        crowd.begin()
        while not crowd.refused and len(crowd) < MOST:
            await crowd.grow(len(crowd) + STEP)
            crowd.active = len(crowd)
            await crowd.measure(1.0)
        await crowd.leave()
        return crowd.active


async def load(crowd: Crowd, process: Process, what: str, active: int, seconds: float) -> tuple[Row, float]:
    """Measure one load once it is steady; return its row and its goodput in units a second."""
    crowd.active = active
    await crowd.measure(2.0)
    begin, cpu = time.monotonic(), process.cpu_s()
    tally = await crowd.measure(seconds)
    seconds = time.monotonic() - begin
    cpu = (process.cpu_s() - cpu) / seconds
    rates = tuple(count / seconds for count in (tally.sent, tally.good, tally.dropped))
    row = (what, active, *rates, tally.percentile(0.5), tally.percentile(0.99), cpu)
    return row, tally.good / seconds  # type: ignore[return-value]


async def recovery_s(crowd: Crowd, active: int) -> float:
    """Return the seconds until 99 % of the answers come within 0.5 s; infinite after 30 s."""
    crowd.active = active
    begin = time.monotonic()
    while time.monotonic() < begin + 30:
        tally = await crowd.measure(0.5)
        if _is_well(tally):
            return time.monotonic() - begin
    return float("inf")


def _is_well(tally: Tally) -> bool:
    served = sum(latency < 0.5 for latency in tally.latencies)
    return served >= RECOVERED * (tally.good + tally.dropped + tally.late) and served >= 0.9 * tally.sent


async def overloaded(worker: str, is_short: bool, *options: str) -> Outcome:
    """Run the whole benchmark on an adapter with these options."""
    seconds = 3.0 if is_short else 8.0
    shares = (1.0, 1.5, 2.5) if is_short else (0.5, 1.0, 1.25, 1.5, 1.75, 2.25, 2.5, 3.0)
    rows: list[Row] = []
    most = await admitted(worker, *options)
    with adapter(worker, *UNBOUNDED, *options) as process:
        crowd = Crowd(process.port)
        await crowd.fill(round(max(*shares, 2.0) * most))
        crowd.begin()
        capacity = 0.0
        for share in sorted((*shares, 2.0)):
            what = "twice the admitted load" if share == 2.0 else f"sweep, {share:g} of the admitted load"
            row, good = await load(crowd, process, what, round(share * most), seconds)
            rows.append(row)
            capacity = max(capacity, good)
            if share == 2.0:
                goodput = good
        _, again = await load(crowd, process, "", 2 * most, seconds)
        recovery = await recovery_s(crowd, most // 2)
        row, _ = await load(crowd, process, "recovery, 0.5 of the admitted load", most // 2, seconds)
        rows.append(row)
        await crowd.leave()
    return Outcome(most, rows, capacity, min(goodput, again) / min(capacity, 2 * most), recovery)


async def measure(is_short: bool) -> Report:
    """Return the table of goal A4."""
    with running("benchmarks.load.worker") as worker:
        found = await overloaded(worker.address, is_short)
    return Report(
        "overload",
        f"Load on one core; admitted with the default options: {found.admitted} sessions of 1 unit/s",
        ("load", "sessions", "sent/s", "goodput/s", "dropped/s", "p50 ms", "p99 ms", "cores"),
        found.rows,
        (
            Goal("A4 goodput at twice the admitted load", found.kept, 0.95, at_most=False),
            Goal("A4 recovery, seconds", found.recovery_s, RECOVERY_S),
        ),
        f"goodput: answered by the model within 4 s; capacity {found.capacity:.0f}/s; "
        f"recovery in {found.recovery_s:.1f} s",
    )
