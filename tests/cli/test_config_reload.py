"""Tests of a worker that reloads its settings file on SIGHUP."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.support.processes import line_with
from tests.support.patience import START_S


@pytest.mark.long
async def test_worker_reload_applies_drain_timeout_and_lists_restart_settings(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text("[worker]\ndrain_timeout_s = 20\nslots = 1\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "antiphon_command", "worker", "--listen", f"unix:{tmp_path / 'worker.sock'}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"ANTIPHON_CONFIG": str(file)},
    )
    try:
        await line_with(process.stdout, "worker ready")

        file.write_text('[worker]\ndrain_timeout_s = 10\nslots = 2\nlisten = "127.0.0.1:0"\n')
        process.send_signal(signal.SIGHUP)
        assert "settings applied: drain_timeout_s" in await line_with(process.stderr, "settings applied")
        restart = await line_with(process.stderr, "need a restart")
        assert "settings need a restart: slots" in restart
        assert "listen" not in restart  # a flag gives it

        file.write_text("[worker]\ndrain_timeout_s = 5\nslots = 0\n")
        process.send_signal(signal.SIGHUP)
        refusal = await line_with(process.stderr, "nothing changes")
        assert f"{file}:3: worker.slots cannot be used" in refusal

        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_S):
            await asyncio.gather(process.communicate(), process.wait())
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
