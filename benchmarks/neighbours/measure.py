"""Measurement of one attack: conversations go on before, during and after it.

Worker and adapter run with default options, each on its own CPU on a machine with at least three. Quiet and
attacked windows alternate within the same conversations, so that other load on the machine affects both. A
unit belongs to the window of its due time, and its latency begins there: a unit that was sent late is late.
"""

import asyncio
import json
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final

import numpy as np

from antiphon.audio.wav import read_wav
from antiphon_command.bench.talker import UNIT_S, script
from benchmarks.load.processes import Process, running
from benchmarks.neighbours.attacks.attack import Attack
from benchmarks.neighbours.attacks.client import PROXY
from benchmarks.neighbours.neighbour import Neighbour, Unit

NEIGHBOURS: Final = 8
RECORDINGS: Final = Path(__file__).parents[2] / "clients/recordings"
SAID: Final = ("arithmetic", "counting", "digits", "greeting", "how_are_you", "joke", "light", "name")
"""The recordings that each neighbour plays in turn."""

WARM_UP_S: Final = 5.0
REST_S: Final = 3.0
"""The unmeasured seconds between an attack and the next quiet window."""

STOP_S: Final = 60.0
"""The longest that attackers may take to disconnect, in seconds."""

_CPUS: Final = sorted(os.sched_getaffinity(0))
WORKER_CPU: Final = _CPUS[0]
ADAPTER_CPU: Final = _CPUS[min(1, len(_CPUS) - 1)]
CLIENTS_CPU: Final = _CPUS[-1]
"""The CPU of the clients: with two CPUs that of the adapter, since they are light or have a low priority."""


@dataclass
class Side:
    """The results of all quiet or all attacked windows."""

    units: list[Unit] = field(default_factory=list)
    adapter_s: float = 0.0
    """CPU time of the adapter."""
    worker_s: float = 0.0
    seconds: float = 0.0

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of the latency of answered units; infinite without an answer."""
        answered = [unit.latency_s for unit in self.units if not math.isnan(unit.latency_s)]
        return float(np.percentile(answered, 99)) * 1000 if answered else math.inf

    @property
    def goodput(self) -> float:
        """The share of the units that were processed and answered before the next one."""
        return sum(unit.is_good for unit in self.units) / len(self.units)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attack."""

    attack: Attack
    quiet: Side
    attacked: Side
    tally: Counter[str]
    """The outcomes for the attackers, with counts."""
    ended: tuple[str, ...]
    """The processes of the service that had ended afterwards."""

    @property
    def times(self) -> float:
        """The p99 under attack as a multiple of the quiet p99."""
        return self.attacked.p99_ms / self.quiet.p99_ms

    @property
    def kept(self) -> float:
        """The goodput under attack as a share of the quiet one."""
        return self.attacked.goodput / self.quiet.goodput if self.quiet.goodput else math.nan

    @property
    def took_place(self) -> bool:
        """Whether the attack had an expected outcome."""
        return any(self.tally[proof] for proof in self.attack.proofs)


def conversations() -> list[list[str]]:
    """Return the units of each neighbour, shifted so that the questions are spread over time."""
    said = [script(read_wav(RECORDINGS / f"{name}.wav"))[0] for name in SAID]
    return [
        seconds[shift:] + seconds[:shift]
        for number, seconds in enumerate(said)
        for shift in [number * len(seconds) // NEIGHBOURS]
    ]


async def measure(attack: Attack, seconds: float, rounds: int, logs: Path | None = None) -> Outcome:
    """Start a worker and an adapter, and measure `rounds` pairs of a quiet and an attacked window.

    Each window takes `seconds`. `logs` is the folder for the logs. Raises `SystemExit` if a process does not
    start or the attackers fail.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="antiphon-neighbours-")))
        (folder / "recordings").mkdir()

        def log(name: str) -> IO[bytes]:
            file = (logs or folder) / f"{attack.name}.{name}.log"
            return stack.enter_context(file.open("wb"))

        def run(*command: str, cpu: int, log: IO[bytes] | None = None) -> Process:
            return stack.enter_context(running(*command, cpu=cpu, log=log))

        served = ("antiphon_command", "worker", "--listen", "127.0.0.1:0", "--slots", str(attack.slots))
        worker = run(*served, cpu=WORKER_CPU, log=log("worker"))
        options = [option.format(folder=folder / "recordings") for option in attack.options]
        fronted = ("antiphon_command", "adapter", "--worker", worker.address, "--port", "0", *PROXY, *options)
        adapter = run(*fronted, cpu=ADAPTER_CPU, log=log("adapter"))
        against = ("benchmarks.neighbours.attackers", attack.name, adapter.address)
        processes = _Processes(worker, adapter, run(*against, cpu=CLIENTS_CPU))
        crowd = [Neighbour(said) for said in conversations()]
        try:
            for neighbour in crowd:
                await neighbour.open(f"ws://{adapter.address}")
            quiet, attacked, tally = await _converse(processes, crowd, seconds, rounds)
        finally:
            await asyncio.gather(*(neighbour.close() for neighbour in crowd), return_exceptions=True)
        return Outcome(attack, quiet, attacked, tally, processes.ended())


@dataclass(frozen=True)
class _Processes:
    """The processes of one attack."""

    worker: Process
    adapter: Process
    attackers: Process

    def ended(self) -> tuple[str, ...]:
        """Return the names of the processes of the service that have ended."""
        named = {"worker": self.worker, "adapter": self.adapter}
        return tuple(name for name, process in named.items() if process.has_ended)

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU time of adapter and worker so far; NaN for a process that has ended."""
        adapter, worker = (
            math.nan if process.has_ended else process.cpu_s() for process in (self.adapter, self.worker)
        )
        return adapter, worker

    async def stop(self) -> Counter[str]:
        """Stop the attackers; return their tally."""
        self.attackers.say("stop")
        async with asyncio.timeout(STOP_S):
            line = await asyncio.to_thread(self.attackers.output.readline)
        if not line:
            raise SystemExit("The attackers failed. Their output is above.")
        return Counter(json.loads(line))


async def _converse(
    processes: _Processes, crowd: Sequence[Neighbour], seconds: float, rounds: int
) -> tuple[Side, Side, Counter[str]]:
    quiet, attacked, tally = Side(), Side(), Counter[str]()
    windows: list[tuple[Side, float, float]] = []

    async def window(side: Side) -> None:
        begin, (adapter_s, worker_s) = time.monotonic(), processes.cpu_s()
        await asyncio.sleep(seconds)
        end, (adapter_end_s, worker_end_s) = time.monotonic(), processes.cpu_s()
        side.adapter_s += adapter_end_s - adapter_s
        side.worker_s += worker_end_s - worker_s
        side.seconds += end - begin
        windows.append((side, begin, end))

    begin = time.monotonic()
    talking = [
        asyncio.create_task(neighbour.converse(begin + UNIT_S * number / len(crowd)))
        for number, neighbour in enumerate(crowd)
    ]
    try:
        await asyncio.sleep(WARM_UP_S)
        for _ in range(rounds):
            await window(quiet)
            processes.attackers.say("go")
            await window(attacked)
            tally += await processes.stop()
            await asyncio.sleep(REST_S)
    finally:
        for task in talking:
            task.cancel()
        ends = await asyncio.gather(*talking, return_exceptions=True)
    for failure in ends:
        if isinstance(failure, Exception):
            raise failure
    for side, begin, end in windows:
        side.units += [unit for each in crowd for unit in each.units if begin <= unit.due < end]
    return quiet, attacked, tally
