"""The administration port: what is there, and what is said of everything else."""

import asyncio
import base64
import itertools
import json
from pathlib import Path

import pytest

from inference_service.app import Worker
from inference_service.errors import ConfigurationError
from inference_service.interface.engine import Ticked
from inference_service.options import WorkerOptions
from inference_service.session.machine import Limits
from tests.inference_service.process.test_drain import loading
from tests.inference_service.support.caller import Caller, channel_to, until
from tests.support.patience import PATIENCE_S
from tests.support.scrape import get
from tests.support.scripted_engine import RunningWorker, ScriptedEngine, running_worker, telemetry

CANARY = "the heron stands in the reeds"


def port_of(worker: RunningWorker) -> int:
    assert worker.worker.admin_port is not None
    return worker.worker.admin_port


PAGES = {"/": "text/html", "/metrics": "text/plain", "/?a=b": "text/html", "/healthz": "", "/readyz": ""}


async def test_pages_can_be_read_and_nothing_else_is_there() -> None:
    async with running_worker(ScriptedEngine(), admin_port=0) as worker:
        for path, content_type in PAGES.items():
            page, head = await get(port_of(worker), path), await get(port_of(worker), path, "HEAD")
            assert page.status == head.status == 200, path
            assert page.headers["content-type"].startswith(content_type), path
            assert (head.body, head.headers["content-length"]) == ("", str(len(page.body.encode()))), path
            if path in ("/healthz", "/readyz"):
                assert page.body == f'{{"status": "{"ok" if path == "/healthz" else "ready"}"}}'
        for path in ("/metric", "/metrics/", "//", "/status", "/../metrics"):
            page = await get(port_of(worker), path)
            assert (page.status, "/metrics" in page.body) == (404, True), path
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            page = await get(port_of(worker), "/metrics", method)
            assert (page.status, page.headers["allow"]) == (405, "GET, HEAD"), method


HOST = b"Host: localhost\r\n"
SIZED = b"Content-Length: 3\r\n\r\nabc"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
REQUESTS = {
    b"GET / HTTP/1.1\r\n" + HOST + SIZED: 413,
    b"GET /metrics HTTP/1.1\r\n" + HOST + CHUNKED: 413,
    b"POST / HTTP/1.1\r\n" + HOST + SIZED: 405,
    b"DELETE /metrics HTTP/1.1\r\n" + HOST + b"\r\n": 405,
    b"POST /elsewhere HTTP/1.1\r\n" + HOST + SIZED: 404,
    b"TRACE / HTTP/1.1\r\n" + HOST + b"\r\n": 405,
}
UNREADABLE = (b"GET / HTTP/2.0\r\n\r\n", b"no request\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n")


async def ask(worker: RunningWorker, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(worker))
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    assert head, "the socket was closed without an answer"
    return int(head.split()[1]), body


async def test_every_request_has_its_answer() -> None:
    async with running_worker(ScriptedEngine(), admin_port=0) as worker:
        for request, status in REQUESTS.items():
            told, body = await ask(worker, request)
            assert told == status, request
            assert json.loads(body)["error"]["message"]
        for request in UNREADABLE:
            assert (await ask(worker, request))[0] == 400, request
        empty = b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n"
        assert (await ask(worker, empty))[0] == 200
        for size in (2**20, 2**24):
            head = b"POST /metrics HTTP/1.1\r\n" + HOST + f"Content-Length: {size}\r\n\r\n".encode()
            assert (await ask(worker, head + bytes(size)))[0] == 405, "a long body takes no answer along"


