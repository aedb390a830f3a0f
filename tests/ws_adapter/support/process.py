"""An adapter as a process of its own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.ws_adapter.support.stage import PATIENCE_S

ADAPTER_OPTIONS = ("--max-cpu", "0", "--max-loop-lag-ms", "0", "--resume-window-s", "0")
"""A machine that is busy with other tests must not turn clients away, and a client that vanishes does so for
good, except where a test says how long it may stay away."""


_AS_FROM_A_TERMINAL = (
    "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Runs Python with its usual answer to SIGHUP, which `nohup` takes from all that it starts."""


@asynccontextmanager
async def adapter_process(
    worker: str, *arguments: str, errors: int | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    command = [
        "-m",
        "antiphon_command",
        "adapter",
        "--port",
        "0",
        "--worker",
        worker,
        *ADAPTER_OPTIONS,
        *arguments,
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _AS_FROM_A_TERMINAL, *command), stdout=asyncio.subprocess.PIPE, stderr=errors
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = (await process.stdout.readline()).decode().strip()
        assert line.startswith("adapter ready on http://127.0.0.1:")
        yield process, line.removeprefix("adapter ready on ")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
