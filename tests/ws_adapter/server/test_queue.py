"""The queue over HTTP: who waits, one's own place, and giving it up."""

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import codes
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import ManualClock, Stage, running_adapter, serving


@asynccontextmanager
async def one_slot(clock: ManualClock | None = None, **options: Any) -> AsyncIterator[Stage]:
    async with serving(ScriptedEngine(listen(), slots=1), clock=clock, **options) as stage:
        yield stage


async def test_a_worker_without_time_for_another_session_leaves_it_in_the_queue_until_it_has() -> None:
    async with running_worker(ScriptedEngine(listen(), slots=4), slots=4) as worker:
        admission, has_time = worker.worker.admission, True
        admission.has_time = lambda: has_time  # type: ignore[method-assign]
        async with (
            running_adapter(worker.address) as stage,
            stage.client("/ws/duplex/adx_first") as first,
        ):
            await first.expect("queue_done")
            has_time = False
            async with stage.client("/ws/duplex/adx_second") as second:
                await second.expect("queued")
                _, _, body = await stage.request("/api/queue")
                assert len(body["running_tasks"]) == 1
                assert [item["position"] for item in body["items"]] == [1]
                has_time = True
                await second.expect("queue_done")
                _, _, body = await stage.request("/api/queue")
                assert len(body["running_tasks"]) == 2


async def test_queue_lists_waiting_and_running_sessions() -> None:
    clock = ManualClock()
    async with one_slot(clock) as stage:
        async with stage.client("/ws/duplex/adx_first") as first, stage.client() as second:
            await first.expect("queue_done")
            await second.expect("session.queued")
            async with stage.client("/ws/duplex/omni_third") as third:
                await third.expect("queued")
                await clock.advance(15)

                _, _, body = await stage.request("/api/queue/")

                assert body["queue_length"] == 2
                waiting, behind = body["items"]
                assert (waiting["ticket_id"], waiting["session_id"]) == (None, None)
                assert (waiting["request_type"], waiting["position"]) == ("audio_duplex", 1)
                assert (waiting["estimated_wait_s"], waiting["wait_elapsed_s"]) == (15.0, 15.0)
                assert waiting["estimate_is_guess"] is True
                assert (behind["ticket_id"], behind["session_id"]) == (None, None)
                assert behind["request_type"] == "omni_duplex"
                assert (behind["position"], behind["estimated_wait_s"]) == (2, 45.0)
                [running] = body["running_tasks"]
                assert running["worker_id"].endswith("/0")
                assert running["request_type"] == "audio_duplex"
                assert (running["elapsed_s"], running["estimated_remaining_s"]) == (15.0, 15.0)
                assert running["estimate_is_guess"] is True
                for moment in (waiting["enqueued_at"], running["started_at"]):
                    started = datetime.datetime.fromisoformat(moment).timestamp()
                    assert started == pytest.approx(clock.unix() - 15, abs=0.001)


async def test_a_stranger_can_neither_list_nor_give_up_the_places_of_others() -> None:
    """Attack: without keys, whoever reaches the adapter took every place from the list and gave it up."""
    async with one_slot(allow_anonymous=True) as stage, stage.client() as first, stage.client() as second:
        await first.expect("session.queue_done")
        ticket_id = (await second.expect("session.queued"))["ticket_id"]

        answers = [await stage.request(path) for path in ("/api/queue", "/status")]

        assert ticket_id not in json.dumps(answers)
        for found in [item["ticket_id"] for item in answers[0][2]["items"]]:
            assert (await stage.request(f"/api/queue/{found}", "DELETE"))[0] == 404
        await first.send({"type": "session.close"})
        await second.expect_until("session.queue_done")


async def test_an_admin_lists_tickets_and_gives_them_up(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "admin")
    headers = keys.bearer("alice")
    async with (
        one_slot(auth="keys", keys=keys.path) as stage,
        stage.client(additional_headers=headers) as first,
        stage.client(additional_headers=headers) as second,
    ):
        await first.expect("session.queue_done")
        ticket_id = (await second.expect("session.queued"))["ticket_id"]

        _, _, body = await stage.request("/api/queue", headers=keys.bearer("admin"))

        [waiting] = body["items"]
        assert waiting["ticket_id"] == ticket_id
        assert waiting["session_id"].startswith("sess_")
        assert (await stage.request(f"/api/queue/{ticket_id}", "DELETE"))[0] == 200
        assert codes(await second.rest()) == ["queue_cancelled"]


async def test_cancelled_or_granted_ticket_cannot_be_cancelled() -> None:
    async with one_slot() as stage, stage.client() as first:
        await first.expect("session.queue_done")
        async with stage.client() as second:
            ticket_id = (await second.expect("session.queued"))["ticket_id"]
            requests = [stage.request(f"/api/queue/{ticket_id}", "DELETE") for _ in range(2)]

            answers = sorted(
                [(status, body["success"]) for status, _, body in await asyncio.gather(*requests)]
            )

            assert answers == [(200, True), (404, False)]
            assert codes(await second.rest()) == ["queue_cancelled"]
        async with stage.client() as third:
            ticket_id = (await third.expect("session.queued"))["ticket_id"]
            await first.send({"type": "session.close"})
            await third.expect_until("session.queue_done")

            status, _, body = await stage.request(f"/api/queue/{ticket_id}", "DELETE")

            assert (status, body["success"]) == (404, False)
            await third.send({"type": "session.init", "payload": {}})
            await third.expect("session.created")
