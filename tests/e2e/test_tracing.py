"""A session seen through: adapter and worker as processes, with their spans, figures and logs."""

import asyncio
import base64
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import pytest
from websockets.asyncio.client import connect

from antiphon_service import semconv
from antiphon_service.semconv import SERVICE_ADAPTER, SERVICE_WORKER
from benchmarks.tracing.collector import Collector
from tests.conformance.support.client import Client, Event
from tests.conformance.support.stack import Worker, scripted_worker
from tests.e2e.conftest import Recording, Server, running_adapter, running_worker
from tests.e2e.support.spans import Exported, Spans
from tests.support.patience import PATIENCE_S
from tests.support.scrape import scrape

CANARY = "the heron stands in the reeds"
WORD = "heron"
SECOND = bytes(4 * 16_000)
SILENCE_S = 7
STEPS = (semconv.SPAN_PREFILL, semconv.SPAN_GENERATE, semconv.SPAN_FINALIZE)


@dataclass(frozen=True)
class Stack:
    collected: Spans
    worker: Server | Worker
    adapter: Server

    @property
    def url(self) -> str:
        return f"{self.adapter.address.replace('http', 'ws')}/v1/realtime?mode=audio"

    async def spans(self, session_id: str) -> list[Exported]:
        """The spans of a session, once its end is among them and nothing more comes of its worker."""
        await exported(lambda: semconv.SPAN_END in named(self.collected.of_session(session_id)))
        before = -1
        while len(found := self.trace_of(session_id)) != before:
            before = len(found)
            await asyncio.sleep(0.5)  # longer than both wait with a batch
        return found

    def trace_of(self, session_id: str) -> list[Exported]:
        own = self.collected.of_session(session_id)
        contexts = {span.context for span in own}
        below = [s for s in self.collected.all if s.parent in contexts and s.context not in contexts]
        return sorted([*own, *below], key=lambda span: span.start)


def named(spans: list[Exported]) -> list[str]:
    return [span.name for span in spans]


def of(spans: list[Exported], name: str) -> list[Exported]:
    return [span for span in spans if span.name == name]


async def exported(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.05)


@contextmanager
def exporting() -> Iterator[Collector]:
    with Collector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_TRACES_EXPORTER", "otlp")
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield collector


@dataclass
class Talk:
    client: Client
    session_id: str

    @property
    def trace_id(self) -> str:
        assert self.client.socket.response is not None
        return self.client.socket.response.headers["antiphon-trace-id"]

    @property
    def units(self) -> int:
        """Units that were answered, those of silence that the adapter puts in for a late client included."""
        return len([event for event in self.client.events if "chunk_index" in event])

    @property
    def text(self) -> str:
        return "".join(event.get("text") or "" for event in self.client.events)

    async def unit(self, number: int, pcm: bytes) -> None:
        await self.client.send(append(number, pcm))
        event: Event = {}
        while event.get("input_id") != str(number) or event.get("kind") not in ("audio", "listen"):
            event = await self.client.next()


def append(number: int, pcm: bytes) -> Event:
    audio = base64.b64encode(pcm).decode()
    return {"type": "input.append", "input": {"audio": audio, "input_id": str(number)}}


@asynccontextmanager
async def talking(stack: Stack) -> AsyncIterator[Talk]:
    async with connect(stack.url) as socket:
        client = Client(socket)
        payload = {"system_prompt": CANARY, "config": {"seed": 1}}
        await client.send({"type": "session.init", "payload": payload})
        *_, created = await client.until("session.created")
        yield Talk(client, created["session_id"])


def check_units(spans: list[Exported], start: Exported, count: int) -> None:
    units = of(spans, semconv.SPAN_UNIT)
    assert len(units) == count
    assert {unit.service for unit in units} == {SERVICE_ADAPTER}
    for unit in units:
        below = [span for span in spans if span.parent == unit.context and span.name in STEPS]
        assert named(below) == list(STEPS)
        assert {span.service for span in below} == {SERVICE_WORKER}
        assert all(unit.start <= span.start <= span.end for span in below)
        assert start.context in unit.links
    groups: dict[str, list[Exported]] = {}
    for unit in units:
        groups.setdefault(unit.context[0], []).append(unit)
    for first, *others in groups.values():
        assert first.parent == ("", "")
        assert {other.parent for other in others} <= {first.context}
    assert start.context[0] not in groups


