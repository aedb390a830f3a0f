"""Sessions on one core at 1 unit/s each, and the latency that the adapter adds to that of a bare echo server.

The echo is the WebSocket server of `floors`; its latency is that of the machine and the client alone. Echo
and adapter are measured in turn. Of each, the window with the median p99 counts, because a shared machine
sometimes pauses for longer than a unit takes.
"""

from benchmarks.adapter.overload import UNBOUNDED, Row, load
from benchmarks.load.crowd import Crowd
from benchmarks.load.processes import TESTED_CPU, adapter, running
from benchmarks.report import Goal, Report

ADDED_MS = 10.0
_P99 = 6
_ROUNDS = 3


def _median(rows: list[Row]) -> Row:
    return sorted(rows, key=lambda row: row[_P99])[len(rows) // 2]


async def measure(is_short: bool) -> Report:
    """Return the table of goal A3: sessions are added until the adapter adds more than 10 ms to the p99."""
    step, seconds, most = (250, 2.0, 1500) if is_short else (125, 5.0, 2500)
    rows: list[tuple[Row, float]] = []
    carried = 0
    with (
        running("benchmarks.load.worker") as worker,
        adapter(worker.address, *UNBOUNDED) as process,
        running("benchmarks.adapter.floors", "websocket", cpu=TESTED_CPU) as echo,
    ):
        crowd, bare = Crowd(process.port), Crowd(echo.port, has_sessions=False)
        crowd.begin()
        bare.begin()
        while len(crowd) < most:
            sessions = len(crowd) + step
            await bare.fill(sessions)
            await crowd.fill(sessions)
            floors, found = [], []
            for _ in range(_ROUNDS):
                floors.append((await load(bare, echo, "", sessions, seconds))[0])
                bare.active = 0
                found.append((await load(crowd, process, "", sessions, seconds))[0])
                crowd.active = 0
            row, floor = _median(found), _median(floors)[_P99]
            rows.append((row, floor))
            if row[_P99] - floor > ADDED_MS:
                break
            carried = sessions
        await crowd.leave()
        await bare.leave()
    return Report(
        "density",
        "Sessions on one core, 1 unit/s each, with a worker that answers at once",
        ("sessions", "sent/s", "goodput/s", "p50 ms", "p99 ms", "p99 ms of a bare echo", "cores"),
        [(row[1], row[2], row[3], row[5], row[_P99], floor, row[7]) for row, floor in rows],
        (
            Goal(
                f"A3 sessions with at most {ADDED_MS:g} ms added to the p99 by the adapter",
                carried,
                750,
                at_most=False,
            ),
        ),
        "the latency is that of client, adapter and worker together",
    )
