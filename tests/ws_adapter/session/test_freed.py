"""Reference counting frees ended sessions: a garbage collection of all sessions would stop the event loop."""

import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import pytest

from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, write
from tests.ws_adapter.resume.test_dialects import TALKS
from tests.ws_adapter.resume.test_resuming import detached, stage_of, url_of
from tests.ws_adapter.support.stage import Client, Stage, until
from ws_adapter.dispatch.ticket import QueuedTicket
from ws_adapter.resume.connection import ResumableConnection
from ws_adapter.session.session import Session
from ws_adapter.session.slot import Slot
from ws_adapter.web.websocket import PublicConnection
from ws_adapter.worker.session_streams import SessionStreams
from ws_adapter.worker.transport.call import Call

OWN: Final = (
    Session, Slot, SessionStreams, Call, QueuedTicket, PublicConnection, ResumableConnection,
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Nothing but reference counting frees objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> list[str]:
    """The types of objects of sessions."""
    return [type(it).__name__ for it in gc.get_objects() if issubclass(type(it), OWN)]


async def close(stage: Stage, client: Client) -> None:
    await client.socket.close()


async def vanish(stage: Stage, client: Client) -> None:
    client.vanish()


async def shut_down(stage: Stage, client: Client) -> None:
    for _ in range(2):
        stage.adapter.interrupt()


@pytest.mark.parametrize("end", [close, vanish, shut_down])
@pytest.mark.parametrize("name", TALKS)
async def test_session_leaves_no_reference_cycles(
    name: str, end: Callable[[Stage, Client], Awaitable[None]]
) -> None:
    talk = TALKS[name]
    engine = ScriptedEngine(write("One"), info=EVERYTHING, repeat=True)
    async with stage_of(engine, resume_window_s=0) as stage:
        async with stage.client(stage.address.replace("http://", "ws://") + talk.path) as client:
            await client.send(*talk.sends, *talk.sends_later)
            await client.expect_until(talk.ends)
            await end(stage, client)
            await client.socket.wait_closed()
            await until(lambda: not left())


async def test_resumed_session_leaves_no_reference_cycles() -> None:
    engine = ScriptedEngine(write("One"), info=EVERYTHING, repeat=True)
    async with stage_of(engine) as stage:
        async with stage.client() as client:
            token = (await client.begin())["resume"]["token"]
            client.vanish()
        await detached(stage)
        async with stage.client(url_of(stage, token, len(client.events))) as back:
            await back.expect("session.resumed")
            await back.socket.close()
            await until(lambda: not left())
