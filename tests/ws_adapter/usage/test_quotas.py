"""Quotas of tenants: what is paid in advance, who is ended, and what attackers get out of it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.process.errors import DispatcherUnavailable, QuotaSpent
from ws_adapter.protocol.core.signals import NO_TIMINGS, Piece, Prefilled, Ready, UnitDone, UnitEnd
from ws_adapter.protocol.wire.events import InputTokenDetails, OutputTokenDetails, TokenUsage
from ws_adapter.usage import accounts as module
from ws_adapter.usage.accounts import BEAT_S, About, Accounts, Meter
from ws_adapter.usage.charge import SHORTEST_MS, SLICE_MS, SLICE_TOKENS
from ws_adapter.usage.store import DAY_S, LocalUsageStore, Take, Taken
from ws_adapter.usage.tenant import Quota, Tenant
from ws_adapter.usage.totals import MOST_TENANTS, Totals

ABOUT = About("sess_1", "chat", "chat", "websocket")
MINUTE = Tenant("alice", "a" * 64, Quota(seconds_per_day=60))
TOKENS = Tenant("bob", "b" * 64, Quota(tokens_per_day=5000))


class AwayBook(LocalUsageStore):
    """One whose answers come when the test says."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.is_cut = False
        self.waiting: list[tuple[Take, asyncio.Future[Taken]]] = []

    def take(self, take: Take) -> "asyncio.Future[Taken]":
        if not self.is_cut:
            return super().take(take)
        answer: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        self.waiting.append((take, answer))
        return answer

    def answer(self) -> None:
        self.is_cut = False
        waiting, self.waiting = self.waiting, []
        for take, answer in waiting:
            answer.set_result(super().take(take).result())


@dataclass
class Talk:
    """A session that holds a slot until its quota is spent, or it ends itself."""

    meter: Meter
    stack: ExitStack = field(default_factory=ExitStack)
    is_ended: bool = False

    def end(self, reason: str = "user_stop") -> None:
        self.is_ended = True
        self.stack.close()
        self.meter.end(reason)


