"""Clients that come back for the sessions of a dead adapter, and ask for events that Redis does not have."""

import asyncio
from types import SimpleNamespace
from typing import cast

from tests.support.redis_server import RedisServer
from tests.ws_adapter.shared_journal.test_journals import Talk, journals, settled
from tests.ws_adapter.support.stage import until
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import Verdict
from ws_adapter.resume.connection import path_of
from ws_adapter.resume.request import ResumeRequest
from ws_adapter.resume.tokens import ResumeTokens, holder_of
from ws_adapter.server.takeover import MOST_AT_ONCE, Takeovers
from ws_adapter.session.journal_writer import SavedSession, TakenSession
from ws_adapter.shared_journal.journals import SharedJournals
from ws_adapter.shared_journal.record import encode
from ws_adapter.shared_journal.stream import SessionSnapshot
from ws_adapter.web.routes import Dialect, Selection
from ws_adapter.web.websocket import PublicConnection

SELECTION = Selection(Dialect.REALTIME, Mode.AUDIO)
CONNECTION = cast(PublicConnection, SimpleNamespace(key=None, dead_owner="one"))


class Session(Talk):
    """A session of an adapter, and the token that opens it."""

    def __init__(self, tokens: ResumeTokens, name: str) -> None:
        super().__init__(1)
        self.name = name
        self.token, nonce = tokens.make(name, holder_of(None))
        self.nonces = (nonce, b"")
        self.events[1] = (b"an event",)

    def snapshot(self) -> SessionSnapshot | None:
        snapshot = super().snapshot()
        assert snapshot is not None
        return snapshot._replace(state=encode(SavedSession(0, b"", None)))

    async def take(self, takeovers: Takeovers, last_event: int) -> TakenSession | Verdict:
        return await takeovers.take(CONNECTION, ResumeRequest(self.token, last_event), SELECTION)


async def test_records_that_redis_reads_behind_the_request_are_waited_for(redis_server: RedisServer) -> None:
    tokens = ResumeTokens()
    async with journals(redis_server, "one", "two") as (one, two):
        session = Session(tokens, "s")
        stream = one.open("s", path_of(SELECTION), session)
        stream.commit()
        await settled(one, stream)
        asked = counting(two)
        taking = asyncio.create_task(session.take(Takeovers(tokens, two), 2))
        await until(lambda: len(asked) == 1)
        session.events[2] = (b"the last event",)
        stream.commit()
        taken = await taking
    assert isinstance(taken, TakenSession)
    assert taken.events == session.events


async def test_takeovers_with_future_event_numbers_block_no_other_takeover(
    redis_server: RedisServer,
) -> None:
    tokens = ResumeTokens()
    async with journals(redis_server, "one", "two") as (one, two):
        hostile, neighbour = Session(tokens, "hostile"), Session(tokens, "neighbour")
        for session in (hostile, neighbour):
            stream = one.open(session.name, path_of(SELECTION), session)
            stream.commit()
            await settled(one, stream)
        takeovers, asked = Takeovers(tokens, two), counting(two)
        asking = [asyncio.create_task(hostile.take(takeovers, 10**6)) for _ in range(MOST_AT_ONCE)]
        await until(lambda: len(asked) >= MOST_AT_ONCE)
        assert isinstance(await neighbour.take(takeovers, 1), TakenSession)
        assert set(await asyncio.gather(*asking)) == {errors.RESUME_FAILED}


def counting(shared: SharedJournals) -> list[str]:
    """Return the sessions that an adapter has asked Redis for, which grow with each answer."""
    asked, ask = list[str](), shared._link.ask

    async def counted(function: str, *words: object) -> object:
        answer = await ask(function, *words)
        asked.append(str(words[0]))
        return answer

    shared._link.ask = counted  # type: ignore[method-assign]
    return asked
