"""Comparison of the adapter's connections to its worker: a Unix socket, TCP and TLS, in one run.

Each kind of connection has its own adapter on the tested core and its own worker without a model. All
sessions open at the start. In each round, one adapter after another serves sessions in real time while the
others are idle. Sessions listen in three of five units. The memory is measured before the first unit.
"""

import asyncio
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trustme

from benchmarks.adapter.cost import UNBOUNDED
from benchmarks.load.crowd import Crowd, Tally
from benchmarks.load.processes import Process, adapter, running
from benchmarks.report import Report

_LOOPBACK: Final = "127.0.0.1:0"
_WORKER: Final = ("benchmarks.load.worker", "--listening-of-five", "3")
_FIRST: Final = 50
"""The number of sessions before the measurement: pools and caches have then grown to their size."""

_SETTLES_S: Final = 1.0


@dataclass
class _Candidate:
    """One adapter under test and its measurements."""

    over: str
    process: Process
    crowd: Crowd
    idle_kib: float = 0.0
    us: dict[int, list[float]] = field(default_factory=dict)
    """The CPU-microseconds per unit of each round, by the number of sessions."""
    tallies: dict[int, list[Tally]] = field(default_factory=dict)

    async def open(self, sessions: int) -> None:
        """Open all sessions and measure their memory."""
        await self.crowd.fill(_FIRST)
        await asyncio.sleep(_SETTLES_S)
        before = self.process.resident_bytes()
        await self.crowd.fill(sessions)
        await asyncio.sleep(_SETTLES_S)
        self.idle_kib = (self.process.resident_bytes() - before) / (sessions - _FIRST) / 1024
        self.crowd.begin()

    async def speak(self, sessions: int, seconds: float) -> None:
        """Measure one round with this number of speaking sessions."""
        self.crowd.active = sessions
        await self.crowd.measure(_SETTLES_S)
        cpu = self.process.cpu_s()
        tally = await self.crowd.measure(seconds)
        cpu = self.process.cpu_s() - cpu
        self.crowd.active = 0
        answered = tally.good + tally.late + tally.dropped
        self.us.setdefault(sessions, []).append(cpu / max(1, answered) * 1e6)
        self.tallies.setdefault(sessions, []).append(tally)
        await asyncio.sleep(0.2)

    def row(self, sessions: int, first_us: float) -> tuple[Any, ...]:
        """Return one line of the table."""
        us = statistics.median(self.us[sessions])
        tallies = self.tallies[sessions]
        return (
            self.over,
            sessions,
            us,
            f"{min(self.us[sessions]):.0f} to {max(self.us[sessions]):.0f}",
            us / first_us,
            statistics.median(tally.percentile(0.5) for tally in tallies),
            statistics.median(tally.percentile(0.99) for tally in tallies),
            sum(tally.late + tally.dropped for tally in tallies) / max(1, sum(t.sent for t in tallies)),
            self.idle_kib,
        )


_COLUMNS: Final = (
    "way to the worker",
    "sessions",
    "CPU-us per unit",
    "spread",
    "over the first",
    "p50 ms",
    "p99 ms",
    "late or dropped",
    "KiB per idle session",
)


def _issue(folder: Path) -> None:
    """Write a certificate for loopback, its key, and the certificate of its authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _start(stack: ExitStack, folder: Path) -> list[_Candidate]:
    workers = {
        "a Unix socket": stack.enter_context(running(*_WORKER)),
        "TCP": stack.enter_context(running(*_WORKER, "--listen", _LOOPBACK)),
        "TLS": stack.enter_context(running(*_WORKER, "--listen", _LOOPBACK, "--tls", str(folder))),
    }
    candidates = []
    for over, worker in workers.items():
        options = ("--worker-ca", str(folder / "ca.pem")) if over == "TLS" else ()
        process = stack.enter_context(adapter(worker.address, *UNBOUNDED, *options))
        candidates.append(_Candidate(over, process, Crowd(process.port)))
    return candidates


async def measure(is_short: bool) -> Report:
    """Return the table."""
    loads, rounds, seconds = ((250, 1000), 2, 2.0) if is_short else ((250, 500, 1000), 3, 5.0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        await asyncio.to_thread(_issue, folder)
        candidates = _start(stack, folder)
        for candidate in candidates:
            await candidate.open(max(loads))
            _say(f"{candidate.over}: {candidate.idle_kib:.0f} KiB per idle session")
        for sessions in loads * rounds:
            for candidate in candidates:
                await candidate.speak(sessions, seconds)
                _say(f"{candidate.over}: {candidate.us[sessions][-1]:.0f} us with {sessions} sessions")
        for candidate in candidates:
            await candidate.crowd.leave()
    rows = []
    for sessions in loads:
        first_us = statistics.median(candidates[0].us[sessions])
        rows += [candidate.row(sessions, first_us) for candidate in candidates]
    return Report("transports", "Whole adapter by its connection to the worker", _COLUMNS, rows)
