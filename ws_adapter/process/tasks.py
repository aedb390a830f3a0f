"""Reliable cancellation of tasks."""

import asyncio
from typing import Any, Final

_AGAIN_S: Final = 0.2


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task repeatedly until it is over, since an awaited call may mistake a cancellation for its own
    timeout."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_S)
