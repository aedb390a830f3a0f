"""The table of the simulations, with all assumptions."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

from benchmarks.density.card import Assumptions, Card
from benchmarks.density.cost import (
    CODES_LAUNCHES,
    EAR_KERNELS,
    EAR_LAUNCHES,
    LAST_LAUNCHES,
    SOUND_KERNELS,
    SOUND_LAUNCHES,
    TICK_LAUNCHES,
)
from benchmarks.density.crowd import IN_FLIGHT
from benchmarks.density.simulation import Outcome, Plan
from benchmarks.density.weights import DTYPE, weights
from benchmarks.report import Report
from inference_service.engine.batch.scheduler import UNIT_S

MOST_LATE: Final = 1.0
"""The percentage of late units below which a run is in time."""
COLUMNS: Final = (
    "card",
    "callers",
    "slots",
    "admission",
    "sessions",
    "refused, no slot",
    "refused, no time",
    "late %",
    "worst run late %",
    "worst session late %",
    "p50 ms",
    "p99 ms",
    "least slack ms",
    "fairness",
    "tick ms",
    "busy %",
    "pages used %",
)


class Row(NamedTuple):
    """One plan, in the order of `COLUMNS`: the median or the worst of its runs."""

    card: str
    callers: int
    slots: int
    admission: str
    sessions: int
    refused_slots: int
    refused_time: int
    late: float
    late_in_worst_run: float
    late_of_worst_session: float
    p50_ms: float
    p99_ms: float
    least_slack_ms: float
    """The least slack of the answered units."""
    fairness: float
    tick_ms: float
    busy: float
    pages: float


def row(card: Card, outcomes: Sequence[Outcome]) -> Row:
    """Return the row of a plan from its runs."""

    def middle(figure: Callable[[Outcome], float]) -> float:
        return median(map(figure, outcomes))

    plan = outcomes[0].plan
    return Row(
        card.name,
        plan.sessions,
        plan.slots,
        "on" if plan.admits else "off",
        round(middle(lambda it: len(it.admitted))),
        round(middle(lambda it: it.refused_slots)),
        round(middle(lambda it: it.refused_time)),
        100 * middle(lambda it: it.late),
        100 * max(it.late for it in outcomes),
        100 * max(it.latest for it in outcomes),
        1e3 * middle(lambda it: it.quantile(0.5)),
        1e3 * middle(lambda it: it.quantile(0.99)),
        1e3 * min(UNIT_S - it.quantile(1.0) for it in outcomes),
        min(it.fairness for it in outcomes),
        1e3 * middle(lambda it: median(it.ticks or [0.0])),
        100 * middle(lambda it: it.busy),
        100 * max(it.most_pages / it.pages for it in outcomes),
    )


def most_in_time(rows: Sequence[Row], card: Card) -> int:
    """Return the most callers without admission control that were in time in every run, or 0."""
    crowds = (it for it in rows if it.card == card.name and it.admission == "off")
    return max((it.callers for it in crowds if it.late_in_worst_run < MOST_LATE), default=0)


def report(
    rows: Sequence[Row],
    plan: Plan,
    cards: Sequence[Card],
    assumed: Assumptions,
    vocoder_dtype: str,
    runs: int,
) -> Report:
    """Return the table with all assumptions."""
    part = weights()
    in_time = ", ".join(f"{card.name} {most_in_time(rows, card)}" for card in cards)
    return Report(
        "density",
        f"Simulated, not measured: conversations of workload W with MiniCPM-o 4.5 in bfloat16, "
        f"{plan.seconds:g} s each, {'video' if plan.sees else 'audio'}",
        COLUMNS,
        rows,
        note=f"The largest crowd of which less than 1 % was late in every run: {in_time}.",
        where="simulated, nothing ran on a GPU",
        assumptions=[
            *map(str, cards),
            f"a forward reads {part.language * DTYPE.itemsize / 1e9:.1f} GB of weights, and "
            f"{part.row_bytes / 1024:g} KiB for each row of context",
            f"operators outside regions: {TICK_LAUNCHES} of a forward, {CODES_LAUNCHES} of 25 codes, "
            f"{EAR_LAUNCHES} of the ear, {SOUND_LAUNCHES} of a second of sound, "
            f"{LAST_LAUNCHES} of the last of a turn",
            f"kernels in captured regions: {EAR_KERNELS} of the ear, {SOUND_KERNELS} of a second of sound",
            *assumed.lines(),
            f"the vocoder's flow is in {vocoder_dtype}, and its time is added to the tick's",
            f"one caller every {plan.every_s:g} s, and a unit every second, {IN_FLIGHT} in flight at most; "
            "the adapter drops units that come meanwhile, and they are late",
            "the last row of each card has as many slots as memory holds, with a context of "
            f"{plan.context_limit:,} tokens and a voice of its own for each session",
            f"medians of {runs} runs with other phases; slack and fairness are those of the worst run",
        ],
    )
