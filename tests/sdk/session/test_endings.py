"""The table of endings in docs/clients.md, played in every kind of session."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import antiphon
from antiphon import AntiphonError, ErrorEvent, SessionClosed
from antiphon.session.endings import ended
from tests.sdk.replay import CLOSED, CREATED, QUEUE_DONE, Peer, replay
from tests.support.patience import PATIENCE_S

PAGE = Path(__file__).parents[3] / "docs/clients.md"
GREETING = {"type": "session.created", "id": "sess-" + 32 * "0", "created": 1795159650}
PREFILLED = {"type": "prefill_done", "input_tokens": 27}
KINDS: Final = ("duplex", "chat", "transcription")
SECOND = np.zeros(16_000, np.float32)


@dataclass(frozen=True)
class Row:
    """One ending, as the page tells it."""

    what: str
    error: str
    reason: str
    code: int | None
    retryable: bool | None
    kinds: tuple[str, ...]


def rows() -> dict[str, Row]:
    """Return the table's rows by the event that they describe."""
    section = PAGE.read_text().partition("### Errors and endings")[2].partition("\n###")[0]
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in section.splitlines()]
    found = {}
    for what, error, reason, code, retryable, kinds in (line for line in cells if len(line) == 6):
        if what in ("what happened", "---"):
            continue
        among = KINDS if kinds == "all" else tuple(kinds.split(", "))
        told = {"yes": True, "no": False, "-": None}[retryable]
        found[what] = Row(what, error, reason, int(code) if code != "-" else None, told, among)
    return found


ROWS = rows()


def opened(client: antiphon.Client, kind: str) -> AbstractAsyncContextManager[Any]:
    match kind:
        case "duplex":
            return client.duplex()
        case "chat":
            return client.chat("Prime?")
    return client.transcribe()


def error(kind: str, code: str) -> dict[str, object]:
    """An `error` in the words of a dialect."""
    if kind == "duplex":
        return {"type": "error", "error": {"code": code, "message": "So it is."}}
    return {"type": "error", "code": code, "error": "So it is."}


async def begin(peer: Peer, kind: str) -> None:
    match kind:
        case "duplex":
            await peer.send(QUEUE_DONE)
            await peer.receive("session.init")
            await peer.send(CREATED)
        case "chat":
            await peer.request()
            await peer.send(PREFILLED)
        case "transcription":
            await peer.send(GREETING)
            await peer.receive("session.update")


End = Callable[[Peer, str], Awaitable[None]]


def closes(code: int, reason: str = "") -> End:
    """A Close alone; a conversation is told the reason before, where there is one."""

    async def end(peer: Peer, kind: str) -> None:
        if kind == "duplex" and reason:
            await peer.send(CLOSED | {"reason": reason})
        await peer.socket.close(code)

    return end


def fails(code: str, close: int, reason: str = "") -> End:
    """An `error` and a Close."""

    async def end(peer: Peer, kind: str) -> None:
        await peer.send(error(kind, code))
        await closes(close, reason)(peer, kind)

    return end


async def vanishes(peer: Peer, kind: str) -> None:
    peer.socket.transport.abort()


async def breaks_the_protocol(peer: Peer, kind: str) -> None:
    await peer.socket.send("{")
    await peer.socket.wait_closed()


REFUSALS: Final = {
    "the server is unavailable or too busy": "service_unavailable",
    "the queue is full": "queue_full",
    "waiting in the queue took too long": "queue_timeout",
    "the key is unknown": "unauthorized",
    "the server lacks this service": "unsupported_mode",
}
"""The code of the `error` that replaces a session, by event."""

