"""`/metrics` on the administration port: true figures, in the format of Prometheus, for operators only."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from antiphon_service.semconv import SERVICE_ADAPTER
from antiphon_service.telemetry.providers import start
from tests.support.scripted_engine import ScriptedEngine, fails, hang, listen, running_worker, turn_end
from tests.ws_adapter.support.conversation import append
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import PATIENCE_S, Client, ManualClock, Stage, running_adapter, until
from ws_adapter.app import serve
from ws_adapter.observability.metrics import Metrics
from ws_adapter.options import AdapterOptions
from ws_adapter.protocol.core.kind import Kind

SAMPLE = re.compile(r'(antiphon_[a-z_]+)(\{([a-z]+="[^"\n]*",?)+\})? [0-9.e+-]+')


@asynccontextmanager
async def observed(engine: ScriptedEngine, **options: Any) -> AsyncIterator[Stage]:
    """An adapter with an administration, and its worker."""
    async with running_worker(engine, slots=engine.slots) as worker:
        async with running_adapter(worker.address, admin_port=0, **options) as stage:
            yield stage


async def scrape(
    stage: Stage, path: str = "/metrics", headers: dict[str, str] | None = None
) -> tuple[int, str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.adapter.admin_port)
    lines = [f"GET {path} HTTP/1.1", "Host: x"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(PATIENCE_S):
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), head, body


async def figures(stage: Stage, headers: dict[str, str] | None = None) -> dict[str, float]:
    status, _, body = await scrape(stage, headers=headers)
    assert status == 200
    samples = [line for line in body.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (sample.rsplit(" ", 1) for sample in samples)}


async def answered(client: Client, kind: str = "listen", **fields: Any) -> None:
    """Send a second of input and read on to the answer of this kind."""
    await client.send(append(**fields))
    while (await client.next()).get("kind") != kind:
        pass


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


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via"])
async def test_keyless_admin_port_rejects_proxied_requests(header: str) -> None:
    """A proxy on this machine would make the port one beyond loopback."""
    async with running_adapter("127.0.0.1:1", wait=False, admin_port=0, allow_anonymous=True) as stage:
        for path in ("/", "/metrics", "/status.json"):
            status, _, body = await scrape(stage, path, {header: "203.0.113.5"})
            assert (status, "antiphon_" in body) == (403, False)
            assert (await scrape(stage, path))[0] == 200


async def test_figures_follow_what_happens() -> None:
    engine = ScriptedEngine(listen(), slots=1)
    async with observed(engine) as stage:
        async with stage.client() as talking, stage.client() as waiting:
            await talking.begin()
            await answered(talking)
            await waiting.expect("session.queued")
            now = await figures(stage)
            assert now['antiphon_workers{state="ready"}'] == 1
            assert now['antiphon_slots{state="free"}'] == 0
            assert now['antiphon_slots{state="attached"}'] == 1
            assert now["antiphon_queue_length"] == 1
            assert now['antiphon_sessions_active{mode="audio_duplex"}'] == 2
            await waiting.send({"type": "session.close", "reason": "bored"})
            await waiting.end()
            await talking.send({"type": "session.close"})
            await talking.end()
        async with stage.client(stage.url.replace("audio", "chat")) as lost:
            await lost.end()
        await stage.until(free_slots=1)
        now = await figures(stage)

    assert now['antiphon_slots{state="free"}'] == 1
    assert now['antiphon_sessions_active{mode="audio_duplex"}'] == 0
    assert now['antiphon_sessions_total{mode="audio_duplex",reason="user_stop"}'] == 1
    assert now['antiphon_sessions_total{mode="audio_duplex",reason="other"}'] == 1
    assert now['antiphon_rejected_total{reason="mode"}'] == 1
    assert now["antiphon_inflight_bytes"] == 0


def test_reasons_of_clients_make_no_series_of_their_own() -> None:
    telemetry = start(SERVICE_ADAPTER, {})
    metrics = Metrics(telemetry.meter)
    for number in range(100):
        metrics.ended(Kind.AUDIO_DUPLEX, f"reason_{number}", 1.0)
    assert dict(metrics.sessions) == {(Kind.AUDIO_DUPLEX, "other"): 100}


async def test_only_an_admin_sees_them_where_there_are_keys(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "admin")
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path, "admin_port": 0}
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        with pytest.raises(InvalidStatus):
            async with connect(stage.url):
                pass
        for path in ("/", "/status.json", "/metrics"):
            given = ({}, keys.bearer("alice"), keys.bearer("admin"))
            assert [(await scrape(stage, path, headers))[0] for headers in given] == [401, 403, 200]
        _, _, body = await scrape(stage, headers=keys.bearer("admin"))
    assert 'antiphon_rejected_total{reason="auth"} 1' in body


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


async def test_admin_port_in_use_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async with running_adapter("127.0.0.1:1", wait=False, admin_port=0) as stage:
        port = stage.adapter.admin_port
        assert await serve(AdapterOptions(workers=("127.0.0.1:1",), port=0, admin_port=port)) == 2
    assert f"Port {port} is in use by another process. Choose another with --admin-port" in (
        capsys.readouterr().err
    )


async def test_number_of_series_does_not_grow_with_sessions() -> None:
    """Neither with sessions and clients nor with the words that they choose. The lag of the event loop is
    measured by the clock, from the first half second on."""
    engine = ScriptedEngine(turn_end("Hi."), fails(), listen(), repeat=True, slots=4)
    sizes = []
    async with observed(engine) as stage:
        for number in range(30):
            async with stage.client(f"{stage.url}&note={number}") as client:
                await client.begin()
                await client.send({"type": f"no.such.event.{number}"})
                await client.expect("error")
                await answered(client, input_id=f"input-{number}")
                await client.send({"type": "session.close", "reason": f"reason_{number}"})
                await client.end()
            if number in (9, 29):
                await stage.until(free_slots=4)
                sizes.append({name for name in await figures(stage) if "loop_lag" not in name})

    assert sizes[1] - sizes[0] == set()


async def test_latencies_deadline_misses_and_tokens_are_counted_by_mode() -> None:
    engine = ScriptedEngine(turn_end("Hi."), repeat=True)
    async with observed(engine) as stage:
        async with stage.client() as client:
            await client.begin()
            for _ in range(3):
                await answered(client)
            await client.send({"type": "session.close"})
            await client.end()
        await stage.until(free_slots=engine.slots)
        now = await figures(stage)

    mode = 'mode="audio_duplex"'
    for name in (
        f'first_audio_seconds_count{{dialect="realtime",{mode}}}',
        f"first_text_seconds_count{{{mode}}}",
        f'unit_seconds_count{{end="turn",{mode}}}',
        f'units_total{{end="turn",{mode}}}',
        "adapter_overhead_seconds_count",
    ):
        assert now[f"antiphon_{name}"] == 3, name
    assert now[f"antiphon_unit_deadline_misses_total{{{mode}}}"] == 0
    assert now[f"antiphon_session_seconds_count{{{mode}}}"] == 1
    assert now['antiphon_queue_wait_seconds_count{outcome="granted",pool="default"}'] == 1
    assert now['antiphon_leases_total{outcome="released",revision="stable"}'] == 1
    for hop in ("public", "grpc"):
        assert now[f'antiphon_bytes_total{{direction="in",hop="{hop}"}}'] > 3000
        assert now[f'antiphon_bytes_total{{direction="out",hop="{hop}"}}'] > 3000


async def test_late_unit_counts_as_deadline_miss_and_unfinished_unit_as_dropped() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(hang("generate"), repeat=True)
    async with observed(engine, clock=clock) as stage:
        async with stage.client() as client:
            await client.begin()
            await client.send(append())
            await until(lambda: engine.session.heard)
            await clock.advance(1.5)
            engine.session.release("generate", 1)
            await client.expect("listen")
            await client.send(append())
            await until(lambda: len(engine.session.heard) == 2)
            client.vanish()
        await stage.until(free_slots=engine.slots)
        now = await figures(stage)

    assert now['antiphon_unit_deadline_misses_total{mode="audio_duplex"}'] == 1
    assert now['antiphon_units_dropped_total{mode="audio_duplex",reason="session_end"}'] == 1
    assert now['antiphon_unit_seconds_bucket{end="listen",le="1.5",mode="audio_duplex"}'] == 1
    assert now['antiphon_unit_seconds_bucket{end="listen",le="1.25",mode="audio_duplex"}'] == 0


async def test_errors_are_counted_by_code_and_side() -> None:
    async with observed(ScriptedEngine(fails())) as stage, stage.client() as client:
        await client.begin()
        await client.send({"type": "no.such.event"}, append())
        await client.expect("error", "error")
        now = await figures(stage)
    assert now['antiphon_errors_total{code="unknown_event",side="client"}'] == 1
    assert now['antiphon_errors_total{code="inference_error",side="server"}'] == 1