class Bank:
    """Accounts with a clock that a test turns."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.usage_store = AwayBook(self.clock)
        self.accounts = Accounts(self.clock, Totals(), self.usage_store)

    async def talk(self, tenant: Tenant) -> Talk:
        meter = self.accounts.meter(tenant, ABOUT)
        talk = Talk(meter)
        meter.on_spent = talk.end
        try:
            await meter.admit()
        except BaseException:
            meter.end("quota_exceeded")
            raise
        talk.stack.enter_context(meter.slot("a model"))
        return talk

    def used(self, tenant: Tenant) -> tuple[int, int]:
        return self.usage_store._used.get(tenant.account, (0, 0))


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    bank = Bank()
    bank.accounts.start()
    yield bank
    await bank.accounts.close()


async def test_session_goes_on_to_the_end_of_its_quota_and_no_further(bank: Bank) -> None:
    talk = await bank.talk(MINUTE)
    await bank.clock.advance(59)
    assert not talk.is_ended
    await bank.clock.advance(1 + BEAT_S)
    assert talk.is_ended
    assert 60_000 <= bank.used(MINUTE)[0] <= 60_000 + 1000 * BEAT_S
    with pytest.raises(QuotaSpent):
        await bank.talk(MINUTE)


async def test_session_returns_unspent_quota(bank: Bank) -> None:
    talk = await bank.talk(MINUTE)
    await bank.clock.advance(4)
    assert bank.used(MINUTE)[0] == SLICE_MS
    talk.end()
    assert bank.used(MINUTE)[0] == 4000


async def test_one_key_spends_its_quota_while_the_other_talks_on(bank: Bank) -> None:
    spender, other = await bank.talk(MINUTE), await bank.talk(Tenant("carol", "c" * 64, Quota(600)))
    nobody = await bank.talk(Tenant("dave", "d" * 64))
    await bank.clock.advance(90)
    assert (spender.is_ended, other.is_ended, nobody.is_ended) == (True, False, False)
    other.end()
    nobody.end()


async def test_stampede_overspends_by_no_more_than_a_beat_of_each_slice_that_was_left(bank: Bank) -> None:
    """Attack: a tenant opens many sessions at once when hardly anything of its quota is left."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    first = await bank.talk(MINUTE)
    await bank.clock.advance(dice.uniform(20, 40))
    left_ms = 60_000 - bank.used(MINUTE)[0]
    answers = await asyncio.gather(*(bank.talk(MINUTE) for _ in range(1000)), return_exceptions=True)
    let_in = [answer for answer in answers if isinstance(answer, Talk)]
    await bank.clock.advance(60)
    slices = -(-left_ms // SLICE_MS)
    assert len(let_in) == slices
    assert all(talk.is_ended for talk in (first, *let_in))
    most_ms = 60_000 + (1 + slices) * (1000 * BEAT_S + SHORTEST_MS)
    assert 60_000 <= bank.used(MINUTE)[0] <= most_ms


async def test_two_that_start_together_do_not_spend_the_same_seconds(bank: Bank) -> None:
    """Attack: two sessions of one key begin at the same moment."""
    one, other = await asyncio.gather(bank.talk(MINUTE), bank.talk(MINUTE))
    await bank.clock.advance(28)
    assert [one.is_ended, other.is_ended] == [False, False]
    await bank.clock.advance(6)
    assert one.is_ended
    assert other.is_ended
    assert bank.used(MINUTE)[0] <= 60_000 + 2 * 1000 * BEAT_S


async def test_sessions_that_are_dropped_at_once_are_paid_for(bank: Bank) -> None:
    """Attack: a tenant opens and drops sessions, so that none of them lasts."""
    for _ in range(60):
        (await bank.talk(MINUTE)).end("disconnected")
    with pytest.raises(QuotaSpent):
        await bank.talk(MINUTE)
    assert bank.used(MINUTE)[0] == 60 * SHORTEST_MS


def tokens(heard: int, said: int = 0) -> TokenUsage:
    details = InputTokenDetails(heard, 0, 0, 0), OutputTokenDetails(said, 0)
    return TokenUsage(heard + said, heard, said, *details)


def prefilled(heard: int) -> Prefilled:
    return Prefilled(1, NO_TIMINGS, tokens=tokens(heard))


WORD = Piece(1, "word ", b"")


@pytest.mark.parametrize(
    ("signals", "in_background", "used"),
    [
        # Attack: a tenant reads the answer and leaves before the worker says how many tokens it had.
        ([prefilled(900), *[WORD] * 300], [], 1200),
        ([prefilled(40), WORD, UnitDone(1, UnitEnd.TURN, 50, tokens(40, 10))], [], 50),
        ([Ready(50, 8192, 2, True), prefilled(100)] * 2, [], 300),
        ([prefilled(100)], [prefilled(100), Ready(0, 8192, 2, False)], 200),
    ],
    ids=["dropped before its end", "counted once", "a lost worker and the next", "in the background too"],
)
async def test_units_are_paid(bank: Bank, signals: list[Any], in_background: list[Any], used: int) -> None:
    talk = await bank.talk(TOKENS)
    for signal in signals:
        talk.meter.count_signals(signal)
    for signal in in_background:
        talk.meter.count_signals(signal, in_background=True)
    talk.end("disconnected")
    assert bank.used(TOKENS)[1] == used


async def test_session_ends_when_its_tokens_are_spent(bank: Bank) -> None:
    talk = await bank.talk(TOKENS)
    talk.meter.used(4000, 999)
    await bank.clock.advance(2 * BEAT_S)
    assert not talk.is_ended
    talk.meter.used(0, 1)
    await bank.clock.advance(2 * BEAT_S)
    assert talk.is_ended
    assert bank.used(TOKENS)[1] == 5000


async def test_tokens_are_taken_in_slices(bank: Bank) -> None:
    talks = [await bank.talk(TOKENS) for _ in range(5000 // SLICE_TOKENS)]
    with pytest.raises(QuotaSpent):
        await bank.talk(TOKENS)
    for talk in talks:
        talk.end()
    assert bank.used(TOKENS)[1] == 0


async def test_quota_is_a_days(bank: Bank) -> None:
    (await bank.talk(MINUTE)).end()
    talk = await bank.talk(MINUTE)
    await bank.clock.advance(70)
    assert talk.is_ended
    await bank.clock.advance(DAY_S - bank.clock.unix() % DAY_S)
    (await bank.talk(MINUTE)).end()


async def test_slice_of_yesterday_is_not_given_back_today(bank: Bank) -> None:
    await bank.clock.advance(DAY_S - bank.clock.unix() % DAY_S - 1)
    talk = await bank.talk(MINUTE)
    await bank.clock.advance(2)
    other = await bank.talk(MINUTE)
    talk.end()
    assert bank.used(MINUTE)[0] == SLICE_MS
    other.end()


async def test_key_with_spent_quota_has_retry_delay(bank: Bank) -> None:
    talk = await bank.talk(MINUTE)
    assert bank.accounts.retry_s(MINUTE) is None
    await bank.clock.advance(62)
    assert talk.is_ended
    retry_s = bank.accounts.retry_s(MINUTE)
    assert retry_s is not None
    assert 0 < retry_s <= DAY_S
    assert bank.accounts.retry_s(Tenant("alice", MINUTE.account, Quota(600))) is None, "it has more now"


async def test_invented_accounts_are_not_remembered(bank: Bank, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 10)
    for number in range(100):
        bank.accounts._remember(Tenant("x", f"{number:064x}", Quota(1)))
    assert len(bank.accounts._spent) == 10


async def test_outage_ends_no_session_and_admits_none(bank: Bank, monkeypatch: Any) -> None:
    talk = await bank.talk(MINUTE)
    bank.usage_store.is_cut = True
    monkeypatch.setattr(module, "ASK_S", 0.05)
    with pytest.raises(DispatcherUnavailable):
        await bank.talk(MINUTE)
    await bank.clock.advance(45)
    assert not talk.is_ended
    bank.usage_store.answer()
    await bank.clock.advance(2 * BEAT_S)
    assert 45_000 <= bank.used(MINUTE)[0] <= 60_000, "the slice of who was not let in is given back"
    await bank.clock.advance(30)
    assert talk.is_ended


async def test_session_retries_lost_quota_request(bank: Bank) -> None:
    talk = await bank.talk(MINUTE)
    bank.usage_store.is_cut = True
    await bank.clock.advance(20)
    for _, answer in bank.usage_store.waiting:
        answer.cancel()
    bank.usage_store.waiting = []
    bank.usage_store.is_cut = False
    await bank.clock.advance(20)
    assert not talk.is_ended
    await bank.clock.advance(22)
    assert talk.is_ended
    assert 60_000 <= bank.used(MINUTE)[0] <= 62_000


async def test_usage_during_outage_is_booked_afterwards(bank: Bank) -> None:
    talk = await bank.talk(MINUTE)
    bank.usage_store.is_cut = True
    await bank.clock.advance(50)
    talk.end()
    bank.usage_store.answer()
    await bank.clock.advance(2 * BEAT_S)
    assert bank.used(MINUTE)[0] == 50_000


def test_tenants_beyond_the_bound_are_one_series() -> None:
    totals = Totals()
    for number in range(10_000):
        totals.add(f"key-{number}", 1.0, 2, 3)
    names = dict(totals.all())
    assert len(names) == MOST_TENANTS + 1
    assert names["other"].sessions == 10_000 - MOST_TENANTS
    assert names["key-0"].sessions == 1
