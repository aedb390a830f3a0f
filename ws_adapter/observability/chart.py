"""Line charts of the last minutes of an adapter, as SVG for the status page."""

from collections.abc import Sequence
from html import escape
from typing import Final

from msgspec import Struct

WIDTH: Final = 240
HEIGHT: Final = 48


class ChartPoint(Struct, frozen=True):
    """The figures at one time; `misses` are the deadline misses since the point before it."""

    time: float
    """Unix seconds."""
    sessions: int
    queue: int
    misses: int


def lines(moments: Sequence[ChartPoint]) -> str:
    """Return the HTML of three small charts; empty for fewer than two points."""
    if len(moments) < 2:
        return ""
    minutes = (moments[-1].time - moments[0].time) / 60
    charts = (
        _line("sessions", [moment.sessions for moment in moments], "", minutes),
        _line("waiting", [moment.queue for moment in moments], "warn", minutes),
        _line("deadline misses", [moment.misses for moment in moments], "bad", minutes),
    )
    return f'<div class="charts">{"".join(charts)}</div>'


def _line(name: str, values: Sequence[int], tone: str, minutes: float) -> str:
    tone = tone if any(values) else "still"
    most = max(*values, 1)
    step = WIDTH / (len(values) - 1)
    points = " ".join(
        f"{i * step:.1f},{HEIGHT - 1 - (HEIGHT - 2) * value / most:.1f}" for i, value in enumerate(values)
    )
    title = escape(f"{name} of the last {minutes:.1f} min: now {values[-1]}, at most {max(values)}")
    return (
        f'<figure><figcaption>{name}, at most {max(values)}</figcaption><svg class="chart {tone}" role="img" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"><title>{title}</title>'
        f'<polyline points="{points}"/></svg></figure>'
    )
