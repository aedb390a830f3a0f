"""A session seen through: adapter and worker as processes, with their spans, figures and logs."""

import asyncio
import base64
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from antiphon.contract import METADATA_TRACEPARENT
from antiphon_service import semconv
from antiphon_service.semconv import SERVICE_ADAPTER, SERVICE_WORKER
from benchmarks.tracing.collector import Collector
from tests.conformance.support.stack import Worker, scripted_worker
from tests.e2e.conftest import Recording, Server, running_adapter, running_worker
from tests.e2e.support.spans import Context, Exported, Spans
from tests.inference_service.support.caller import Caller, channel_to, soon
from tests.support.patience import PATIENCE_S
from tests.support.scrape import scrape

CANARY = "the heron stands in the reeds"
WORD = "heron"
CLIENT: Context = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
"""A span of a client, which it does not export."""
DIRECT: Context = (CLIENT[0], "00000000000000aa")
SILENCE_S = 7

SPANS_PER_UNIT = 4
RECORDS_PER_UNIT = 13
UNRELATED = (semconv.EVENT_LOOP_LAG, semconv.TICK, semconv.TICK_BATCH, semconv.TICK_TOKENS)
"""What is recorded without any unit, and of ticks, which serve all sessions at once."""
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

    async def records(self) -> float:
        """How often both services have recorded something, but for what goes on without any unit."""
        scrapes = [await scrape(server.admin_port) for server in (self.adapter, self.worker)]
        counted = [metric for metric in semconv.METRICS if metric.buckets and metric not in UNRELATED]
        return sum(found.total(f"{metric.name}_count") for found in scrapes for metric in counted)

    def trace_of(self, session_id: str) -> list[Exported]:
        """The spans of a session, and those of the worker under them."""
        own = self.collected.of_session(session_id)
        contexts = {span.context for span in own}
        below = [s for s in self.collected.all if s.parent in contexts and s.context not in contexts]
        return sorted([*own, *below], key=lambda span: span.start)


def traceparent(context: Context, flags: str = "01") -> str:
    return f"00-{context[0]}-{context[1]}-{flags}"


def named(spans: list[Exported]) -> list[str]:
    return [span.name for span in spans]


def of(spans: list[Exported], name: str) -> list[Exported]:
    return [span for span in spans if span.name == name]


async def exported(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.05)


@contextmanager
def exporting(**environ: str) -> Iterator[Collector]:
    """A collector to which processes that are started meanwhile export their spans."""
    with Collector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_TRACES_EXPORTER", "otlp")
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        for name, value in environ.items():
            patch.setenv(name, value)
        yield collector


@contextmanager
def running(**environ: str) -> Iterator[Stack]:
    """Both services; on leaving the block they have ended, and exported what there was."""
    observed = ("--admin-port", "0", "--log-level", "debug")
    with (
        exporting(**environ) as collector,
        running_worker(*observed, slots=2) as worker,
        running_adapter(worker.address, *observed) as adapter,
    ):
        yield Stack(Spans(collector), worker, adapter)


@contextmanager
def scripted(**environ: str) -> Iterator[Stack]:
    """The same with a worker that plays a script, where it does not matter what is said."""
    with (
        exporting(**environ) as collector,
        scripted_worker() as worker,
        running_adapter(worker.target) as adapter,
    ):
        yield Stack(Spans(collector), worker, adapter)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running() as found:
        yield found


@dataclass
class Client:
    """A public client; `events` is all it has been told."""

    socket: ClientConnection
    session_id: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)

    async def next(self) -> dict[str, Any]:
        self.events.append(json.loads(await soon(self.socket.recv())))
        return self.events[-1]

    async def until(self, kind: str) -> dict[str, Any]:
        while (event := await self.next())["type"] != kind:
            pass
        return event

    async def unit(self, number: int, pcm: bytes) -> None:
        await self.socket.send(append(number, pcm))
        while True:
            event = await self.next()
            is_answer = event.get("input_id") == str(number) and event.get("kind") in ("audio", "listen")
            if is_answer:
                return

    async def end(self) -> None:
        try:
            while True:
                await self.next()
        except ConnectionClosed:
            pass

    @property
    def units(self) -> int:
        """Units that were answered, those of silence that the adapter puts in for a late client included."""
        return len([event for event in self.events if "chunk_index" in event])

    @property
    def text(self) -> str:
        return "".join(event.get("text") or "" for event in self.events)


def append(number: int, pcm: bytes) -> str:
    audio = base64.b64encode(pcm).decode()
    return json.dumps({"type": "input.append", "input": {"audio": audio, "input_id": str(number)}})


