"""Token buckets of addresses: frames, pages and log lines."""

from ipaddress import ip_address

import pytest

from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.access.rate_limit import (
    FRAMES_BURST_S,
    LINES,
    PAGES_BURST_S,
    REMEMBERED,
    Allowances,
    Bucket,
    Caller,
)


def taken(bucket: Bucket | None) -> int:
    """Return how many tokens the bucket gives at once."""
    assert bucket is not None
    count = 0
    while bucket.take():
        count += 1
    return count


def test_limited_address_gets_bursts_of_seconds_at_its_rate() -> None:
    allowance = Allowances(ManualClock(), 20, 120).of("a", is_limited=True)

    assert taken(allowance.frames) == 20 * FRAMES_BURST_S
    assert taken(allowance.pages) == 2 * PAGES_BURST_S
    assert taken(allowance.lines) == LINES


@pytest.mark.parametrize(("frames", "pages", "is_limited"), [(20, 120, False), (0, 0, True), (0, 0, False)])
def test_local_caller_and_limit_of_zero_have_no_bucket_but_for_lines(
    frames: int, pages: int, is_limited: bool
) -> None:
    allowance = Allowances(ManualClock(), frames, pages).of("a", is_limited=is_limited)

    assert allowance.frames is None
    assert allowance.pages is None
    assert taken(allowance.lines) == LINES


async def test_bucket_refills_at_its_rate_up_to_its_burst() -> None:
    clock = ManualClock()
    frames = Allowances(clock, 20, 0).of("a", is_limited=True).frames
    taken(frames)

    await clock.advance(2)
    assert taken(frames) == 40
    await clock.advance(1000)
    assert taken(frames) == 20 * FRAMES_BURST_S


def test_address_keeps_its_buckets_until_many_others_have_come() -> None:
    allowances = Allowances(ManualClock(), 20, 0)
    first = allowances.of("first", is_limited=True)
    second = allowances.of("second", is_limited=True)
    for number in range(REMEMBERED - 2):
        allowances.of(str(number), is_limited=True)

    assert allowances.of("first", is_limited=True) is first
    allowances.of("one more", is_limited=True)
    assert allowances.of("first", is_limited=True) is first
    assert allowances.of("second", is_limited=True) is not second


def test_caller_has_an_address_of_its_own_by_default() -> None:
    assert Caller(ip_address("192.0.2.1"), is_local=False).is_known
