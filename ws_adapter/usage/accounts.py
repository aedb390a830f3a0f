"""The accounts of all tenants: admission and end of sessions by quota, and the usage log.

Once a second every session with a quota takes its next slice of the quota, and ends if there is none. So a
session exceeds the quota at most by its use within `BEAT_S` and by its running units. At most as many
sessions of a tenant exceed it at once as there were slices left.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ws_adapter.process.clock import Clock, Timer
from ws_adapter.process.errors import DispatcherUnavailable, QuotaSpent
from ws_adapter.protocol.core.signals import Piece, Prefilled, Ready, Signal, UnitDone
from ws_adapter.usage.charge import SLICE_MS, Charge
from ws_adapter.usage.line import UsageLine
from ws_adapter.usage.log import UsageLog
from ws_adapter.usage.store import (
    DAY_S,
    LocalUsageStore,
    Take,
    Taken,
    UsageStore,
)
from ws_adapter.usage.tenant import Tenant
from ws_adapter.usage.totals import Totals

logger = logging.getLogger(__name__)

BEAT_S: Final = 1.0
ASK_S: Final = 2.0
"""The seconds that a new session waits for the usage store."""

SPENT_S: Final = 5.0
"""The seconds for which a key with a spent quota is rejected; then other sessions may have returned a
slice."""

REMEMBERED: Final = 10_000
"""The most keys that are known to have spent their quota."""

KEY_ID_DIGITS: Final = 12
"""The digits of a key's hash that identify the key without revealing it."""

_SPENT: Final = "the key has used up its quota of today"


@dataclass(frozen=True)
class About:
    """The description of a session for the log, besides its usage. `via` is `websocket`, `http` or `grpc`."""

    session_id: str
    mode: str
    dialect: str
    via: str


class Meter:
    """The meter of one session: it counts usage, and reports a spent quota."""

    def __init__(self, accounts: "Accounts", tenant: Tenant, about: About, first_ms: int) -> None:
        self.on_spent: Callable[[], None] = lambda: None
        """A callback for the end of the quota, called once."""
        self.charge = Charge(tenant, first_ms)
        self._accounts = accounts
        self._about = about
        self._model = ""
        self._input_tokens = self._output_tokens = 0
        self._open: dict[tuple[bool, int], int] = {}
        """The known tokens of running units, by whether they are background work and by unit number."""
        self._is_over = False

    async def admit(self) -> None:
        """Take the first slice of the quota, before the wait for a slot.

        Raises `QuotaSpent`, or `DispatcherUnavailable` if the quota cannot be looked up.
        """
        if self.charge.tenant.quota.is_any:
            await self._accounts.admit(self)

    @contextmanager
    def slot(self, model: str) -> Iterator[None]:
        """Count the time within the context as that of a slot. `model` is that of the worker for the usage
        log; an empty one is ignored."""
        self._model = model or self._model
        self.charge.hold(self._accounts.clock.now())
        try:
            yield
        finally:
            self.charge.release(self._accounts.clock.now())

    def count_signals(self, *signals: Signal, in_background: bool = False) -> None:
        """Count the tokens in signals of a worker for the session, or for its background work."""
        for signal in signals:
            match signal:
                case Piece():
                    key = in_background, signal.unit
                    self._open[key] = self._open.get(key, 0) + 1
                case Prefilled():
                    self._open[in_background, signal.unit] = signal.tokens.input_tokens
                case UnitDone():
                    self._open.pop((in_background, signal.unit), None)
                    self.used(signal.tokens.input_tokens, signal.tokens.output_tokens)
                case Ready():
                    self._lose_units(in_background)  # those of the previous slot
                    self.used(signal.prompt_tokens, 0)

    def used(self, input_tokens: int, output_tokens: int) -> None:
        """Count tokens."""
        self._input_tokens += input_tokens
        self._output_tokens += output_tokens
        self.charge.tokens += input_tokens + output_tokens

    def used_so_far(self, input_tokens: int, output_tokens: int) -> None:
        """Count tokens by their totals for the session, which never decrease."""
        self.used(max(0, input_tokens - self._input_tokens), max(0, output_tokens - self._output_tokens))

    def end(self, reason: str) -> None:
        """Book the rest of a finished session, and write its log line. Harmless when repeated.

        The known tokens of units without an end count too: those of the input, and one for each piece of the
        answer.
        """
        if self._is_over:
            return
        self._is_over = True
        self._lose_units(False)
        self._lose_units(True)
        accounts, charge, about = self._accounts, self.charge, self._about
        accounts.settle(self)
        seconds = charge.spent_ms(accounts.clock.now()) / 1000
        tenant = charge.tenant
        accounts.totals.add(tenant.name, seconds, self._input_tokens, self._output_tokens)
        if accounts.log is None:
            return
        accounts.log.write(
            UsageLine(
                at=datetime.fromtimestamp(accounts.clock.unix(), UTC).isoformat(timespec="milliseconds"),
                session_id=about.session_id,
                key=tenant.name if tenant.account else None,
                key_id=tenant.account[:KEY_ID_DIGITS] if tenant.account else None,
                model=self._model or None,
                mode=about.mode,
                dialect=about.dialect,
                via=about.via,
                seconds=seconds,
                input_tokens=self._input_tokens,
                output_tokens=self._output_tokens,
                reason=reason,
            )
        )

    def _lose_units(self, in_background: bool) -> None:
        """Count the known tokens of running units that will not end."""
        for key in [key for key in self._open if key[0] is in_background]:
            self.used(self._open.pop(key), 0)

    @property
    def is_over(self) -> bool:
        """Whether the session is over."""
        return self._is_over


