"""The status page and its figures, on the administration port."""

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon_service.telemetry.page import MOST_ROWS
from tests.support.scripted_engine import ScriptedEngine, listen
from tests.ws_adapter.observability.test_metrics import answered, observed, scrape
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, running_adapter
from ws_adapter.observability.metrics import RECENT_S, Recent
from ws_adapter.observability.processes import Process, read_processes
from ws_adapter.observability.status import LeaseStatus, Status, WaitStatus, WorkerStatus
from ws_adapter.observability.status_page import render
from ws_adapter.peers.base import Peer

NOTHING = Status(
    version="1",
    is_ready=False,
    is_draining=False,
    time=0.0,
    workers=[],
    slots={"free": 0, "granted": 0, "attached": 0, "cleaning": 0},
    leases=[],
    queue=[],
    queue_capacity=10,
    recent_units=0,
    recent_misses=0,
    sessions=0,
    cpu_cores=0.0,
    loop_lag_ms=0.0,
    inflight_bytes=0,
    speech_detector="energy",
)


class Page(html.parser.HTMLParser):
    """The text of a page, and the names of its tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data + " "


async def status_of(stage: Stage) -> dict[str, Any]:
    code, head, body = await scrape(stage, "/status.json")
    assert (code, "application/json" in head) == (200, True)
    told: dict[str, Any] = json.loads(body)
    return told


async def test_status_page_and_json_list_running_sessions_and_queue() -> None:
    async with observed(ScriptedEngine(listen(), slots=1)) as stage:
        async with stage.client() as talking, stage.client() as waiting:
            await talking.begin()
            await answered(talking)
            await waiting.expect("session.queued")
            told = await status_of(stage)
            code, head, body = await scrape(stage, "/")

    assert [(w["state"], w["model"], w["slots"], w["held"]) for w in told["workers"]] == [
        ("ready", "scripted", 1, 1)
    ]
    assert told["slots"] == {"free": 0, "granted": 0, "attached": 1, "cleaning": 0}
    (lease,), (place,) = told["leases"], told["queue"]
    assert (lease["state"], lease["mode"], lease["slot"]) == ("attached", "audio_duplex", 0)
    assert lease["age_s"] >= 0
    assert (place["position"], place["ticket_id"]) == (1, waiting.events[0]["ticket_id"])
    assert place["estimate_is_guess"] is True
    assert (told["recent_units"], told["recent_misses"], told["sessions"]) == (1, 0, 2)
    page = Page(body)
    assert (code, "text/html" in head) == (200, True)
    names = (told["workers"][0]["worker_id"], place["ticket_id"])
    for text in (*names, "audio duplex", "deadline misses", "s (a guess)"):
        assert text in page.text


async def test_page_loads_nothing_and_runs_nothing() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, admin_port=0) as stage:
        _, head, body = await scrape(stage, "/")
    page = Page(body)
    assert not page.tags & {"script", "link", "img", "iframe", "form"}
    assert not page.attributes & {"src", "onclick"}
    assert re.findall(r'href="([^"]*)"', body) == ["/drain"], "followed by whoever clicks on it"
    assert "url(" not in body
    assert "default-src 'none'" in head
    assert "no worker is ready" in page.text


async def test_browser_asks_for_the_key_as_a_password(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "admin")
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path, "admin_port": 0}
    wrong = [{"Authorization": f"Basic {it}"} for it in ("", "Ondyb25n", "Og==", "no base64", "/////w==")]
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        # A key that will not do is asked for again too: the browser would keep it.
        for headers in ({}, *wrong, keys.basic("alice")):
            code, head, _ = await scrape(stage, "/", headers)
            assert code == 401, headers
            challenges = re.findall(r"(?i)^WWW-Authenticate: (\w+)", head, re.MULTILINE)
            assert challenges == ["Bearer", "Basic"], headers
        for headers in (keys.basic("admin"), keys.basic("admin", "anybody")):
            assert (await scrape(stage, "/", headers))[0] == 200
            assert (await scrape(stage, "/metrics", headers))[0] == 200
        # A public path never makes a browser ask for a password: it is for programs and for the web page.
        code, _, _ = await stage.request("/api/queue", headers=keys.basic("admin"))
        assert code == 401


def test_status_page_escapes_all_foreign_names() -> None:
    evil = "<script>alert(1)</script>"
    page = render(
        replace(
            NOTHING,
            workers=[WorkerStatus(evil, "ready", evil, evil, 1, 0, evil)],
            leases=[LeaseStatus(evil, 0, 1, "attached", "chat", 1.0)],
            queue=[WaitStatus(1, evil, "chat", 1.0, 1.0, True)],
            adapters=[Peer(evil, evil, evil, 1, 0.0, 1, 0.5, True, False)],
            processes=[Process(evil, "ready", 1, 1, evil, 0.0)],
        )
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 10


def text_of(**fields: Any) -> str:
    """Return the text of the page, with one space between words."""
    return " ".join(Page(render(replace(NOTHING, **fields))).text.split())


def test_page_shows_all_adapters_of_a_cluster() -> None:
    adapters = [
        Peer("a", "1.2", "north", 11, 0.0, 3, 0.25, True, False),
        Peer("b", "1.1", "south", 22, 3600.0, 0, 0.5, True, True),
        Peer("c", "1.1", "west", 33, 3600.0, 0, 0.0, False, False),
    ]
    text = text_of(time=7200.0, adapters=adapters)
    assert "north 11 ready 3 0.25 1.2 2:00 h" in text
    assert "south 22 draining 0 0.50 1.1 1:00 h" in text
    assert "west 33 not ready" in text
    assert "Leases of this adapter" in text
    assert not any(name in text_of() for name in ("Adapters", "Processes", "of this adapter"))


def test_status_page_shows_process_deaths_and_restarts() -> None:
    processes = [
        Process("worker 1", "ready", 11, 0, "", None),
        Process("worker 2", "starting", None, 3, "The worker 2 stopped (killed by SIGKILL)", 60.0),
    ]
    text = text_of(time=180.0, processes=processes)
    assert "worker 1 ready 11 0" in text
    assert "worker 2 starting 3 The worker 2 stopped (killed by SIGKILL), 2:00 min ago" in text


@pytest.mark.parametrize("told", [None, "", "[", '{"name": 1}', "[1]", "\xff"])
def test_missing_or_invalid_process_file_reads_as_empty(told: str | None, tmp_path: Path) -> None:
    file = tmp_path / "processes.json"
    if told is not None:
        file.write_bytes(told.encode("latin-1"))
    assert read_processes(file) == []


def test_page_stays_one_that_can_be_read() -> None:
    many = [WaitStatus(number, f"ticket_{number}", "chat", 1.0, 1.0, False) for number in range(1000)]
    page = render(replace(NOTHING, queue=many))
    assert len(re.findall("ticket_", page)) == MOST_ROWS
    assert f"and {1000 - MOST_ROWS} more" in page


def test_recent_looks_back_five_minutes() -> None:
    recent = Recent()
    assert recent.record(0.0, 0, 0) == (0, 0)
    assert recent.record(100.0, 50, 1) == (50, 1)
    assert recent.record(RECENT_S + 50.0, 60, 1) == (60, 1)
    assert recent.record(RECENT_S + 100.0, 70, 2) == (20, 1)
