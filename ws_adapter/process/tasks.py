"""Tasks that have to end."""

import asyncio
from typing import Any, Final

_AGAIN_S: Final = 0.2


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task until it is over: what it waits in may take the word for a timeout of its own."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_S)