@asynccontextmanager
async def talking(
    stack: Stack, *, headers: dict[str, str] | None = None, **first: Any
) -> AsyncIterator[Client]:
    async with connect(stack.url, additional_headers=headers) as socket:
        payload = {"system_prompt": CANARY, "config": {"seed": 1}}
        await socket.send(json.dumps({"type": "session.init", "payload": payload, **first}))
        client = Client(socket)
        client.session_id = (await client.until("session.created"))["session_id"]
        yield client


SECOND = bytes(4 * 16_000)


class TestConversation:
    async def test_a_conversation_is_one_tree_over_both_services(
        self, stack: Stack, recordings: list[Recording]
    ) -> None:
        [joke] = [recording for recording in recordings if recording.name == "joke"]
        async with talking(stack) as client:
            trace_id = client.socket.response.headers["antiphon-trace-id"]
            for number, pcm in enumerate(joke.units(SILENCE_S)):
                await client.unit(number, pcm.tobytes())
            scrapes = [(await scrape(server.admin_port)) for server in (stack.adapter, stack.worker)]
            await client.socket.send(json.dumps({"type": "session.close"}))
            await client.end()
        assert len(client.text) > 10, "the model said nothing: the rest would prove less than it says"
        spans = await stack.spans(client.session_id)

        upgrade, start = of(spans, semconv.SPAN_UPGRADE)[0], of(spans, semconv.SPAN_START)[0]
        assert upgrade.parent == ("", "")
        assert upgrade.context[0] == start.context[0] == trace_id
        self.check_units(spans, start, client.units)
        self.check_turns(spans)
        self.check_end(spans, start)
        self.check_links(spans, stack.collected)
        self.check_silence(client, stack, "".join(scrape.exposition for scrape in scrapes))

    def check_units(self, spans: list[Exported], start: Exported, count: int) -> None:
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

    def check_turns(self, spans: list[Exported]) -> None:
        units = {unit.context for unit in of(spans, semconv.SPAN_UNIT)}
        turns = of(spans, semconv.SPAN_TURN)
        assert turns
        for turn in turns:
            assert len(set(turn.links) & units) >= 1

    def check_end(self, spans: list[Exported], start: Exported) -> None:
        [end] = of(spans, semconv.SPAN_END)
        assert start.context in end.links
        assert not any(span.is_error for span in spans)

    def check_links(self, spans: list[Exported], collected: Spans) -> None:
        """What is pointed at is there: every link, and every parent, so that no span was left open."""
        everything = collected.all
        there = {span.context for span in everything}
        assert {link for span in everything for link in span.links} <= there | {CLIENT}
        assert {span.parent for span in everything} <= there | {("", ""), CLIENT, DIRECT}
        units = {span.context for span in of(spans, semconv.SPAN_UNIT)}
        ticks = [tick for tick in of(everything, semconv.SPAN_TICK) if units & set(tick.links)]
        assert ticks
        for tick in ticks:
            assert tick.parent == ("", "")
            assert set(tick.links) <= units
            number = tick.attributes[semconv.ATTR_TICK_ID]
            assert number in [span.attributes.get(semconv.ATTR_TICK_ID) for span in spans]

    def check_silence(self, client: Client, stack: Stack, exposition: str) -> None:
        """Nothing that was said, typed or sent is in spans, figures or logs."""
        told = (
            stack.collected.raw.decode("utf-8", "replace")
            + exposition
            + stack.adapter.said
            + stack.worker.said
        )
        assert "session opened" in stack.worker.said
        assert WORD not in told
        words = {word for word in re.findall(r"[a-z]+", client.text.lower()) if len(word) > 5}
        assert words
        assert {word for word in words if re.search(rf"\b{word}\b", told)} == set()

    async def test_a_unit_stays_within_its_budget(self, stack: Stack) -> None:
        async with talking(stack) as client:
            before = await stack.records()
            for number in range(6):
                await client.unit(number, SECOND)
            records = await stack.records() - before
            units = client.units
            await client.socket.send(json.dumps({"type": "session.close"}))
            await client.end()
        spans = await stack.spans(client.session_id)
        of_units = [span for span in spans if span.name in (semconv.SPAN_UNIT, *STEPS)]
        assert len(of_units) == SPANS_PER_UNIT * client.units
        assert 0 < records <= RECORDS_PER_UNIT * units


