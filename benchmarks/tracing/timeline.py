"""A picture of a recorded conversation: one bar per span, and a second panel with one unit enlarged."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final

from antiphon_service.semconv import (
    ATTR_UNIT,
    ATTR_UNIT_END,
    EVENT_FIRST_AUDIO,
    SERVICE_WORKER,
    SPAN_END,
    SPAN_FINALIZE,
    SPAN_GENERATE,
    SPAN_PREFILL,
    SPAN_QUEUE,
    SPAN_START,
    SPAN_TICK,
    SPAN_TURN,
    SPAN_UNIT,
    SPAN_UPGRADE,
)
from benchmarks.tracing.conversation import FILE

PICTURE: Final = FILE.with_suffix(".svg")

ROWS: Final = (
    ("session", (SPAN_UPGRADE, SPAN_QUEUE, SPAN_START, SPAN_END)),
    (SPAN_TURN, (SPAN_TURN,)),
    (SPAN_UNIT, (SPAN_UNIT,)),
    (SPAN_PREFILL, (SPAN_PREFILL,)),
    (SPAN_GENERATE, (SPAN_GENERATE,)),
    (SPAN_FINALIZE, (SPAN_FINALIZE,)),
    (SPAN_TICK, (SPAN_TICK,)),
)
"""The rows of the picture, from above."""

_WORDS: Final = {SPAN_START: "upgrade, queue, start", SPAN_END: "end"}

WIDTH: Final = 1000
LEFT: Final = 140
RIGHT: Final = 28
LEGEND: Final = 40
TITLE: Final = 44
ROW: Final = 32
BAR: Final = 16
AXIS: Final = 34
THIN: Final = 1.5
"""The least width of a bar, so that short spans are visible."""

_STYLE: Final = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 11px; fill: #57606a }
  .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .page { fill: #ffffff }
  .adapter { fill: #2f81f7 } .worker { fill: #e8863a } .said { fill: #1a7f37 }
"""


@dataclass(frozen=True)
class Bar:
    """A span; times in seconds since the first one began."""

    name: str
    span_id: str
    parent_id: str
    is_worker: bool
    begin: float
    end: float
    attributes: dict[str, Any]
    events: tuple[tuple[str, float], ...]

    @property
    def ms(self) -> float:
        """Its duration in milliseconds."""
        return (self.end - self.begin) * 1000

    @property
    def title(self) -> str:
        """The tooltip of a bar."""
        details = (self.attributes.get(name) for name in (ATTR_UNIT, ATTR_UNIT_END))
        return " ".join([self.name, *(str(detail) for detail in details if detail is not None)])

    @property
    def unit(self) -> int | None:
        """Number of its unit."""
        number = self.attributes.get(ATTR_UNIT)
        return int(number) if number is not None else None


def read(file: Path = FILE) -> list[Bar]:
    """Return the spans of a recording, in the order in which they began."""
    found = []
    for resource in json.loads(file.read_text())["resourceSpans"]:
        service = _values(resource["resource"])["service.name"]
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                found.append((service == SERVICE_WORKER, span))
    first = min(int(span["startTimeUnixNano"]) for _, span in found)

    def since(nanoseconds: str) -> float:
        return (int(nanoseconds) - first) / 1e9

    bars = [
        Bar(
            span["name"],
            span["spanId"],
            span.get("parentSpanId", ""),
            is_worker,
            since(span["startTimeUnixNano"]),
            since(span["endTimeUnixNano"]),
            _values(span),
            tuple((event["name"], since(event["timeUnixNano"])) for event in span.get("events", [])),
        )
        for is_worker, span in found
    ]
    return sorted(bars, key=lambda bar: bar.begin)


def _values(entry: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: next(iter(item["value"].values())) for item in entry.get("attributes", [])}


@dataclass(frozen=True)
class Row:
    """The bars of one row; `words` are texts above bars."""

    label: str
    bars: Sequence[Bar]
    words: Mapping[str, str] = field(default_factory=dict)
    """Span id -> text."""


