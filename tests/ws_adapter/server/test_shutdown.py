"""The end of an adapter: readiness first, then those who wait, then those who talk."""

import asyncio
import signal

from websockets.asyncio.client import connect

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import CLOSE, append, codes
from tests.ws_adapter.support.process import adapter_process
from tests.ws_adapter.support.stage import PATIENCE_S, Client, ManualClock, serving, until


async def test_drain_is_not_ready_and_ends_sessions_at_its_timeout() -> None:
    """The conformance tests check the events of waiting, late and talking clients."""
    clock = ManualClock()
    async with serving(ScriptedEngine(listen(), slots=1), clock=clock) as stage:
        async with stage.client() as talking:
            await talking.begin()
            stage.adapter.interrupt()
            await stage.until(draining=True)

            assert (await stage.request("/readyz"))[0] == 503
            late = (("audio", "service_unavailable", 1013), ("chat", "unsupported_mode", 1008))
            for mode, error, close in late:
                async with stage.client(f"/v1/realtime?mode={mode}") as client:
                    events, code = await client.end()
                    assert (codes(events), code) == ([error], close)
            await clock.advance(59)
            await talking.send(append())
            await talking.expect("listen")
            await clock.advance(1)
            events, code = await talking.end()
            assert ([e["reason"] for e in events], code) == (["server_shutdown"], 1012)
        async with asyncio.timeout(PATIENCE_S):
            assert await stage.task == 0
    assert clock.timers == 0


async def test_drain_ends_when_the_last_session_does() -> None:
    async with serving(ScriptedEngine(listen())) as stage, stage.client() as client:
        await client.begin()
        stage.adapter.interrupt()
        await stage.until(draining=True)
        await client.send(CLOSE)
        events, code = await client.end()
        assert ([e["reason"] for e in events], code) == (["user_stop"], 1000)
        async with asyncio.timeout(PATIENCE_S):
            assert await stage.task == 0


async def test_sessions_that_outlast_the_drain_end_one_after_another() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(listen(), slots=3)
    async with serving(engine, clock=clock) as stage:
        async with stage.client() as first, stage.client() as second, stage.client() as third:
            clients = (first, second, third)
            for client in clients:
                await client.begin()
            readers = [asyncio.create_task(client.end()) for client in clients]
            stage.adapter.interrupt()
            await stage.until(draining=True)
            for seconds, ended in ((38, 0), (6, 1), (10, 2), (6, 3)):
                await clock.advance(seconds)
                await until(lambda: sum(reader.done() for reader in readers) >= ended)  # noqa: B023
                assert sum(reader.done() for reader in readers) == ended
            await asyncio.gather(*readers)
            assert [client.close_code for client in clients] == [1012] * 3


async def test_process_ends_at_once_on_the_second_sigterm() -> None:
    engine = ScriptedEngine(listen())
    async with (
        running_worker(engine) as worker,
        adapter_process(worker.address, "--drain-timeout-s", "3600") as (process, address),
    ):
        url = address.replace("http", "ws") + "/v1/realtime?mode=audio"
        async with connect(url, compression=None) as socket:
            client = Client(socket)
            await client.expect_until("session.queue_done")
            process.send_signal(signal.SIGTERM)
            async with connect(url, compression=None) as turned_away:
                assert codes(await Client(turned_away).rest()) == ["service_unavailable"]
            process.send_signal(signal.SIGTERM)
            events, code = await client.end()
            assert ([e["reason"] for e in events], code) == (["server_shutdown"], 1012)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
