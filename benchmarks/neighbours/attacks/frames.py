"""Frames that are very small, and frames of the maximum size."""

from collections.abc import Callable
from functools import cache
from typing import Final

from benchmarks.neighbours.attacks import wire
from benchmarks.neighbours.attacks.attack import Assault, Attack
from benchmarks.neighbours.attacks.client import AttackClient

MOST_BYTES: Final = 16 * 2**20
COMMAS: Final = 65_536

_CUT: Final = frozenset({"rate_limited", "closed 1008", "cut"})
_REFUSED: Final = frozenset({"invalid_payload", "invalid_event", "invalid_json", *_CUT})
_BEGIN: Final = '{"type":"input.append","input":'
_LARGE: Final = 4
"""The number of large frames on one connection."""


def _padded(begin: str, filler: str, end: str, size: int = MOST_BYTES) -> str:
    return begin + filler * ((size - len(begin) - len(end)) // len(filler)) + end


@cache
def garbage() -> str:
    """Return an event of the maximum size whose audio is not base64."""
    return _padded(_BEGIN + '{"audio":"', "A!*~", '"}}')


@cache
def depth() -> str:
    """Return an event of the maximum size that consists of nested lists."""
    return _padded(_BEGIN, "[", "")


@cache
def commas() -> str:
    """Return an event with a list of `COMMAS` + 1 numbers."""
    return _BEGIN + "[" + "0," * COMMAS + "0]}"


@cache
def values() -> str:
    """Return an event of the maximum size with as many JSON values as possible."""
    return _padded(_BEGIN + '{"audio":"","x":[', "[],", "[]]}}")


def _send(text: Callable[[], str], many: int) -> Assault:
    async def send(client: AttackClient) -> None:
        async with client.session("audio") as visit:
            for _ in range(many):
                await visit.say(text())
                await visit.until("error", "session.closed")

    return send


async def ping(client: AttackClient) -> None:
    """Flood a session with pings."""
    async with client.session("audio") as visit:
        await visit.pour(wire.block(wire.frame(wire.PING, b"12345678")))


async def crumble(client: AttackClient) -> None:
    """Flood a session with one message in fragments of one byte."""
    async with client.session("audio") as visit:
        await visit.pour(
            wire.block(wire.frame(wire.FRAGMENT, b" ")), first=wire.frame(wire.FIRST_FRAGMENT, b" ")
        )


ATTACKS: Final = (
    Attack("pings", ping, _CUT),
    Attack("fragments", crumble, _CUT | {"closed 1009"}),
    Attack("largest-garbage", _send(garbage, _LARGE), _REFUSED, prepare=garbage),
    Attack("deepest-json", _send(depth, _LARGE), _REFUSED, prepare=depth),
    Attack("many-commas", _send(commas, 200), _REFUSED, prepare=commas),
    Attack("most-values", _send(values, _LARGE), _REFUSED, prepare=values),
)
