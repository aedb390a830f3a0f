"""Sessions that one core carries at 1 unit a second each, and how late they are answered."""

from benchmarks.adapter.overload import UNBOUNDED, Row, load
from benchmarks.adapter.report import Goal, Report
from benchmarks.load.crowd import Crowd
from benchmarks.load.processes import adapter, running

LATE_MS = 10.0


async def measure(is_short: bool) -> Report:
    """Return the table of goal A3: sessions grow until the 99th percentile passes 10 ms."""
    step, seconds, most = (250, 2.0, 1500) if is_short else (125, 5.0, 2500)
    rows: list[Row] = []
    carried = 0
    with running("benchmarks.load.worker") as worker, adapter(worker.address, *UNBOUNDED) as process:
        crowd = Crowd(process.port)
        crowd.begin()
        while len(crowd) < most:
            await crowd.fill(len(crowd) + step)
            row, _ = await load(crowd, process, "", len(crowd), seconds)
            rows.append(row)
            if row[6] > LATE_MS:
                break
            carried = len(crowd)
        await crowd.leave()
    return Report(
        "density",
        "Sessions on one core, 1 unit/s each, answered by a worker that needs no time",
        ("sessions", "sent/s", "goodput/s", "p50 ms", "p99 ms", "cores"),
        [(row[1], row[2], row[3], row[5], row[6], row[7]) for row in rows],
        (Goal(f"A3 sessions with a p99 of at most {LATE_MS:g} ms", carried, 750, at_most=False),),
        "the latency is that of client, adapter and worker together",
    )