@dataclass(frozen=True)
class Panel:
    """Rows over one axis of time, from `begin` to `end` in seconds, with a line every `step`."""

    title: str
    rows: Sequence[Row]
    begin: float
    end: float
    step: float

    @property
    def height(self) -> int:
        """The height in pixels, with title and axis."""
        return TITLE + ROW * len(self.rows) + AXIS

    def x(self, seconds: float) -> float:
        """Return the x coordinate of a time, in pixels."""
        return LEFT + (seconds - self.begin) * (WIDTH - LEFT - RIGHT) / (self.end - self.begin)

    def draw(self, top: int) -> Iterator[str]:
        """Yield the SVG elements, `top` pixels below the upper edge."""
        yield f'<text class="title" x="16" y="{top + 18}">{escape(self.title)}</text>'
        first, last = top + TITLE, top + TITLE + ROW * len(self.rows)
        for i in range(math.floor((self.end - self.begin) / self.step + 1e-6) + 1):
            at = self.begin + i * self.step
            shown = f"{i * self.step:g} s" if self.step >= 1 else f"{i * self.step * 1000:.0f} ms"
            yield f'<path class="grid" d="M{self.x(at):.1f} {first - 8}V{last - 10}"/>'
            place = f'x="{self.x(at):.1f}" y="{last + 6}" text-anchor="middle"'
            yield f'<text class="small" {place}>{shown}</text>'
        for i, row in enumerate(self.rows):
            y = first + i * ROW
            yield f'<text x="16" y="{y + BAR - 3}">{escape(row.label)}</text>'
            for bar in row.bars:
                yield from self._bar(bar, y)
                if words := row.words.get(bar.span_id):
                    yield self._words(bar, words, y)

    def _bar(self, bar: Bar, y: int) -> Iterator[str]:
        x = self.x(bar.begin)
        width = max(THIN, self.x(bar.end) - x)
        kind = "worker" if bar.is_worker else "adapter"
        yield (
            f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="1.5">'
            f"<title>{escape(bar.title)}, {bar.ms:.1f} ms</title></rect>"
        )
        for name, at in bar.events:
            if name == EVENT_FIRST_AUDIO:
                yield f'<circle class="said" cx="{self.x(at):.1f}" cy="{y + BAR / 2}" r="4"/>'

    def _words(self, bar: Bar, words: str, y: int) -> str:
        """Return text above the bar, left of its beginning if there is no room to the right."""
        x = self.x(bar.begin)
        anchor = "end" if x + 7 * len(words) > WIDTH - 8 else "start"
        return f'<text class="small" x="{x:.1f}" y="{y - 4}" text-anchor="{anchor}">{escape(words)}</text>'


def draw(bars: Sequence[Bar]) -> str:
    """Return the picture as SVG."""
    panels = (_conversation(bars), _close_up(bars))
    height = LEGEND + sum(panel.height for panel in panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' aria-label="The spans of one conversation, and of one of its units">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        *_legend(),
    ]
    top = LEGEND
    for panel in panels:
        lines += panel.draw(top)
        top += panel.height
    return "\n".join([*lines, "</svg>", ""])


def _legend() -> Iterator[str]:
    for x, kind, text in ((16, "adapter", "adapter"), (106, "worker", "worker")):
        yield f'<rect class="{kind}" x="{x}" y="14" width="14" height="14" rx="1.5"/>'
        yield f'<text x="{x + 20}" y="26">{text}</text>'
    yield '<circle class="said" cx="203" cy="21" r="4"/>'
    yield '<text x="213" y="26">first audio of a turn sent</text>'


def _conversation(bars: Sequence[Bar]) -> Panel:
    words = {bar.span_id: _WORDS[bar.name] for bar in bars if bar.name in _WORDS}
    words |= {bar.span_id: bar.attributes[ATTR_UNIT_END] for bar in bars if bar.name == SPAN_UNIT}
    rows = [Row(label, [bar for bar in bars if bar.name in names], words) for label, names in ROWS]
    end = max(bar.end for bar in bars)
    title = f"One conversation of {end:.0f} s: {len(bars)} spans"
    return Panel(title, [row for row in rows if row.bars], 0.0, end, 1.0)


def _close_up(bars: Sequence[Bar]) -> Panel:
    """Return the panel of the first speaking unit and its child spans."""
    units = [bar for bar in bars if bar.name == SPAN_UNIT]
    speaking = [bar for bar in units if any(name == EVENT_FIRST_AUDIO for name, _ in bar.events)]
    unit = (speaking or units)[0]
    children = [bar for bar in bars if bar.parent_id == unit.span_id and bar.is_worker]
    rows = [Row(f"{bar.name}, {bar.ms:.1f} ms", [bar]) for bar in (unit, *children)]
    end = max(bar.end for bar in (unit, *children))
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if (end - unit.begin) / step <= 12)
    return Panel(f"Unit {unit.unit}, the first that speaks", rows, unit.begin, end, step)


def write(picture: Path = PICTURE) -> None:
    """Write the picture of the recorded conversation."""
    picture.write_text(draw(read()))
