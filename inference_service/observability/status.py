"""The status page of a worker."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version

from antiphon_service.semconv import SlotState
from antiphon_service.telemetry import page
from inference_service.interface.engine import End, Occupancy, Ticked

_TITLE = "Antiphon worker"


@dataclass(frozen=True)
class SlotView:
    """One slot and its session; `session_id` is empty without one."""

    slot: int
    state: str
    session_id: str = ""
    age_s: float = 0.0
    unit: int = 0
    """Number of the newest unit."""


@dataclass(frozen=True)
class WorkerView:
    """All data of the page. `occupancy` is None, and `model` and `slots` are empty while the model loads."""

    worker_id: str
    state: str
    age_s: float
    device: str
    model: str
    slots: Sequence[SlotView]
    occupancy: Occupancy | None
    ticks: Sequence[Ticked]
    """The newest ticks."""
    units: Mapping[End, int]
    misses: int
    slack: Sequence[float] = ()
    """Slack in seconds of the newest units of conversations."""
    shares: tuple[float, float] = (0.0, 0.0)
    """The engine's busy share for the units of its sessions, and that with one session more."""
    has_time: bool = True
    """Whether one more session may be admitted."""


def render(view: WorkerView) -> str:
    """Return the page."""
    state = page.toned(view.state, {"ready": "good"}.get(view.state, "warn"))
    facts = (
        escape(f"{view.model} on {view.device}") if view.model else "",
        escape(view.worker_id),
        f"version {version('antiphon')}",
        f"up for {page.duration(view.age_s)}",
    )
    note = " &middot; ".join(filter(None, facts))
    if not view.slots:
        return page.page(
            _TITLE, state, note, [page.section("Slots", page.placeholder("The model is loading."))]
        )
    states = Counter(slot.state for slot in view.slots)
    slots = page.slots({state: states[state] for state in SlotState}) + _sessions(view.slots)
    parts = (
        page.tiles([*_held(view.occupancy), *_units(view)]),
        page.section("Slots", slots),
        page.section("Units", _ends(view.units)),
    )
    return page.page(_TITLE, state, note, parts)


def _held(occupancy: Occupancy | None) -> Iterator[tuple[str, str, str]]:
    """Yield tiles of the worker's occupancy: value, label and state."""
    if occupancy is None:
        return
    share = occupancy.kv_tokens / max(1, occupancy.kv_capacity_tokens)
    name = f"KV tokens, {share:.0%} of {occupancy.kv_capacity_tokens:,}"
    yield f"{occupancy.kv_tokens:,}", name, "bad" if share > 0.9 else ""
    pages = f"KV pages used, {occupancy.cached_pages:,} cached, {occupancy.free_pages:,} free"
    yield f"{occupancy.used_pages:,}", pages, ""
    yield f"{occupancy.prefix_tokens:,}", "tokens found in the prefix cache", ""
    if occupancy.device_memory_bytes is not None:
        yield f"{occupancy.device_memory_bytes / 2**20:,.0f} MiB", "device memory held", ""


def _units(view: WorkerView) -> list[tuple[str, str, str]]:
    """Return tiles of units, ticks and their times."""
    units, ticks = sum(view.units.values()), view.ticks
    late = view.misses / units if units else 0.0
    tiles = [
        (f"{units:,}", "units", ""),
        (f"{view.misses:,}", f"deadline misses ({late:.1%})", "bad" if late > 0.01 else ""),
        (f"{ticks[-1].number if ticks else 0:,}", "ticks", ""),
    ]
    if view.slack:
        least, median = (sorted(view.slack)[int(share * len(view.slack))] for share in (0.01, 0.5))
        present, after = view.shares
        state = "" if view.has_time else ": not admitted"
        tiles.append((f"{present:.0%}", f"busy with units, {after:.0%} with one more session{state}", ""))
        tiles.append(
            (f"{least * 1000:,.0f} ms", f"minimum slack of 99 % of units, median {median * 1000:,.0f} ms", "")
        )
    if ticks:
        spent = [tick.ended - tick.started for tick in ticks]
        mean, longest, count = sum(spent) / len(spent) * 1000, max(spent) * 1000, len(ticks)
        tiles.append((f"{mean:.1f} ms", f"mean of {count:,} ticks, longest {longest:.1f} ms", ""))
        sessions = sum(tick.sessions for tick in ticks) / count
        rows = sum(tick.tokens for tick in ticks) / count
        tiles.append((f"{sessions:.1f}", f"sessions in a tick, {rows:.1f} rows", ""))
        rest = sum(tick.rest_s for tick in ticks) / max(sum(spent), 1e-9)
        tiles.append((f"{rest:.0%}", "of the ticks' time for work without a deadline", ""))
    return tiles


def _sessions(slots: Sequence[SlotView]) -> str:
    rows = (
        (
            str(slot.slot),
            page.state(slot.state),
            escape(slot.session_id),
            page.duration(slot.age_s) if slot.session_id else "",
            f"{slot.unit:,}" if slot.session_id else "",
        )
        for slot in slots
    )
    return page.table(("slot", "state", "session", "age#", "unit#"), rows, len(slots))


def _ends(units: Mapping[End, int]) -> str:
    rows = ((end.name.lower().replace("_", " "), f"{units.get(end, 0):,}") for end in End)
    return page.table(("end", "units#"), rows)
