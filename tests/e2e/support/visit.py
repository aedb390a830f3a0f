"""One session at a worker, whose units are each answered before the next one is sent."""

from collections.abc import Iterable
from typing import Any

from tests.inference_service.support.caller import Caller, Content, UnitAnswers, channel_to


async def visit(worker: str, units: Iterable[Content], **config: Any) -> list[UnitAnswers]:
    async with channel_to(worker) as channel:
        caller = await Caller(channel).open()
        await caller.configure(**config)
        told = [await caller.unit(number, content) for number, content in enumerate(units, start=1)]
        await caller.half_close(*caller.calls)
    return told
