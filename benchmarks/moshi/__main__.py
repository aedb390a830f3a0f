"""Many conversations with Moshi: `python -m benchmarks.moshi [--short]`.

The command simulates 1 to 64 conversations on an assumed GPU, and measures a tiny model on the CPU. It prints
both tables; without `--short` it also writes them into `docs/moshi.md`.
"""

import argparse
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch

from benchmarks.moshi.card import GIB, TickCost, published, row_bytes, window
from benchmarks.moshi.simulation import JITTER_S, LIFE_S, PROMPT_ROWS, Outcome, simulate
from benchmarks.moshi.tiny import Speed, measure, runtime
from benchmarks.report import processor, put, table

SESSIONS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64)
DOCUMENT: Final = Path(__file__).parents[2] / "docs/moshi.md"
BEGIN: Final = "<!-- benchmarks.moshi -->"
END: Final = "<!-- end -->"


def main() -> int:
    """Simulate, measure, print, and write without `--short`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--short", action="store_true", help="shorter simulation and measurement; writes no results"
    )
    short = parser.parse_args().short
    torch.set_num_threads(1)
    cost = TickCost()
    crowds = [(count, crowd(cost, count, 5.0 if short else 60.0)) for count in SESSIONS]
    where = runtime(8)
    speeds = [measure(where, count, 10 if short else 50) for count in (1, 8)]
    text = section(cost, crowds, speeds)
    print(text)
    if not short:
        put(text, DOCUMENT, BEGIN, END)
    return 0


def crowd(cost: TickCost, sessions: int, seconds: float) -> Outcome:
    """Simulate `sessions` conversations that all attend to a full window."""
    return simulate(sessions, seconds, lambda frames, rows: cost.seconds(frames, rows, window()))


def section(cost: TickCost, crowds: Sequence[tuple[int, Outcome]], speeds: Sequence[Speed]) -> str:
    """Return the assumptions and both tables in Markdown."""
    card, sizes = cost.card, published()
    weights, session = sum(sizes.weights.values()), sum(sizes.session.values())
    at = f"{processor()}, one thread, Python {platform.python_version()}, torch {torch.__version__}"
    lines = [
        f"`python -m benchmarks.moshi`, {datetime.now(UTC).date().isoformat()}, {at}.",
        "",
        "**Simulated**, not measured: no GPU has run this. The engine's own scheduler and share decide which "
        "rows a tick has; its time is a sum of parts that do not overlap, assumed for the published sizes in "
        "bfloat16:",
        "",
        f"- the card is an {card.name}: {card.bytes_per_s / 1e12:g} TB/s, of which "
        f"{card.share_of_bandwidth:.0%} are reached; {card.flops_16 / 1e12:.0f} and "
        f"{card.flops_32 / 1e12:.0f} TFLOP/s, of which {card.share_of_flops:.0%} are reached;",
        f"- every tick reads the weights ({weights / GIB:.1f} GiB) once, and of each session a full window "
        f"of {window():,} rows ({window() * row_bytes() / GIB:.2f} GiB), as after four minutes;",
        f"- {card.launches} launches of {card.launch_s * 1e6:g} us each and {card.kernels:,} kernels of "
        f"{card.kernel_s * 1e6:g} us in captured regions, for all sessions together;",
        f"- frames come every 80 ms with a standard deviation of {JITTER_S * 1000:g} ms; a conversation "
        f"lasts {LIFE_S:g} s, and the next one in its slot has a prompt of {PROMPT_ROWS} rows.",
        "",
        table(
            (
                "conversations",
                "tick, ms",
                "p50 of a frame, ms",
                "p99, ms",
                "late",
                "card busy",
                "fits into memory",
            ),
            [_cells(count, outcome, cost.most_sessions) for count, outcome in crowds],
        ),
        "",
        f"A frame is late if its answer comes more than 80 ms after it. {cost.most_sessions} conversations "
        f"fit, of {session / GIB:.2f} GiB each, into {card.share_of_memory:.0%} of the memory.",
        "",
        "**Measured** on the CPU named above, with a tiny model of random weights (two layers of everything, "
        "four codebooks): processor time of the median tick in which all conversations receive and "
        "generate a frame.",
        "",
        table(
            ("conversations", "tick, ms", "real-time factor of all", "of each"),
            [
                (it.sessions, f"{it.tick_s * 1000:.1f}", f"{it.factor:.2f}", f"{it.factor / it.sessions:.3f}")
                for it in speeds
            ],
        ),
        "",
    ]
    return "\n".join(lines)


def _cells(count: int, outcome: Outcome, most: int) -> tuple[object, ...]:
    """Return the row of a simulation; `most` sessions fit into memory."""
    tick = sorted(outcome.ticks)[len(outcome.ticks) // 2]
    times = (f"{1000 * time:.0f}" for time in (tick, outcome.quantile(0.5), outcome.quantile(0.99)))
    return (count, *times, f"{outcome.late:.1%}", f"{outcome.busy:.0%}", "yes" if count <= most else "no")


if __name__ == "__main__":
    sys.exit(main())
