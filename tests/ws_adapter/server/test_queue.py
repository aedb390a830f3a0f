"""The queue over HTTP: who waits, one's own place, and giving it up."""

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


async def test_queue_lists_times_of_its_waiting_and_running_sessions() -> None:
    """The conformance tests check the form of the view."""
    clock = ManualClock()
    async with one_slot(clock) as stage, stage.client("/ws/duplex/omni_first") as first:
        await first.expect("queue_done")
        async with stage.client() as second:
            await second.expect("session.queued")
            await clock.advance(15)
            _, _, body = await stage.request("/api/queue/")

    [waiting], [running] = body["items"], body["running_tasks"]
    assert (waiting["request_type"], running["request_type"]) == ("audio_duplex", "omni_duplex")
    assert waiting["wait_elapsed_s"] == running["elapsed_s"] == 15.0
    for moment in (waiting["enqueued_at"], running["started_at"]):
        at = datetime.datetime.fromisoformat(moment).timestamp()
        assert at == pytest.approx(clock.unix() - 15, abs=0.001)


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