async def test_the_status_page_shows_sessions_and_ticks() -> None:
    engine = ScriptedEngine(slots=2)
    engine.pages = (1, 2, 509, 48)
    async with running_worker(engine, admin_port=0, worker_id="<w>") as worker:
        async with channel_to(worker.address) as channel:
            caller = await Caller(channel, "<b>me</b>").ready(system_prompt=CANARY)
            await caller.unit(1)
            engine.on_ticks([Ticked(1234, 0.0, 0.02, 3, 5, rest_s=0.005)])
            page = (await get(port_of(worker), "/")).body
    shown = [
        *("&lt;b&gt;me&lt;/b&gt;", "&lt;w&gt;-", "attached", "free", "KV tokens, 0% of 8,192", ">22<"),
        *("KV pages used, 2 cached, 509 free", "tokens found in the prefix cache", ">1,234<", "20.0 ms"),
        ">25%<",
        *("sessions in a tick, 5.0 rows", "slack of 99 % of units", "with one more session<"),
    ]
    assert [text for text in shown if text not in page] == []
    assert [text for text in ("<b>me", "heron", "<script") if text in page] == []


async def test_a_loading_worker_has_its_pages_too() -> None:
    async with loading(admin_port=0) as (worker, _, _):
        await until(lambda: worker.admin_port)
        port = worker.admin_port or 0
        page, metrics = await get(port, "/"), await get(port, "/metrics")
        health, ready = await get(port, "/healthz"), await get(port, "/readyz")
    assert "loading" in page.body
    assert (health.status, ready.status) == (200, 503)
    assert "not_ready" in ready.body
    assert "antiphon_build_info" in metrics.body


@pytest.mark.parametrize("variable", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_METRICS_EXPORTER": "none"}])
async def test_metrics_that_are_not_scraped_are_not_there(variable: dict[str, str]) -> None:
    async with running_worker(ScriptedEngine(), observed=telemetry(**variable), admin_port=0) as worker:
        metrics = await get(port_of(worker), "/metrics")
        page = await get(port_of(worker), "/")
    assert (metrics.status, page.status) == (404, 200)
    assert "OTEL_METRICS_EXPORTER" in metrics.body


async def test_a_port_in_use_is_said_in_one_sentence(tmp_path: Path) -> None:
    async with running_worker(ScriptedEngine(), admin_port=0) as first:
        options = WorkerOptions(listen=f"unix:{tmp_path}/worker.sock", admin_port=port_of(first))
        worker = Worker(options, ScriptedEngine().start, Limits(), telemetry())
        with pytest.raises(ConfigurationError, match="--admin-port"):
            await worker.run(lambda _: None)


async def test_a_page_that_fails_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    async with running_worker(ScriptedEngine(), admin_port=0) as worker:
        worker.worker._administration._status = lambda: str(1 / 0)
        page = await get(port_of(worker), "/")
    assert (page.status, json.loads(page.body)["error"]["code"]) == (500, "internal_error")
    assert "ZeroDivisionError" in caplog.text


KEY = "c0ffee00c0ffee00"


async def ask_with(worker: RunningWorker, authorization: str, path: str) -> tuple[int, bytes]:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\n\r\n"
    return await ask(worker, head.encode())


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


GOOD_KEYS = (f"Bearer {KEY}", f"bearer {KEY}", basic(KEY))
BAD_KEYS = (
    *("", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Digest {KEY}", KEY),
    *(basic("x"), "Basic !", "Bearer \xe9"),
)


async def test_key_that_is_sent_opens_the_pages_and_no_other() -> None:
    async with running_worker(ScriptedEngine(), admin_port=0, admin_key=KEY.encode()) as worker:
        for path, authorization in itertools.product(("/", "/metrics"), GOOD_KEYS):
            assert (await ask_with(worker, authorization, path))[0] == 200, authorization
        for path, authorization in itertools.product(("/", "/metrics", "/elsewhere"), BAD_KEYS):
            status, body = await ask_with(worker, authorization, path)
            assert (status, json.loads(body)["error"]["code"]) == (401, "unauthorized"), authorization
            assert KEY not in body.decode()
        page = await get(port_of(worker), "/")
    assert page.headers["www-authenticate"].startswith("Basic realm=")