ENDS: Final[dict[str, End]] = {
    "the server breaks the protocol": breaks_the_protocol,
    "the session reaches its time limit": closes(1000, "timeout"),
    "the context of the model is full": closes(1000, "context_full"),
    "the connection is lost": vanishes,
    "the server shuts down": closes(1012, "server_shutdown"),
    "the worker fails": fails("inference_error", 1011, "backend_error"),
    "the worker runs out of memory": fails("inference_error", 1013, "backend_error"),
    "too many small or faulty messages": fails("rate_limited", 1008),
    "the client does not read events": fails("slow_consumer", 1008, "slow_consumer"),
    "a message is too large": closes(1009),
    "the key is withdrawn": fails("unauthorized", 3000),
    "another connection resumes the session": closes(4001),
}
"""The server's action in a session that has begun, by event."""

HERE: Final = ("nothing listens at the address", "the session is used after its close")
"""Rows in which the server does nothing."""


def cases(names: Any) -> list[Any]:
    return [pytest.param(name, kind, id=f"{kind}: {name}") for name in names for kind in ROWS[name].kinds]


def assert_told(caught: AntiphonError | None, row: Row) -> None:
    """The error is that of the row."""
    if row.error == "none":
        assert caught is None
        return
    told = (type(caught).__name__, caught and caught.reason, caught and caught.retryable)
    assert told == (row.error, row.reason, row.retryable)
    assert (caught.code if isinstance(caught, SessionClosed) else None) == row.code


@asynccontextmanager
async def client_of(script: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[antiphon.Client]:
    async with asyncio.timeout(PATIENCE_S), replay(script) as url, antiphon.connect(url) as client:
        yield client


def test_every_row_is_played() -> None:
    assert {*ROWS} == {*REFUSALS, *ENDS, *HERE}


@pytest.mark.parametrize(("what", "kind"), cases(REFUSALS))
async def test_refusal_is_that_of_the_table(what: str, kind: str) -> None:
    async def script(peer: Peer) -> None:
        if kind == "chat":
            await peer.request()
        await peer.send(error(kind, REFUSALS[what]))
        await peer.socket.close(1013)

    async with client_of(script) as client:
        with pytest.raises(AntiphonError) as caught:
            async with opened(client, kind):
                pytest.fail("a session began")
    assert_told(caught.value, ROWS[what])


@pytest.mark.parametrize(("what", "kind"), cases(ENDS))
async def test_ending_is_that_of_the_table(what: str, kind: str) -> None:
    async def script(peer: Peer) -> None:
        await begin(peer, kind)
        await ENDS[what](peer, kind)

    caught: AntiphonError | None = None
    async with client_of(script) as client, opened(client, kind) as session:
        try:
            events = [event async for event in session]
        except AntiphonError as error:
            caught = error
        else:
            assert events[-1].reason == ROWS[what].reason
    assert_told(caught, ROWS[what])


@pytest.mark.parametrize("kind", KINDS)
async def test_refused_connection_is_that_of_the_table(kind: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with antiphon.connect(f"ws://127.0.0.1:{unused.getsockname()[1]}") as client:
            with pytest.raises(AntiphonError) as caught:
                async with opened(client, kind):
                    pytest.fail("a session began")
    assert_told(caught.value, ROWS["nothing listens at the address"])


@pytest.mark.parametrize("kind", KINDS)
async def test_use_after_close_is_that_of_the_table(kind: str) -> None:
    async def script(peer: Peer) -> None:
        await begin(peer, kind)
        if kind == "duplex":
            await peer.end()
        await peer.socket.wait_closed()

    async with client_of(script) as client:
        async with opened(client, kind) as session:
            pass
        with pytest.raises(AntiphonError) as caught:
            await (session.answer() if kind == "chat" else session.send_audio(SECOND))
    assert_told(caught.value, ROWS["the session is used after its close"])


def test_error_before_a_lost_connection_is_not_its_reason() -> None:
    found = ended(1006, None, error=ErrorEvent("invalid_payload", "So it is."))
    assert (found.reason, found.retryable) == ("connection_lost", True)


def test_reasons_are_words() -> None:
    assert all(re.fullmatch(r"[a-z_]+", row.reason) for row in ROWS.values())
