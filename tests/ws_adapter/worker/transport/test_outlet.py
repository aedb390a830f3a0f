"""What is put into an outlet reaches the transport in one piece, and nothing else does."""

import asyncio
from typing import Any, cast

from ws_adapter.process.byte_count import ByteCount
from ws_adapter.worker.transport.outlet import Outlet


class Wire:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)


async def written(*puts: tuple[bytes, bytes]) -> list[bytes]:
    wire = Wire()
    outlet = Outlet(ByteCount())
    outlet.open(cast(asyncio.Transport, cast(Any, wire)))
    for head, data in puts:
        outlet.put(head, data)
    await asyncio.sleep(0)
    outlet.close()
    return wire.writes


async def test_what_is_put_in_one_turn_of_the_loop_leaves_at_once() -> None:
    assert await written((b"head", b"data"), (b"next", b"more")) == [b"headdatanextmore"]


async def test_nothing_put_is_nothing_written() -> None:
    assert await written() == []
