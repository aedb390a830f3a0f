"""The status page of an adapter."""

import datetime
from html import escape
from typing import Final

from antiphon_service.telemetry import page
from ws_adapter.observability import chart
from ws_adapter.observability.status import Status

DRAIN: Final = "/drain"


def render(status: Status) -> str:
    """Return the page."""
    if status.is_draining:
        state = page.toned("draining", "warn")
    elif status.is_ready:
        state = page.toned("ready", "good")
    else:
        state = page.toned("no worker is ready", "bad")
    at = datetime.datetime.fromtimestamp(status.time, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    note = f"version {escape(status.version)} &middot; speech by {status.speech_detector} &middot; {at}"
    slots = page.section("Slots", page.slots(status.slots))
    drain = "" if status.is_draining else f'<a class="button" href="{DRAIN}">Drain&hellip;</a>'
    parts = (
        _tiles(status),
        _history(status),
        slots,
        _processes(status),
        _adapters(status),
        _workers(status),
        _leases(status),
        _queue(status),
        drain,
    )
    return page.page("Antiphon adapter", state, note, parts)


def render_drain(status: Status) -> str:
    """Return the page that asks for confirmation before the adapter drains."""
    question = (
        f"<p>The adapter rejects new sessions, and the {len(status.queue)} in the queue. The "
        f"{status.sessions} running ones may finish within <code>--drain-timeout-s</code>; then this adapter "
        "ends.</p>"
        f'<form method="post" action="{DRAIN}"><button class="danger">Drain this adapter</button> '
        '<a class="button" href="/">Back</a></form>'
    )
    parts = (page.section("Drain?", question),)
    return page.page("Antiphon adapter", "", f"version {escape(status.version)}", parts, refreshes=False)


def _history(status: Status) -> str:
    charts = chart.lines(status.history)
    return page.section("The last five minutes", charts) if charts else ""


def _tiles(status: Status) -> str:
    share = status.recent_misses / status.recent_units if status.recent_units else 0.0
    tiles = (
        (f"{status.sessions}", "sessions" + _detached(status), ""),
        (f"{len(status.queue)}", f"waiting, of {status.queue_capacity}", "warn" if status.queue else ""),
        (f"{status.recent_units}", "units in 5 min", ""),
        (
            f"{status.recent_misses} <small>{share:.1%}</small>",
            "deadline misses",
            "bad" if share > 0.01 else "",
        ),
        (f"{status.cpu_cores:.2f}", "cores in use", ""),
        (f"{status.loop_lag_ms:.1f} ms", "event loop lag", ""),
    )
    return page.tiles(tiles)


def _detached(status: Status) -> str:
    return f", {status.detached} without a connection" if status.detached else ""


def _adapters(status: Status) -> str:
    if not status.adapters:
        return ""
    rows = (
        (
            escape(f"{adapter.host} {adapter.pid}"),
            page.state("draining" if adapter.is_draining else "ready" if adapter.is_ready else "not ready"),
            f"{adapter.sessions}",
            f"{adapter.cpu_cores:.2f}",
            escape(adapter.version),
            page.duration(max(0.0, status.time - adapter.since)),
        )
        for adapter in status.adapters
    )
    names = ("adapter", "state", "sessions#", "cores in use#", "version~", "up for#~")
    return page.section("Adapters", page.table(names, rows, len(status.adapters)))


def _processes(status: Status) -> str:
    if not status.processes:
        return ""
    rows = (
        (
            escape(process.name),
            page.state(process.state),
            f"{process.pid or ''}",
            f"{process.restarts}",
            escape(process.last_end)
            + (f", {_ago(status.time - process.ended_at)}" if process.ended_at is not None else ""),
        )
        for process in status.processes
    )
    names = ("process", "state", "pid#~", "restarts#", "last reason")
    return page.section("Processes", page.table(names, rows, len(status.processes)))


def _ago(seconds: float) -> str:
    return f"{page.duration(max(0.0, seconds))} ago"


def _workers(status: Status) -> str:
    rows = (
        (
            escape(worker.worker_id or worker.target),
            page.state(worker.state),
            escape(worker.model or "unknown"),
            escape(worker.revision or ""),
            f"{worker.held} of {worker.slots}" if worker.slots is not None else f"{worker.held}",
            escape(worker.target),
        )
        for worker in status.workers
    )
    names = ("worker", "state", "model", "revision~", "slots held#", "address~")
    return page.section("Workers", page.table(names, rows))


def _leases(status: Status) -> str:
    rows = (
        (
            escape(f"{lease.worker_id} / {lease.slot}"),
            page.state(lease.state),
            lease.mode.replace("_", " "),
            page.duration(lease.age_s),
            f"{lease.epoch}",
        )
        for lease in status.leases
    )
    table = page.table(("slot", "state", "session", "age#", "epoch#~"), rows, len(status.leases))
    title = "Leases of this adapter" if status.adapters else "Leases"
    return page.section(title, table if status.leases else page.placeholder("No session has a slot."))


def _queue(status: Status) -> str:
    rows = (
        (
            f"{waiting.position}",
            escape(waiting.ticket_id),
            waiting.mode.replace("_", " "),
            page.duration(waiting.waited_s),
            page.duration(waiting.estimated_wait_s) + (" (a guess)" if waiting.estimate_is_guess else ""),
        )
        for waiting in status.queue
    )
    table = page.table(("place", "ticket~", "session", "waited#", "estimated wait#"), rows, len(status.queue))
    return page.section("Queue", table if status.queue else page.placeholder("No session waits."))
