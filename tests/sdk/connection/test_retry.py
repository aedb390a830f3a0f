"""Tests of retries after temporary refusals."""

import asyncio
import http
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from websockets.asyncio.server import Request, Response, ServerConnection, serve

import antiphon
from antiphon import AntiphonError, AuthError, ConnectError, Retry
from antiphon.connection.refusals import retry_after_s
from tests.failures.link import link_to
from tests.sdk.replay import Peer
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, running_worker, write
from tests.ws_adapter.support.stage import running_adapter, until

pytestmark = pytest.mark.usefixtures("no_leaked_tasks")


@dataclass(frozen=True)
class WatchedRetry(Retry):
    """Tells of each refusal; waits shortly."""

    deadline_s: float = PATIENCE_S
    first_delay_s: float = 0.01
    longest_delay_s: float = 0.1
    refusals: list[AntiphonError] = field(default_factory=list)
    refused: asyncio.Event = field(default_factory=asyncio.Event)

    def delay_s(self, attempts: int, refusal: AntiphonError) -> float | None:
        self.refusals.append(refusal)
        self.refused.set()
        return super().delay_s(attempts, refusal)


def refusal(reason: str, after_s: float | None = None) -> AntiphonError:
    error = ConnectError("Not now.", reason=reason, retryable=True)
    error.retry_after_s = after_s
    return error


async def converse(client: antiphon.Client) -> str:
    async with client.duplex() as session:
        return session.id


async def answer(client: antiphon.Client) -> str:
    async with client.chat("Hello?") as turn:
        return (await turn.answer()).text


@pytest.mark.parametrize("reason", ["http_429", "http_503", "queue_full", "service_unavailable"])
def test_delay_is_doubled_up_to_its_bound_and_has_jitter(reason: str) -> None:
    retry = Retry(first_delay_s=1.0, longest_delay_s=5.0)
    for attempts, longest in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (10_000, 5.0)):
        delays = [retry.delay_s(attempts, refusal(reason)) for _ in range(100)]
        assert all(delay is not None and longest / 2 <= delay <= longest for delay in delays)
        assert len(set(delays)) > 1


@pytest.mark.parametrize(
    "reason", ["refused", "unauthorized", "queue_timeout", "http_500", "invalid_payload", ""]
)
def test_other_refusals_are_retried_only_if_caller_lists_them(reason: str) -> None:
    retry = Retry(reasons=frozenset({reason}))
    assert Retry().delay_s(1, refusal(reason)) is None
    assert retry.delay_s(1, refusal(reason)) is not None
    assert retry.delay_s(1, refusal("queue_full")) is None


def test_delay_is_at_least_retry_after() -> None:
    retry = Retry(first_delay_s=0.5, longest_delay_s=2.0)
    delays = [retry.delay_s(1, refusal("http_429", after_s=7.0)) for _ in range(100)]
    assert all(delay is not None and 7.0 <= delay <= 7.5 for delay in delays)