def check_closed(spans: list[Exported]) -> None:
    """A span that is still open would be missing as a parent or as the target of a link."""
    there = {span.context for span in spans}
    assert {span.parent for span in spans} <= there | {("", "")}
    assert {link for span in spans for link in span.links} <= there


def check_ticks(spans: list[Exported], everything: list[Exported]) -> None:
    units = {span.context for span in of(spans, semconv.SPAN_UNIT)}
    ticks = [tick for tick in of(everything, semconv.SPAN_TICK) if units & set(tick.links)]
    assert ticks
    for tick in ticks:
        assert tick.parent == ("", "")
        assert set(tick.links) <= units
        number = tick.attributes[semconv.ATTR_TICK_ID]
        assert number in [span.attributes.get(semconv.ATTR_TICK_ID) for span in spans]


def check_silence(talk: Talk, stack: Stack, exposition: str) -> None:
    """Nothing that was said, typed or sent is in spans, figures or logs."""
    told = (
        stack.collected.raw.decode("utf-8", "replace") + exposition + stack.adapter.said + stack.worker.said
    )
    assert "session opened" in stack.worker.said
    assert WORD not in told
    words = {word for word in re.findall(r"[a-z]+", talk.text.lower()) if len(word) > 5}
    assert words
    assert {word for word in words if re.search(rf"\b{word}\b", told)} == set()


async def test_a_conversation_is_one_tree_over_both_services(recordings: list[Recording]) -> None:
    [joke] = [recording for recording in recordings if recording.name == "joke"]
    observed = ("--admin-port", "0", "--log-level", "debug")
    with (
        exporting() as collector,
        running_worker(*observed, slots=2) as worker,
        running_adapter(worker.address, *observed) as adapter,
    ):
        stack = Stack(Spans(collector), worker, adapter)
        async with talking(stack) as talk:
            for number, pcm in enumerate(joke.units(SILENCE_S)):
                await talk.unit(number, pcm.tobytes())
            scrapes = [(await scrape(server.admin_port)) for server in (adapter, worker)]
            await talk.client.send({"type": "session.close"})
            await talk.client.end()
        assert len(talk.text) > 10, "the model said nothing: the rest would prove less than it says"
        spans = await stack.spans(talk.session_id)
        check_silence(talk, stack, "".join(scrape.exposition for scrape in scrapes))

    upgrade, start = of(spans, semconv.SPAN_UPGRADE)[0], of(spans, semconv.SPAN_START)[0]
    assert upgrade.parent == ("", "")
    assert upgrade.context[0] == start.context[0] == talk.trace_id
    check_units(spans, start, talk.units)
    units = {unit.context for unit in of(spans, semconv.SPAN_UNIT)}
    assert of(spans, semconv.SPAN_TURN)
    assert all(set(turn.links) & units for turn in of(spans, semconv.SPAN_TURN))
    [end] = of(spans, semconv.SPAN_END)
    assert start.context in end.links
    assert not any(span.is_error for span in spans)
    check_closed(stack.collected.all)
    check_ticks(spans, stack.collected.all)


async def test_units_of_a_worker_that_is_killed_end_as_errors() -> None:
    with exporting() as collector, scripted_worker() as worker, running_adapter(worker.target) as adapter:
        stack = Stack(Spans(collector), worker, adapter)
        async with talking(stack) as talk:
            await talk.unit(0, SECOND)
            os.kill(worker.process.pid, signal.SIGSTOP)
            await talk.client.send(append(1, SECOND))
            await (await talk.client.socket.ping())
            os.kill(worker.process.pid, signal.SIGKILL)
            await talk.client.end()
        spans = await stack.spans(talk.session_id)
    error = next(event for event in talk.client.events if event["type"] == "error")
    assert error["error"]["trace_id"] == talk.trace_id
    assert [unit.is_error for unit in of(spans, semconv.SPAN_UNIT)] == [False, True]
    [end] = of(spans, semconv.SPAN_END)
    assert end.is_error
    assert end.attributes[semconv.ATTR_ERROR_TYPE]
    check_closed([span for span in spans if span.service == SERVICE_ADAPTER])
