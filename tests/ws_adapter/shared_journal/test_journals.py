"""Journals in Redis: what they hold, what a slow Redis costs, and who may take one."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.redis import connect
from tests.support.redis_server import RedisServer
from tests.ws_adapter.support.stage import until
from ws_adapter.shared_journal.journals import MOST_CLAIMED, SharedJournals, Unclaimed
from ws_adapter.shared_journal.link import MOST_UNANSWERED, PREFIX, JournalLink
from ws_adapter.shared_journal.record import FORMAT, Event, Settings, StoredJournal, UnitAnswer, encode
from ws_adapter.shared_journal.stream import JournalStream, SessionSnapshot
from ws_adapter.worker.journal import KeptUnit, Parts

PATH = "realtime/audio"
SETTINGS = Settings(FORMAT, "label", b"config")


class Talk:
    """A session that changes at random; its journal may keep three units and five events."""

    is_settled = True

    def __init__(self, seed: int, size: int = 10) -> None:
        self.rng = random.Random(seed)
        self.size = size
        self.units: dict[int, KeptUnit] = {}
        self.events: dict[int, Parts] = {}
        self.sent = 0
        self.state = 0
        self.nonces = (b"nonce", b"")
        self.changes = 0
        self.lost = 0
        self.settings = encode(SETTINGS)
        self.blobs: dict[int, bytes] = {}
        self._number = 0

    def snapshot(self) -> SessionSnapshot | None:
        newest = max(self.events, default=self.sent)
        return SessionSnapshot(
            self.settings,
            b"state %d" % self.state,
            dict(self.blobs),
            self.nonces,
            list(self.units.values()),
            self.changes,
            self.sent,
            min(self.events, default=newest + 1),
            newest,
            self.events.__getitem__,
        )

    def taken_elsewhere(self) -> None:
        self.lost += 1

    def change(self) -> None:
        """A unit comes, is answered or is taken back; events come, are sent or are taken back; data come and
        go."""
        self.state += 1
        self.changes += 1
        self._number += 1
        self.units[self._number] = KeptUnit(self._number, (self.rng.randbytes(self.size),))
        for kept in self.units.values():
            if self.rng.random() < 0.3:
                record = pb.UnitRecord(end=pb.UNIT_END_LISTEN, text_draws=self.state)
                kept.record, kept.samples = record.SerializeToString(), self.state
        self.blobs[self._number] = b"blob %d" % self._number
        while len(self.blobs) > 4:
            del self.blobs[self.rng.choice(list(self.blobs))]
        while len(self.units) > 3:
            del self.units[min(self.units)]
        newest = max(self.events, default=self.sent)
        if newest > self.sent and self.rng.random() < 0.2:
            del self.events[newest]
            newest -= 1
        for number in range(newest + 1, newest + 1 + self.rng.randrange(3)):
            self.events[number] = (b"event %d.%d" % (number, self.state),)
        self.sent = self.rng.randint(self.sent, max(self.events, default=self.sent))
        while len(self.events) > 5 and min(self.events) <= self.sent:
            del self.events[min(self.events)]

    def expected(self) -> tuple[bytes, dict[int, tuple[bytes, bytes]], dict[int, Parts], dict[int, bytes]]:
        units = {kept.number: (b"".join(kept.parts), kept.record) for kept in self.units.values()}
        return b"state %d" % self.state, units, self.events, self.blobs


def found(
    stored: StoredJournal,
) -> tuple[bytes, dict[int, tuple[bytes, bytes]], dict[int, Parts], dict[int, bytes]]:
    units = {number: (b"".join(kept.parts), kept.record) for number, kept in stored.units.items()}
    return stored.state, units, stored.events, stored.blobs


@asynccontextmanager
async def journals(
    server: RedisServer, *names: str, most_unanswered: int = MOST_UNANSWERED, most_claimed: int = MOST_CLAIMED
) -> AsyncIterator[list[SharedJournals]]:
    """Yield the journals of adapters with these names."""
    async with AsyncExitStack() as exits:
        made = []
        for name in names:
            link = JournalLink(connect(server.url, is_text=False), most_unanswered=most_unanswered)
            shared = SharedJournals(link, name, 30.0, most_claimed)
            shared.start()
            exits.push_async_callback(shared.close)
            await until(lambda link=link: link.is_open)
            made.append(shared)
        yield made


@asynccontextmanager
async def written(
    server: RedisServer, talk: Talk, *names: str, **options: int
) -> AsyncIterator[tuple[JournalStream, list[SharedJournals]]]:
    """Yield the journal of a session, all of it in Redis, and the journals of adapters; the first has it."""
    async with journals(server, *names, **options) as made:
        stream = made[0].open("s", PATH, talk)
        talk.change()
        stream.commit()
        await settled(made[0], stream)
        yield stream, made


async def claim(
    shared: SharedJournals, talk: Talk, token: bytes = b"nonce", **how: object
) -> StoredJournal | Unclaimed:
    event = max(talk.events, default=talk.sent)
    words = {"path": PATH, "last_event": event, "dead": "one", **how}
    return await shared.claim("s", (token, b"next"), **words)  # type: ignore[arg-type]


async def settled(shared: SharedJournals, stream: JournalStream) -> None:
    """Wait until Redis has said that it has everything."""
    await until(lambda: not stream.is_behind and not shared._link.unanswered_bytes)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most_unanswered", [MOST_UNANSWERED, 300])
async def test_other_adapter_finds_the_session_as_it_was_last(
    seed: int, most_unanswered: int, redis_server: RedisServer
) -> None:
    talk = Talk(seed)
    async with journals(redis_server, "one", "two", most_unanswered=most_unanswered) as (one, two):
        stream = one.open("s", PATH, talk)
        for _ in range(60):
            talk.change()
            if talk.rng.random() < 0.1:
                talk.settings = encode(SETTINGS)  # of another worker
            stream.commit()
            if talk.rng.random() < 0.5:
                await asyncio.sleep(0)
        await settled(one, stream)
        assert (one.gaps > 0) is (most_unanswered == 300)
        length = int(redis_server.command("XLEN", f"{PREFIX}stream:s").removeprefix(b":"))
        assert length <= 1 + 2 * len(talk.units) + len(talk.events) + len(talk.blobs)
        stored = await claim(two, talk)
        assert isinstance(stored, StoredJournal)
        assert found(stored) == talk.expected()
        assert stored.settings == SETTINGS
        assert not stored.was_handed_over


async def test_record_that_redis_lost_has_the_journal_written_anew(redis_server: RedisServer) -> None:
    talk = Talk(1)
    async with written(redis_server, talk, "one", "two") as (stream, (one, two)):
        redis_server.command("DEL", f"{PREFIX}session:s", f"{PREFIX}stream:s")
        talk.change()
        stream.commit()
        await until(lambda: one.gaps == 1)
        await settled(one, stream)
        stored = await claim(two, talk)
        assert isinstance(stored, StoredJournal)
        assert found(stored) == talk.expected()


async def test_frozen_redis_costs_no_more_than_the_bound_and_no_wait(redis_server: RedisServer) -> None:
    """An hour of commits within one pass of the event loop, to a Redis that answers nothing."""
    talk = Talk(1, size=64_000)
    async with journals(redis_server, "one", most_unanswered=2**20) as (one,):
        link = one._link
        stream = one.open("s", PATH, talk)
        redis_server.pause()
        try:
            for _ in range(3600):
                talk.change()
                stream.commit()
                assert link.unanswered_bytes <= 2**20
            connection = link._connection
            assert connection is not None
            assert connection._writer is not None
            assert connection._writer.transport.get_write_buffer_size() <= 2**20
            assert one.behind == 1
            await until(lambda: not link.is_open)
            assert link.unanswered_bytes == 0
        finally:
            redis_server.resume()
        await settled(one, stream)
        assert one.behind == 0


async def test_one_of_many_claims_wins(redis_server: RedisServer) -> None:
    talk = Talk(1)
    async with written(redis_server, talk, "one", "two", "three") as (_, (_, two, three)):
        answers = await asyncio.gather(*(claim(shared, talk) for shared in [two, three] * 10))
        assert sum(isinstance(answer, StoredJournal) for answer in answers) == 1
        assert {answer for answer in answers if isinstance(answer, Unclaimed)} <= set(Unclaimed)


async def test_session_of_a_dead_adapter_is_taken_with_the_right_token(redis_server: RedisServer) -> None:
    talk = Talk(1)
    talk.nonces = (b"nonce", b"used")
    async with journals(redis_server, "one", "two") as (one, two):
        stream = one.open("s", PATH, talk)
        for _ in range(20):
            talk.change()
        stream.commit()
        await settled(one, stream)
        assert await claim(two, talk, dead="") is Unclaimed.ALIVE
        assert await claim(two, talk, dead="three") is Unclaimed.ALIVE
        assert await claim(two, talk, b"other") is Unclaimed.UNKNOWN
        assert await claim(two, talk, path="duplex/audio") is Unclaimed.UNKNOWN
        assert await claim(two, talk, last_event=max(talk.events) + 1) is Unclaimed.BEHIND
        assert await claim(two, talk, last_event=min(talk.events) - 2) is Unclaimed.UNKNOWN
        assert isinstance(await claim(two, talk, b"used"), StoredJournal), "nothing came since it was used"
        assert await claim(two, talk) is Unclaimed.UNKNOWN


@pytest.mark.parametrize("is_handed_over", [False, True])
async def test_unanswered_claim_expires_after_two_seconds(
    is_handed_over: bool, redis_server: RedisServer
) -> None:
    """The client comes back to the same adapter, or to another one, and gets its session there."""
    talk = Talk(1)
    async with written(redis_server, talk, "one", "two", "three") as (stream, (one, two, three)):
        if is_handed_over:
            assert stream.hand_over()
            assert not stream.hand_over(), "it is gone"
            await until(lambda: not one._link.unanswered_bytes)
        for shared in (two, two, three):
            # The first adapter lives on where it has handed the session over.
            stored = await claim(shared, talk, dead="" if is_handed_over else "one")
            assert isinstance(stored, StoredJournal)
            assert stored.was_handed_over is is_handed_over
            assert found(stored) == talk.expected()
            assert await claim(two, talk) is await claim(three, talk) is Unclaimed.ALIVE
            redis_server.command("HSET", f"{PREFIX}session:s", "claimed", "0")
        taken = three.open("s", PATH, talk, is_known=True)
        taken.commit()
        await settled(three, taken)
        assert await claim(two, talk, dead="one") is Unclaimed.ALIVE
        assert await claim(three, talk, dead="one") is Unclaimed.UNKNOWN


async def test_adapter_cannot_rewrite_session_claimed_by_another(redis_server: RedisServer) -> None:
    talk = Talk(1)
    async with written(redis_server, talk, "one", "two") as (stream, (one, two)):
        assert isinstance(await claim(two, talk), StoredJournal)
        two.give_up("s")
        talk.change()
        stream.commit()
        await until(lambda: talk.lost == 1)
        again = one.open("s", PATH, talk)
        again.commit()
        await until(lambda: talk.lost == 2)
        assert await claim(two, talk, dead="one") is Unclaimed.UNKNOWN


async def test_adapter_without_redis_hands_nothing_over(redis_server: RedisServer) -> None:
    async with journals(redis_server, "one") as (one,):
        stream = one.open("s", PATH, Talk(1))
        redis_server.stop()
        await until(lambda: not one._link.is_open)
        assert not stream.hand_over()


GARBAGE = {
    "no message": b"\xc1",
    "another entry": encode([9, 1, b"x"]),
    "torn": encode(Event(1, b"x" * 100))[:50],
    "text in place of a number": encode([2, "one", b"x"]),
    "answer without input": encode(UnitAnswer(99, b"", 0)),
    "nested": encode([[[[[[[[]]]]]]]]),
    "nested without end": b"\x91" * 100_000,
    "empty": b"",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_in_a_journal_costs_its_session_and_leaves_nothing(
    name: str, redis_server: RedisServer
) -> None:
    talk = Talk(1)
    async with written(redis_server, talk, "one", "two") as (_, (_, two)):
        redis_server.command("XADD", f"{PREFIX}stream:s", "*", "d", GARBAGE[name])
        assert await claim(two, talk) is Unclaimed.UNKNOWN
        await until(lambda: redis_server.command("EXISTS", f"{PREFIX}stream:s") == b":0")
        assert await claim(two, talk) is Unclaimed.UNKNOWN


async def test_settings_of_another_format_are_not_taken(redis_server: RedisServer) -> None:
    talk = Talk(1)
    talk.settings = encode(Settings(FORMAT + 1, "label", b""))
    async with written(redis_server, talk, "one", "two") as (_, (_, two)):
        assert await claim(two, talk) is Unclaimed.UNKNOWN


async def test_journal_that_is_too_large_is_not_read(redis_server: RedisServer) -> None:
    talk = Talk(1)
    async with written(redis_server, talk, "one", "two", most_claimed=10_000) as (_, (_, two)):
        entry = redis_server.command("XADD", f"{PREFIX}stream:s", "*", "d", bytes(10_000)).split()[-1]
        assert await claim(two, talk) is Unclaimed.UNKNOWN
        redis_server.command("XDEL", f"{PREFIX}stream:s", entry)
        assert isinstance(await claim(two, talk), StoredJournal)
