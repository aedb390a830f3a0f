"""Recordings over HTTP: each caller lists, fetches and deletes their own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import CLOSE, append
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, running_adapter
from tests.ws_adapter.web.test_http1 import fetch

API = "/api/sessions"


async def record(stage: Stage, **options: Any) -> str:
    async with stage.client(**options) as client:
        created = await client.begin()
        await client.send(append(1))
        await client.expect("response.output.delta")
        await client.send(CLOSE)
        await client.rest()
    name = str(created["recording_session_id"])
    await until_ended(stage, name, options.get("additional_headers"))
    return name


async def listed(stage: Stage, headers: dict[str, str] | None = None) -> Any:
    return json.loads((await fetch(stage, API, headers=headers))[2])


async def until_ended(stage: Stage, name: str, headers: dict[str, str] | None = None) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status, _, body = await fetch(stage, f"{API}/{name}", headers=headers)
            if status == 200 and "ended_at" in (told := json.loads(body)):
                return told
            await asyncio.sleep(0.01)


@asynccontextmanager
async def library(recordings: Path | None, **options: Any) -> AsyncIterator[Stage]:
    async with running_worker(ScriptedEngine(listen(), slots=4, repeat=True), slots=4) as worker:
        async with running_adapter(worker.address, recordings=recordings, **options) as stage:
            yield stage


async def test_recording_is_listed_fetched_in_parts_and_deleted(tmp_path: Path) -> None:
    async with library(tmp_path) as stage:
        name = await record(stage)
        summary = await until_ended(stage, name)
        page = await listed(stage)
        status, _, stream = await fetch(stage, f"{API}/{name}/recording")
        whole = (await fetch(stage, f"{API}/{name}/assets/up.wav"))[2]
        part = await fetch(stage, f"{API}/{name}/assets/up.wav", headers={"Range": "bytes=4-11"})
        head = await fetch(stage, f"{API}/{name}/assets/up.wav", "HEAD")

        assert [one["recording_id"] for one in page["sessions"]] == [name]
        assert {file["path"] for file in summary["files"]} >= {"meta.json", "stream.jsonl", "up.wav"}
        assert status == 200
        assert json.loads(stream.splitlines()[0])["frame"] == {"type": "session.queue_done"}
        assert whole == (tmp_path / name / "up.wav").read_bytes()
        assert (part[0], part[2]) == (206, whole[4:12])
        assert part[1]["content-range"] == f"bytes 4-11/{len(whole)}"
        assert (head[0], head[2], head[1]["content-length"]) == (200, b"", str(len(whole)))

        assert (await fetch(stage, f"{API}/{name}", "DELETE"))[0] == 200
        assert not (tmp_path / name).exists()
        assert (await fetch(stage, f"{API}/{name}", "DELETE"))[0] == 404
        assert (await listed(stage))["total"] == 0


async def test_key_sees_its_own_recordings_and_an_admin_all(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "bob", "admin")
    recordings = tmp_path / "recordings"
    async with library(recordings, auth="keys", keys=keys.path) as stage:
        names = {}
        for who in ("alice", "bob"):
            names[who] = await record(stage, additional_headers=keys.bearer(who))
        seen = {
            who: {one["recording_id"] for one in (await listed(stage, keys.bearer(who)))["sessions"]}
            for who in ("alice", "bob", "admin")
        }
        paths = ("", "/recording", "/assets/up.wav", "/assets/meta.json")
        foreign = [
            (await fetch(stage, f"{API}/{names['alice']}{path}", headers=keys.bearer("bob")))[0]
            for path in paths
        ]
        deleted = await fetch(stage, f"{API}/{names['alice']}", "DELETE", keys.bearer("bob"))

        assert seen["alice"] == {names["alice"]}
        assert seen["bob"] == {names["bob"]}
        assert seen["admin"] == set(names.values())
        assert foreign == [404] * len(paths)
        assert deleted[0] == 404
        assert (recordings / names["alice"] / "up.wav").exists()
        assert (await fetch(stage, API))[0] == 401
        admins = await fetch(stage, f"{API}/{names['alice']}", "DELETE", keys.bearer("admin"))
        assert admins[0] == 200


async def test_running_session_keeps_its_recording(tmp_path: Path) -> None:
    async with library(tmp_path) as stage, stage.client() as client:
        name = (await client.begin())["recording_session_id"]
        async with asyncio.timeout(PATIENCE_S):
            while (await listed(stage))["total"] == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await fetch(stage, f"{API}/{name}", "DELETE"))[0] == 409
        await client.send(append(1))
        await client.expect("response.output.delta")


async def test_path_that_is_no_recording_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret")
    recordings = tmp_path / "recordings"
    async with library(recordings) as stage:
        name = await record(stage)
        (recordings / name / "up").mkdir(exist_ok=True)
        (recordings / name / "up" / "000001-1.wav").symlink_to(tmp_path / "keys")
        for path, status in {
            f"/{name}/assets/up/000001-1.wav": 404,
            "/../../etc/passwd": 404,
            "/nothing": 404,
            f"/{name}/assets/../../keys": 404,
            f"/{name}/assets/..%2f..%2fkeys": 404,
            f"/{name}/assets//etc/passwd": 404,
            f"/{name}/assets/up/link.wav": 404,
            f"/{name}/assets/": 404,
            f"/{name}/other": 404,
            "?limit=0": 400,
            "?limit=1001": 400,
            "?offset=-1": 400,
        }.items():
            assert (await fetch(stage, API + path))[0] == status, path
        for bad in ("bytes=-5", "bytes=5-2", "bytes=0-1,3-4", "lines=1-2", "bytes=99999999999-"):
            assert (await fetch(stage, f"{API}/{name}/recording", headers={"Range": bad}))[0] == 416, bad
        assert (await fetch(stage, API, headers={"X-Forwarded-For": "203.0.113.5"}))[0] == 403, "no keys"


async def test_no_recordings_no_route() -> None:
    async with library(None) as stage:
        assert (await fetch(stage, API))[0] == 404


async def test_crowd_that_asks_for_recordings_disturbs_no_conversation(tmp_path: Path) -> None:
    """Attack: as many requests at once as the address may send, while a session talks and is recorded."""
    async with library(tmp_path) as stage:
        name = await record(stage)
        async with stage.client() as client:
            await client.begin()
            asking = [
                asyncio.create_task(fetch(stage, f"{API}/{name}/assets/up.wav" if i % 2 else API))
                for i in range(150)
            ]
            for _ in range(5):
                await client.send(append(1))
                assert (await client.expect("response.output.delta"))["kind"] == "listen"
            statuses = {status for status, _, _ in await asyncio.gather(*asking)}
        assert statuses <= {200, 429, 503}
        assert 200 in statuses
