"""Tasks that must end."""

import asyncio
from typing import Any, Final

_AGAIN_S: Final = 0.2


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task repeatedly until it is over: an awaited call may take a cancellation for its own
    timeout."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_S)
