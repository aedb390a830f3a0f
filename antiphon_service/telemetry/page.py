"""HTML of both services' status pages: plain, without scripts and without other files.

The functions do not escape their arguments, except titles: callers escape text of clients and workers.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from antiphon_service.telemetry.look import STYLE

REFRESH_S: Final = 2

MOST_ROWS: Final = 200
"""The largest number of rows of one table, so that the page stays readable."""

_TONES: Final = {
    "ready": "good",
    "loading": "warn",
    "starting": "warn",
    "unfit": "bad",
    "offline": "bad",
    "not ready": "bad",
    "draining": "warn",
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
"""The HTML attributes of a cell by the marks of its column."""


def page(title: str, state: str, note: str, parts: Iterable[str], *, refreshes: bool = True) -> str:
    """Return a whole page; `state` and `note` are HTML beside its title.

    With `refreshes` the browser reloads it every `REFRESH_S` seconds.
    """
    again = f'<meta http-equiv="refresh" content="{REFRESH_S}">' if refreshes else ""
    return "".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            again,
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f"<header><h1>{escape(title)}</h1>{state}<p>{note}</p></header>",
            *parts,
        )
    )


def tiles(facts: Iterable[tuple[str, str, str]]) -> str:
    """Return tiles for facts of value, label and tone; a tone is `good`, `warn`, `bad` or none."""
    cells = (
        f'<div class="tile"><b class="{tone}">{value}</b><span>{name}</span></div>'
        for value, name, tone in facts
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def slots(counts: Mapping[str, int]) -> str:
    """Return the number of slots in each state, as a bar with its legend."""
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
    """Return a part of the page with a title."""
    return f"<section><h2>{title}</h2>{body}</section>"


def placeholder(text: str) -> str:
    """Return the text that stands in place of an empty part."""
    return f'<p class="none">{text}</p>'


def state(word: str) -> str:
    """Return the state of a worker or a slot, in its tone."""
    return toned(word, _TONES.get(word, ""))


def toned(text: str, tone: str) -> str:
    """Return text in a tone."""
    return f'<span class="{tone}">{text}</span>'


def table(names: Sequence[str], rows: Iterable[Sequence[str]], count: int = 0) -> str:
    """Return a table of at most `MOST_ROWS` rows; its cells are HTML.

    Behind a column's name, `#` marks a column of numbers and `~` a column that a narrow screen hides. `count`
    is the total number of rows, if there may be more than `MOST_ROWS`.
    """
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
    """Format a duration, for example `4.2 s`, `3:05 min` or `2:03 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