class Accounts:
    """The accounts of all sessions of an adapter."""

    def __init__(
        self,
        clock: Clock,
        totals: Totals | None = None,
        usage_store: UsageStore | None = None,
        log: UsageLog | None = None,
    ) -> None:
        """Metrics read `totals`. Without `usage_store` the quotas count this adapter alone."""
        self.clock = clock
        self.log = log
        self.totals = totals or Totals()
        self._usage_store = usage_store or LocalUsageStore(clock)
        self._open: dict[Meter, None] = {}
        """Meters with a quota that hold, or await, a slot."""
        self._spent: OrderedDict[str, tuple[float, Tenant]] = OrderedDict()
        """Accounts whose quota was found spent, and when."""
        self._timer: Timer | None = None
        """The timer that runs while a session with a quota is open."""

    def start(self) -> None:
        """Start the usage store and the usage log."""
        self._usage_store.start()
        if self.log is not None:
            self.log.start()

    async def close(self) -> None:
        """Book and write all pending usage."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._usage_store.close()
        if self.log is not None:
            await self.log.close()

    def meter(self, tenant: Tenant, about: About, first_ms: int = SLICE_MS) -> Meter:
        """Return the meter of a new session; `first_ms` is its first slice of the quota in milliseconds."""
        return Meter(self, tenant, about, first_ms)

    def retry_s(self, tenant: Tenant) -> float | None:
        """Return the seconds until a tenant with a spent quota may retry; None if it is not known to be
        spent."""
        found = self._spent.get(tenant.account)
        if found is None:
            return None
        at, spent = found
        if spent.quota != tenant.quota or self.clock.now() - at >= SPENT_S:
            del self._spent[tenant.account]
            return None
        return DAY_S - self.clock.unix() % DAY_S

    async def admit(self, meter: Meter) -> None:
        charge = meter.charge
        self._open[meter] = None
        if self._timer is None:
            self._timer = self.clock.call_at(self.clock.now() + BEAT_S, self._beat)
        if not charge.is_spent(self.clock.now()):
            return
        take = charge.ask(self.clock.now())
        asked = self._take(meter, take) if take is not None else None
        if asked is not None:
            await asyncio.wait({asked}, timeout=ASK_S)
        if asked is None or charge.is_asking or asked.cancelled():
            # The slice may still be booked later; the end of the session then returns it.
            raise DispatcherUnavailable("the quota of the key cannot be looked up; try again later")
        if charge.is_spent(self.clock.now()):
            self._remember(charge.tenant)
            raise QuotaSpent(_SPENT)

    def settle(self, meter: Meter) -> None:
        """Return the rest of a finished session's slice to the quota."""
        self._open.pop(meter, None)
        if meter.charge.is_asking:
            return  # `_answered` settles it later
        take = meter.charge.settle(self.clock.now())
        if take is not None:
            self._usage_store.take(take)

    def _take(self, meter: Meter, take: Take) -> "asyncio.Future[Taken]":
        asked = self._usage_store.take(take)
        if asked.done():
            self._answered(meter, take, asked)
        else:
            asked.add_done_callback(lambda answer: self._answered(meter, take, answer))
        return asked

    def _answered(self, meter: Meter, take: Take, answer: "asyncio.Future[Taken]") -> None:
        if answer.cancelled():
            meter.charge.is_asking = False
        else:
            meter.charge.answered(take, answer.result())
        if meter.is_over:
            self.settle(meter)

    def _remember(self, tenant: Tenant) -> None:
        self._spent[tenant.account] = self.clock.now(), tenant
        self._spent.move_to_end(tenant.account)
        if len(self._spent) > REMEMBERED:
            self._spent.popitem(last=False)

    def _beat(self) -> None:
        """Renew the slices of all sessions, and report sessions whose quota is spent."""
        self._timer = None
        if self._open:
            self._timer = self.clock.call_at(self.clock.now() + BEAT_S, self._beat)
        for meter in list(self._open):
            try:
                self._renew(meter)
            except Exception:
                logger.exception("quota of a session not renewed: unexpected error")

    def _renew(self, meter: Meter) -> None:
        take = meter.charge.ask(self.clock.now())
        if take is None:
            return
        # While the store is unavailable there is no answer: the session continues, and is booked later.
        asked = self._take(meter, take)
        if asked.done():
            self._end_spent(meter, asked)
        else:
            asked.add_done_callback(lambda answer: self._end_spent(meter, answer))

    def _end_spent(self, meter: Meter, answer: "asyncio.Future[Taken]") -> None:
        if answer.cancelled():
            return
        if meter in self._open and meter.charge.is_spent(self.clock.now()):
            self._open.pop(meter, None)
            self._remember(meter.charge.tenant)
            meter.on_spent()
