"""The look of both services' status pages: plain HTML, without scripts and without anything that is loaded.

Text comes in escaped where it could be somebody else's.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

REFRESH_S: Final = 2

MOST_ROWS: Final = 200
"""Of one table: a page has to stay one that can be read."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6b7c; --line: #dde3ea; --ground: #f5f7f9;
  --card: #fff; --good: #1a7f4b; --warn: #9a6200; --bad: #b3261e; --track: #e4e9ee; --bar: #3b7dd8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ef; --soft: #97a4b3; --line: #2c3541;
  --ground: #12161b; --card: #1a2028; --good: #57c78b; --warn: #e0a93f; --bad: #ff8a80; --track: #2a323c;
  --bar: #5b97ea } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.25rem; max-width: 72rem; background: var(--ground); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif }
header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline; margin-bottom: 1rem }
h1 { font-size: 1.25rem; margin: 0 } h2 { font-size: .95rem; margin: 0 0 .5rem }
header p { margin: 0; color: var(--soft) }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1rem;
  margin-bottom: 1rem; overflow-x: auto }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem;
  margin-bottom: 1rem }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .7rem .9rem }
.tile b { display: block; font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums }
.tile span, .none, small { color: var(--soft) } small { font-size: .85em }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: .85rem }
th, td { padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap }
tr:last-child td { border-bottom: 0 } .n { text-align: right }
th:last-child, td:last-child { padding-right: 0 }
.good { color: var(--good) } .warn { color: var(--warn) } .bad { color: var(--bad) } .none { margin: 0 }
.bar { display: flex; height: .55rem; border-radius: 99px; overflow: hidden; background: var(--track);
  margin: .1rem 0 .6rem } .bar i { display: block; background: var(--bar) }
.bar .granted, .dot.granted { background: var(--warn) }
.bar .cleaning, .dot.cleaning { background: var(--soft) }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0; color: var(--soft) }
.dot { display: inline-block; width: .6rem; height: .6rem; border-radius: 99px; background: var(--track);
  margin-right: .4rem } .dot.attached { background: var(--bar) }
@media (max-width: 40rem) { body { padding: .75rem } .wide { display: none }
  th, td { padding-right: .6rem } th, td:not(.n) { white-space: normal } }
"""

_TONES: Final = {
    "ready": "good",
    "loading": "warn",
    "unfit": "bad",
    "offline": "bad",
    "attached": "good",
    "granted": "warn",
    "cleaning": "warn",
}

_KINDS: Final = {
    "": "",
    "#": ' class="n"',
    "~": ' class="wide"',
    "#~": ' class="n wide"',
}
"""What the marks of a column are in HTML."""


def page(title: str, state: str, note: str, parts: Iterable[str]) -> str:
    """A whole page; `state` and `note` stand beside its title."""
    return "".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="refresh" content="{REFRESH_S}">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f"<header><h1>{escape(title)}</h1>{state}<p>{note}</p></header>",
            *parts,
        )
    )


def tiles(facts: Iterable[tuple[str, str, str]]) -> str:
    """Values, what they are, and their tones: `good`, `warn`, `bad` or none."""
    cells = (
        f'<div class="tile"><b class="{tone}">{value}</b><span>{name}</span></div>'
        for value, name, tone in facts
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def slots(counts: Mapping[str, int]) -> str:
    """How many slots are in which state, as a bar with its legend."""
    total = sum(counts.values()) or 1
    used = [(state, count) for state, count in counts.items() if state != "free"]
    bars = "".join(
        f'<i class="{state}" style="width:{100 * count / total:.2f}%"></i>' for state, count in used if count
    )
    legend = "".join(
        f'<span><i class="dot {state}"></i>{count} {state}</span>' for state, count in counts.items()
    )
    return f'<div class="bar">{bars}</div><p class="legend">{legend}</p>'


def section(title: str, body: str) -> str:
    """A part of the page with a title."""
    return f"<section><h2>{title}</h2>{body}</section>"


def none(text: str) -> str:
    """What stands where there is nothing to show."""
    return f'<p class="none">{text}</p>'


def state(word: str) -> str:
    """The state of a worker or a slot, in its tone."""
    return toned(word, _TONES.get(word, ""))


def toned(text: str, tone: str) -> str:
    """Text in a tone."""
    return f'<span class="{tone}">{text}</span>'


def table(names: Sequence[str], rows: Iterable[Sequence[str]], count: int = 0) -> str:
    """Behind its name, `#` marks a column of numbers and `~` one that a narrow screen leaves out; cells are
    HTML. `count` is the number of rows, where there may be more than are shown."""
    kinds = [_KINDS[name[len(name.rstrip("#~")) :]] for name in names]
    head = "".join(f"<th{kind}>{name.rstrip('#~')}" for name, kind in zip(names, kinds, strict=True))
    body = []
    for number, row in enumerate(rows):
        if number == MOST_ROWS:
            body.append(f'<tr><td colspan="{len(names)}"><small>and {count - MOST_ROWS} more</small>')
            break
        body.append("<tr>" + "".join(f"<td{kind}>{cell}" for cell, kind in zip(row, kinds, strict=True)))
    return f"<table><tr>{head}{''.join(body)}</table>"


def duration(seconds: float) -> str:
    """Such as `4.2 s`, `3:05 min` or `2:03 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
