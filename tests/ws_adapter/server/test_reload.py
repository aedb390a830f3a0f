"""SIGHUP: settings, keys and certificate are read again."""

import asyncio
import dataclasses
import json
import signal
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.process import adapter_process
from tests.ws_adapter.support.stage import PATIENCE_S
from ws_adapter.options import RELOADED, AdapterOptions


async def test_without_anything_to_read_again_sighup_ends_the_process() -> None:
    async with adapter_process("127.0.0.1:1") as (process, _):
        process.send_signal(signal.SIGHUP)

        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == -signal.SIGHUP


async def test_sighup_applies_settings_of_the_file_and_keeps_all_where_it_is_invalid(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"

    async def about() -> Any:
        return json.loads(await asyncio.to_thread(fetch, f"{address}/page/about.json"))

    async def connects() -> bool:
        url = address.replace("http", "ws") + "/v1/realtime?mode=audio"
        try:
            async with connect(url, origin=Origin("https://example.org")):
                return True
        except InvalidStatus:
            return False

    async def reload(told: str) -> str:
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while told not in (line := (await process.stderr.readline()).decode()):
                assert line
        return line

    file.write_text('[adapter]\nallowed_origins = ["https://other.org"]\nsession_limit_video_s = 100\n')
    async with (
        running_worker(ScriptedEngine(listen())) as worker,
        adapter_process(
            worker.address,
            *("--config", str(file), "--session-limit-audio-s", "50"),
            errors=asyncio.subprocess.PIPE,
        ) as (process, address),
    ):
        assert (await about())["limits_s"] == {"audio": 50, "video": 100}
        assert not await connects()

        changed = (
            '[adapter]\nallowed_origins = ["https://example.org"]\nsession_limit_video_s = 200\n'
            'session_limit_audio_s = 60\nadmin_host = "::1"\nlog_level = "debug"\n'
        )
        file.write_text(changed)
        restart = await reload("settings need a restart")
        assert "settings need a restart: admin_host" in restart
        assert (await about())["limits_s"] == {"audio": 50, "video": 200}
        assert await connects()

        file.write_text(changed.replace("200", "300") + "max_cpu = -1\n")
        refusal = await reload("nothing changes")
        assert f"{file}:7: adapter.max_cpu cannot be used" in refusal
        assert (await about())["limits_s"] == {"audio": 50, "video": 200}

        file.unlink()
        assert "does not exist" in await reload("nothing changes")
        assert (await about())["limits_s"] == {"audio": 50, "video": 200}
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            _, exit_code = await asyncio.gather(process.stderr.read(), process.wait())
        assert exit_code == 0


def test_every_setting_that_is_applied_is_an_option() -> None:
    assert {field.name for field in dataclasses.fields(AdapterOptions)} >= RELOADED


def fetch(url: str) -> bytes:
    with urlopen(url, timeout=PATIENCE_S) as response:
        return cast(bytes, response.read())
