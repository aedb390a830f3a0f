"""Rate limits: token buckets for connections, and for the cost of all connections of one address together.

A client here is a key or an address. A client with many connections must not get more of the event loop and
of the log than one with a few. The number of stored buckets is bounded: the least recently used ones are
evicted first, since they have most likely refilled.

These limits count one adapter only. `ws_adapter.peers` adds up the connections of several adapters. Frames,
pages and log lines are always limited per adapter, since asking the others about each would cost too much.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final, NamedTuple, TypeAlias

from antiphon_service.network import Address, counted_as, plain
from ws_adapter.peers.base import AdmissionRequest
from ws_adapter.process.clock import Clock

Network: TypeAlias = IPv4Network | IPv6Network

REMEMBERED: Final = 10_000
"""The most clients of each kind whose buckets are stored."""

BUSY_RETRY_S: Final = 10
"""The seconds after which a client with too many connections may retry: an estimate, as their ends are
unknown."""

FRAMES_BURST_S: Final = 10.0
"""The burst of frames, in seconds at the allowed rate: a client may upload a whole recording at once."""

LINES: Final = 600
LINES_PER_S: Final = 10.0
"""The rate limit of log lines about one client, so that clients cannot fill the disk."""

PAGES_BURST_S: Final = 60.0


class Bucket:
    """A token bucket with `burst` tokens, refilled at `per_s` tokens a second."""

    __slots__ = ("_burst", "_filled_at", "_now", "_per_s", "_tokens")

    def __init__(self, burst: float, per_s: float, now: Callable[[], float]) -> None:
        """Begin with a full bucket; `now` returns the time in seconds."""
        self._burst = burst
        self._per_s = per_s
        self._now = now
        self._tokens = burst
        self._filled_at = now()

    def take(self, count: float = 1.0) -> bool:
        """Take `count` tokens; return False, and take none, if there are fewer."""
        now = self._now()
        tokens = self._tokens + (now - self._filled_at) * self._per_s
        self._tokens = self._burst if tokens > self._burst else tokens
        self._filled_at = now
        if self._tokens < count:
            return False
        self._tokens -= count
        return True

    @property
    def wait_s(self) -> float:
        """The seconds from the last `take` until the next token is available."""
        return max(1 - self._tokens, 0.0) / self._per_s


class TooMany(Exception):
    """A client exceeds a rate limit. `message` names the limit; after `retry_s` seconds it may retry."""

    def __init__(self, message: str, retry_s: int) -> None:
        super().__init__(message)
        self.message = message
        self.retry_s = retry_s


class Bounds(NamedTuple):
    """Limits of one client; 0 is none."""

    opens_per_min: int
    connections: int

    @property
    def are_any(self) -> bool:
        """Whether any limit is set."""
        return self.opens_per_min > 0 or self.connections > 0


class RateLimits:
    """The rate limits of one kind of clients: keys or addresses."""

    def __init__(self, clock: Clock, client_type: str) -> None:
        """`client_type` is the type of client as messages name it: `key` or `address`."""
        self._clock = clock
        self._client_type = client_type
        self._buckets: OrderedDict[tuple[str, int], Bucket] = OrderedDict()
        self._open: Counter[str] = Counter()

    def enter(self, client: str, bounds: Bounds) -> Callable[[], None]:
        """Count a new connection; return a callback for its end, to be called once. Raises `TooMany`."""
        if bounds.connections and self._open[client] >= bounds.connections:
            raise self.exceeded(bounds, None)
        if bounds.opens_per_min:
            self._take_token(client, bounds)
        self._open[client] += 1
        return lambda: self._leave(client)

    def demand(self, client: str, bounds: Bounds) -> AdmissionRequest:
        """Return the admission request for a new connection, as adapters send it to each other."""
        return AdmissionRequest(f"{self._client_type}:{client}", bounds.connections, bounds.opens_per_min)

    def exceeded(self, bounds: Bounds, wait_s: float | None) -> TooMany:
        """Return the error for a client that may retry after `wait_s`; None means that it has too many
        connections."""
        if wait_s is None:
            message = f"the most connections of one {self._client_type} at once is {bounds.connections}"
            return TooMany(f"{message}; close one first", BUSY_RETRY_S)
        message = f"the most attempts of one {self._client_type} within a minute is {bounds.opens_per_min}"
        return TooMany(f"{message}; try again later", math.ceil(wait_s))

    def _leave(self, client: str) -> None:
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]

    def _take_token(self, client: str, bounds: Bounds) -> None:
        per_min = bounds.opens_per_min
        key = client, per_min  # after a reload a new limit needs a new bucket
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(per_min, per_min / 60, self._clock.now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        if not bucket.take():
            raise self.exceeded(bounds, bucket.wait_s)


class Allowance(NamedTuple):
    """The token buckets of one address, for all its connections; a None bucket is unlimited."""

    frames: Bucket | None
    pages: Bucket | None
    lines: Bucket
    """The bucket of log lines."""


class Allowances:
    """The allowances of all addresses. Limits of 0 are none."""

    def __init__(self, clock: Clock, frames_per_s: int, pages_per_min: int) -> None:
        self._clock = clock
        self._frames_per_s = frames_per_s
        self._pages_per_s = pages_per_min / 60
        self._known: OrderedDict[tuple[str, bool], Allowance] = OrderedDict()

    def of(self, client: str, *, is_limited: bool) -> Allowance:
        """Return the allowance of a client; without `is_limited` only its log lines are counted."""
        key = client, is_limited
        if key not in self._known:
            self._known[key] = self._new(is_limited)
        self._known.move_to_end(key)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return self._known[key]

    def _new(self, is_limited: bool) -> Allowance:
        now = self._clock.now
        frames = pages = None
        if is_limited and self._frames_per_s:
            frames = Bucket(self._frames_per_s * FRAMES_BURST_S, self._frames_per_s, now)
        if is_limited and self._pages_per_s:
            pages = Bucket(self._pages_per_s * PAGES_BURST_S, self._pages_per_s, now)
        return Allowance(frames, pages, Bucket(LINES, LINES_PER_S, now))


@dataclass(frozen=True)
class Caller:
    """The client of a request. `is_local`: on this machine, and not behind a proxy."""

    address: Address
    is_local: bool
    is_known: bool = True
    """Whether the address is surely the caller's own, and not that of a proxy with many clients."""

    @property
    def name(self) -> str:
        """The name under which the address is counted."""
        return counted_as(self.address)


def client_address(peer: str, forwarded: Sequence[str], proxies: Sequence[Network]) -> Address:
    """Return the address of the client of a connection, which may come through proxies.

    `peer` is the other end of the connection, `forwarded` are the values of `X-Forwarded-For`. Only entries
    that trusted `proxies` wrote count, so the client is the last address that is not one of `proxies`.
    """
    address = plain(ip_address(peer.partition("%")[0]))
    for entry in reversed([entry.strip() for value in forwarded for entry in value.split(",")]):
        if not any(address in network for network in proxies):
            break
        try:
            address = plain(ip_address(entry))
        except ValueError:
            break
    return address