class TestPropagation:
    """The three ways in which a caller says what it is part of."""

    async def test_headers_of_a_stranger_are_linked_and_not_continued(self, stack: Stack) -> None:
        async with talking(stack, headers={"traceparent": traceparent(CLIENT)}) as client:
            await client.unit(0, SECOND)
            assert client.socket.response.headers["antiphon-trace-id"] != CLIENT[0]
            await client.socket.send(json.dumps({"type": "session.close"}))
            await client.end()
        spans = await stack.spans(client.session_id)
        assert CLIENT in of(spans, semconv.SPAN_UPGRADE)[0].links
        assert CLIENT[0] not in {span.context[0] for span in spans}

    async def test_a_browser_says_it_in_its_first_event(self, stack: Stack) -> None:
        async with talking(stack, trace_context={"traceparent": traceparent(CLIENT)}) as client:
            await client.unit(0, SECOND)
            await client.socket.send(json.dumps({"type": "session.close"}))
            await client.end()
        spans = await stack.spans(client.session_id)
        assert CLIENT in {link for span in spans for link in span.links}
        assert CLIENT[0] not in {span.context[0] for span in spans}

    async def test_a_direct_caller_is_continued(self, stack: Stack) -> None:
        async with channel_to(stack.worker.address) as channel:
            caller = await Caller(channel, None, (METADATA_TRACEPARENT, traceparent(CLIENT))).open()
            await caller.configure(system_prompt=CANARY)
            await caller.unit(1)
            await caller.unit(2, traceparent=traceparent(DIRECT))
            await caller.unit(3, traceparent=traceparent(DIRECT, "00"))
        await exported(lambda: len(stack.collected.of_session(caller.session_id)) >= 6)
        spans = stack.collected.of_session(caller.session_id)
        assert [(span.name, span.parent) for span in spans] == [
            *((step, CLIENT) for step in STEPS),
            *((step, DIRECT) for step in STEPS),
        ]


class TestSampling:
    """The operator's sampler decides, and never a stranger's sampled flag."""

    @pytest.mark.parametrize(
        ("sampler", "argument"),
        [("parentbased_always_off", ""), ("traceidratio", "0"), ("parentbased_traceidratio", "0.0")],
    )
    async def test_sampler_that_drops_roots_drops_the_sampled_context_of_a_stranger(
        self, sampler: str, argument: str
    ) -> None:
        with scripted(OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument) as stack:
            async with talking(stack, headers={"traceparent": traceparent(CLIENT)}) as client:
                await client.unit(0, SECOND)
                await client.socket.send(json.dumps({"type": "session.close"}))
                await client.end()
        assert stack.collected.all == []


class TestLimits:
    """The SDK's span limits hold for the spans of both services."""

    async def test_span_limits_of_the_environment_bound_every_exported_span(self) -> None:
        with scripted(
            OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="2",
            OTEL_SPAN_EVENT_COUNT_LIMIT="0",
            OTEL_SPAN_LINK_COUNT_LIMIT="0",
            OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT="6",
        ) as stack:
            async with talking(stack, headers={"traceparent": traceparent(CLIENT)}) as client:
                await client.unit(0, SECOND)
                await client.socket.send(json.dumps({"type": "session.close"}))
                await client.end()
        spans = stack.collected.all
        assert {span.service for span in spans} == {SERVICE_ADAPTER, SERVICE_WORKER}
        assert {semconv.SPAN_UNIT, semconv.SPAN_END, *STEPS} <= set(named(spans))
        for span in spans:
            assert len(span.attributes) <= 2
            assert (span.events, span.links) == ((), ())
            assert all(len(value) <= 6 for value in span.attributes.values() if isinstance(value, str))


class TestEndings:
    """Sessions that end otherwise leave no span open."""

    def check_closed(self, spans: list[Exported]) -> None:
        """A span that is still open would be missing as a parent or as the target of a link."""
        there = {span.context for span in spans}
        assert {span.parent for span in spans} <= there | {("", "")}
        assert {link for span in spans for link in span.links} <= there

    async def test_a_client_that_vanishes(self, stack: Stack) -> None:
        async with talking(stack) as client:
            await client.unit(0, SECOND)
            await client.socket.send(append(1, SECOND))
            client.socket.transport.abort()
        spans = await stack.spans(client.session_id)
        self.check_closed(spans)
        [end] = of(spans, semconv.SPAN_END)
        assert not end.is_error
        assert not any(span.is_error for span in spans)
        assert len(of(spans, semconv.SPAN_UNIT)) >= 1

    async def test_a_worker_that_dies(self) -> None:
        with scripted() as stack:
            async with talking(stack) as client:
                await client.unit(0, SECOND)
                os.kill(stack.worker.process.pid, signal.SIGSTOP)
                await client.socket.send(append(1, SECOND))
                await (await client.socket.ping())
                os.kill(stack.worker.process.pid, signal.SIGKILL)
                await client.end()
            spans = await stack.spans(client.session_id)
        error = next(event for event in client.events if event["type"] == "error")
        trace_id = client.socket.response.headers["antiphon-trace-id"]
        assert error["error"]["trace_id"] == trace_id
        units = of(spans, semconv.SPAN_UNIT)
        assert [unit.is_error for unit in units] == [False, True]
        [end] = of(spans, semconv.SPAN_END)
        assert end.is_error
        assert end.attributes[semconv.ATTR_ERROR_TYPE]
        self.check_closed([span for span in spans if span.service == SERVICE_ADAPTER])
