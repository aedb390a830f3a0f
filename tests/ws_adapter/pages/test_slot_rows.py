"""`/workers` and `/status`: what each slot does, as clients of the reference server ask."""

from pathlib import Path

from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.chat_conversation import request
from tests.ws_adapter.support.duplex_conversation import PAUSE, PREPARE, RESUME, chunk
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import running_adapter
from tests.ws_adapter.web.test_routes import url
from ws_adapter.dispatch.base import Lease
from ws_adapter.observability.leases import MOST_TOTALS, Leases
from ws_adapter.protocol.core.kind import Kind


async def test_paused_conversation_has_its_own_status() -> None:
    async with running_worker(ScriptedEngine(listen(), slots=2, repeat=True), slots=2) as worker:
        async with running_adapter(worker.address) as stage:
            async with stage.client(url(stage, "/ws/duplex/adx_1")) as client:
                await client.expect("queue_done")
                await client.send(PREPARE)
                await client.expect("prepared")
                await client.send(chunk())
                await client.expect("result")

                for event, answer, state in (
                    (PAUSE, "paused", "duplex_paused"),
                    (RESUME, "resumed", "duplex_active"),
                    (PAUSE, "paused", "duplex_paused"),
                ):
                    await client.send(event)
                    await client.expect(answer)
                    rows = (await stage.request("/workers"))[2]
                    [task] = (await stage.request("/status"))[2]["running_tasks"]
                    assert sorted(row["status"] for row in rows["workers"]) == [state, "idle"]
                    assert task["status"] == state
                busy, idle = sorted(rows["workers"], key=lambda row: row["status"] == "idle")
                assert (rows["total"], busy["total_requests"], idle["total_requests"]) == (2, 1, 0)
                assert busy["current_request_type"] == "audio_duplex"
                assert busy["capabilities"] == ["audio_duplex"]
                assert (busy["current_session_id"], busy["host"]) == (None, None)
            await stage.until(free_slots=2)
            rows = (await stage.request("/workers"))[2]["workers"]
            assert [row["status"] for row in rows] == ["idle", "idle"]


async def test_chat_is_busy_and_no_duplex_conversation() -> None:
    engine = ScriptedEngine(listen(hold="generate"), slots=1, info=EVERYTHING)
    async with running_worker(engine) as worker, running_adapter(worker.address) as stage:
        async with stage.client(url(stage, "/ws/chat")) as client:
            await client.send(request())
            await client.expect("prefill_done")
            status = (await stage.request("/status"))[2]
            [row] = (await stage.request("/workers"))[2]["workers"]
        assert (status["busy_workers"], status["duplex_workers"]) == (1, 0)
        assert (row["status"], row["current_request_type"]) == ("busy_chat", "chat")
        assert row["capabilities"] == ["audio_duplex", "chat", "omni_duplex", "transcription"]


async def test_worker_that_is_away_has_one_row_and_totals_of_slots_are_bounded() -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        [row] = (await stage.request("/workers"))[2]["workers"]
        assert (row["worker_id"], row["status"], row["capabilities"]) == (None, "offline", [])
    leases = Leases()
    for number in range(MOST_TOTALS + 10):
        leases.granted(Lease("t", "", f"w{number}", 0, 1, "p"), Kind.CHAT, 0.0)
    assert len(leases.totals) == MOST_TOTALS
    assert ("w0", 0) not in leases.totals


async def test_addresses_and_sessions_are_for_admins(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "admin")
    async with running_worker(ScriptedEngine(listen(), slots=1), slots=1) as worker:
        async with (
            running_adapter(worker.address, auth="keys", keys=keys.path) as stage,
            stage.client(additional_headers=keys.bearer("alice")) as client,
        ):
            session_id = (await client.begin())["session_id"]
            seen = [
                (await stage.request("/workers", headers=keys.bearer(name)))[2]["workers"][0]
                for name in ("alice", "admin")
            ]

            assert (await stage.request("/workers"))[0] == 401
            assert [row["current_session_id"] for row in seen] == [None, session_id]
            assert [row["port"] is None for row in seen] == [True, False]
