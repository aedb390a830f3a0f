"""`/metrics` on the administration port: true figures, in the format of Prometheus, for operators only."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.adapter.conversation import append
from tests.adapter.keyfile import KeyFile
from tests.adapter.stage import PATIENCE_S, Stage, running_adapter
from tests.scripted_engine import ScriptedEngine, listen, running_worker
from ws_adapter.app import serve
from ws_adapter.dispatch.base import Kind
from ws_adapter.metrics import Family, Tally, exposition
from ws_adapter.options import AdapterOptions

SAMPLE = re.compile(r'(antiphon_[a-z_]+)(\{([a-z]+="[^"\n]*",?)+\})? [0-9.e+-]+')


async def scrape(
    stage: Stage, path: str = "/metrics", headers: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Status, head and body of a request to the administration port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.adapter.admin_port)
    lines = [f"GET {path} HTTP/1.1", "Host: x"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(PATIENCE_S):
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), head, body


async def figures(stage: Stage) -> dict[str, float]:
    status, _, body = await scrape(stage)
    assert status == 200
    samples = [line for line in body.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (sample.rsplit(" ", 1) for sample in samples)}


async def test_page_has_the_format_of_prometheus() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, admin_port=0) as stage:
        status, head, body = await scrape(stage)

    assert status == 200
    assert "text/plain; version=0.0.4" in head
    lines = body.splitlines()
    for line in lines:
        assert line.startswith(("# HELP antiphon_", "# TYPE antiphon_")) or SAMPLE.fullmatch(line), line
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(named) == len(set(named))


async def test_figures_follow_what_happens() -> None:
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1) as worker:
        async with running_adapter(worker.address, admin_port=0) as stage:
            async with stage.client() as talking, stage.client() as waiting:
                await talking.begin()
                await talking.send(append())
                await talking.expect("listen")
                await waiting.expect("session.queued")
                now = await figures(stage)
                assert now['antiphon_workers{state="ready"}'] == 1
                assert now['antiphon_slots{state="free"}'] == 0
                assert now['antiphon_slots{state="held"}'] == 1
                assert now["antiphon_queue_length"] == 1
                assert now['antiphon_sessions_active{kind="audio_duplex"}'] == 2
                await waiting.send({"type": "session.close", "reason": "bored"})
                await waiting.end()
                await talking.send({"type": "session.close"})
                await talking.end()
            async with stage.client(stage.url.replace("audio", "chat")) as lost:
                await lost.end()
            await stage.until(free_slots=1)
            now = await figures(stage)

    assert now['antiphon_slots{state="free"}'] == 1
    assert now['antiphon_sessions_active{kind="audio_duplex"}'] == 0
    assert now['antiphon_sessions_total{kind="audio_duplex",reason="user_stop"}'] == 1
    assert now['antiphon_sessions_total{kind="audio_duplex",reason="other"}'] == 1
    assert now['antiphon_rejected_total{reason="unsupported_mode"}'] == 1
    assert now["antiphon_inflight_bytes"] == 0


def test_reasons_of_clients_make_no_series_of_their_own() -> None:
    tally = Tally()
    for number in range(100):
        tally.begin(Kind.AUDIO_DUPLEX)
        tally.end(Kind.AUDIO_DUPLEX, f"reason_{number}")

    assert dict(tally.ended) == {(Kind.AUDIO_DUPLEX, "other"): 100}


def test_exposition() -> None:
    family = Family("things_total", "Things.", {("a", "b"): 2, ("a", "c"): 1e15}, ("x", "y"), "counter")

    assert exposition([family]).decode() == (
        "# HELP antiphon_things_total Things.\n"
        "# TYPE antiphon_things_total counter\n"
        'antiphon_things_total{x="a",y="b"} 2\n'
        'antiphon_things_total{x="a",y="c"} 1e+15\n'
    )


async def test_only_an_admin_sees_them_where_there_are_keys(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "admin")
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path, "admin_port": 0}
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        with pytest.raises(InvalidStatus):
            async with connect(stage.url):
                pass
        seen = [
            (await scrape(stage, headers=headers))[0]
            for headers in ({}, keys.bearer("alice"), keys.bearer("admin"))
        ]
        _, _, body = await scrape(stage, headers=keys.bearer("admin"))

    assert seen == [401, 403, 200]
    assert 'antiphon_rejected_total{reason="http_401"} 1' in body


async def test_nothing_else_is_there_and_it_is_nowhere_else() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, admin_port=0) as stage:
        assert (await scrape(stage, "/health"))[0] == 404
        assert (await stage.request("/metrics"))[0] == 404
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{stage.adapter.admin_port}/v1/realtime"):
                pass
        assert refused.value.response.status_code == 404
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        assert stage.adapter.admin_port is None


async def test_port_in_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    async with running_adapter("127.0.0.1:1", wait=False, admin_port=0) as stage:
        port = stage.adapter.admin_port

        assert await serve(AdapterOptions(workers=("127.0.0.1:1",), port=0, admin_port=port)) == 2

    assert f"Port {port} is in use by another process. Choose another with --admin-port" in (
        capsys.readouterr().err
    )
