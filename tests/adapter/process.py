"""An adapter as a process of its own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.adapter.stage import PATIENCE_S

ADMIT_ALL = ("--max-cpu", "0", "--max-loop-lag-ms", "0")
"""A machine that is busy with other tests must not turn clients away."""


@asynccontextmanager
async def adapter_process(
    worker: str, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    command = ["-m", "antiphon.cli", "adapter", "--port", "0", "--worker", worker, *ADMIT_ALL, *arguments]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(3 * PATIENCE_S):
            line = (await process.stdout.readline()).decode().strip()
        assert line.startswith("adapter ready on http://127.0.0.1:")
        yield process, line.removeprefix("adapter ready on ")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