@pytest.mark.parametrize(
    "values",
    [
        {"deadline_s": 0.0},
        {"deadline_s": float("inf")},
        {"first_delay_s": -1.0},
        {"first_delay_s": float("nan")},
        {"longest_delay_s": 0.1},
        {"reasons": "queue_full"},
    ],
)
def test_value_out_of_range_is_refused_by_name(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` of a Retry"):
        Retry(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "seconds"), [("0", 0.0), ("30", 30.0), ("soon", None), ("-1", None), ("1e9", None), ("", None)]
)
def test_retry_after_in_seconds_is_read(header: str, seconds: float | None) -> None:
    assert retry_after_s(header) == seconds


def test_retry_after_as_a_date_is_the_time_until_then() -> None:
    later = retry_after_s(format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True))
    assert later is not None
    assert 7200 - PATIENCE_S < later <= 7200
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


async def test_full_queue_is_retried_until_it_has_room() -> None:
    retry = WatchedRetry()
    async with running_worker(ScriptedEngine(slots=1), slots=1) as worker:
        async with running_adapter(worker.address, queue_capacity=1) as stage:
            async with antiphon.connect(stage.address) as first, first.duplex() as holder:
                waiter = asyncio.create_task(converse(first))
                await stage.until_queue(1)
                async with antiphon.connect(stage.address, retry=retry) as second:
                    retrying = asyncio.create_task(converse(second))
                    await asyncio.wait_for(retry.refused.wait(), PATIENCE_S)
                    await holder.close()
                    ids = await asyncio.wait_for(asyncio.gather(waiter, retrying), PATIENCE_S)
    assert len({holder.id, *ids}) == 3
    assert {error.reason for error in retry.refusals} == {"queue_full"}


async def test_server_without_a_worker_is_retried_until_it_has_one() -> None:
    retry = WatchedRetry()
    engine = ScriptedEngine(write("Hello."), info=EVERYTHING)
    async with running_worker(engine) as worker, link_to(worker.address) as link:
        target, link.target = link.target, None
        async with running_adapter(link.address, wait=False, no_worker_grace_s=0.05) as stage:
            async with antiphon.connect(stage.address, retry=retry) as client:
                asking = asyncio.create_task(answer(client))
                await asyncio.wait_for(retry.refused.wait(), PATIENCE_S)
                link.target = target
                assert await asyncio.wait_for(asking, PATIENCE_S) == "Hello."
    assert {error.reason for error in retry.refusals} == {"service_unavailable"}


@asynccontextmanager
async def busy_server(status: int, times: int, **headers: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Answers so many upgrades with a status, and holds a conversation then; yields address and requests."""
    requests: list[str] = []

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        requests.append(request.path)
        if len(requests) > times:
            return None
        response = connection.respond(http.HTTPStatus(status), "Later.\n")
        for name, value in headers.items():
            response.headers[name.replace("_", "-")] = value
        return response

    async def play(socket: ServerConnection) -> None:
        peer = Peer(socket)
        await peer.begin()
        await peer.end()

    async with serve(play, "127.0.0.1", 0, process_request=answer) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests


@pytest.mark.parametrize("status", [429, 503])
async def test_http_refusal_is_retried(status: int) -> None:
    retry = WatchedRetry()
    async with busy_server(status, times=3, Retry_After="0") as (url, requests):
        async with antiphon.connect(url, retry=retry) as client:
            async with asyncio.timeout(PATIENCE_S), client.duplex() as session:
                assert session.id
    assert len(requests) == 4
    assert [error.retry_after_s for error in retry.refusals] == [0.0] * 3


async def test_delay_beyond_the_deadline_is_not_started() -> None:
    async with busy_server(503, times=1, Retry_After="3600") as (url, requests):
        async with antiphon.connect(url, retry=Retry(deadline_s=3000.0)) as client:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(ConnectError) as refused:
                    await converse(client)
    assert (refused.value.reason, refused.value.retry_after_s) == ("http_503", 3600.0)
    assert len(requests) == 1


async def test_refusal_is_raised_at_the_deadline() -> None:
    retry = WatchedRetry(deadline_s=0.5)
    async with busy_server(429, times=10**9) as (url, requests):
        async with antiphon.connect(url, retry=retry) as client:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(ConnectError, match="HTTP 429"):
                    await converse(client)
    assert len(requests) == len(retry.refusals) >= 1


@pytest.mark.parametrize(
    ("status", "kind", "retry"), [(401, AuthError, WatchedRetry()), (429, ConnectError, None)]
)
async def test_wrong_key_and_a_refusal_without_retry_are_raised_at_once(
    status: int, kind: type[AntiphonError], retry: Retry | None
) -> None:
    async with busy_server(status, times=1) as (url, requests), antiphon.connect(url, retry=retry) as client:
        with pytest.raises(kind):
            await converse(client)
    assert len(requests) == 1


async def test_cancelled_wait_ends_at_once() -> None:
    retry = WatchedRetry(deadline_s=3600.0, first_delay_s=3000.0, longest_delay_s=3000.0)
    async with busy_server(503, times=1) as (url, requests), antiphon.connect(url, retry=retry) as client:
        opening = asyncio.create_task(converse(client))
        await asyncio.wait_for(retry.refused.wait(), PATIENCE_S)
        opening.cancel()
        await asyncio.wait({opening}, timeout=PATIENCE_S)
        assert opening.cancelled()
    assert len(requests) == 1


async def test_lost_connection_is_reopened_only_with_reconnect() -> None:
    retry = WatchedRetry()
    async with running_worker(ScriptedEngine()) as worker, busy_server(503, times=10**9) as (busy, requests):
        async with running_adapter(worker.address, resume_window_s=PATIENCE_S) as stage:
            async with link_to(stage.address.removeprefix("http://")) as link:
                async with antiphon.connect(f"ws://{link.address}", retry=retry) as client:
                    async with asyncio.timeout(PATIENCE_S), client.duplex(reconnect=True) as session:
                        assert isinstance(await anext(session), antiphon.Created)
                        target, link.target = link.target, busy.removeprefix("ws://")
                        link.cut()
                        assert isinstance(await anext(session), antiphon.ConnectionLost)
                        await until(lambda: requests)
                        link.target = target
                        assert isinstance(await anext(session), antiphon.Resumed)
    assert retry.refusals == []
