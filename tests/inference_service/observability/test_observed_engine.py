"""The real engine under observation: a spoken conversation with the shipped checkpoint, in this process."""

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service import semconv
from antiphon_service.semconv import PageState, Phase
from inference_service.app import load_engine
from inference_service.engine.batch.pages import PAGE
from inference_service.interface.engine import NAMED_TICKS
from tests.inference_service.observability.test_tracing import STEPS, attribute, ids, new_context, parent
from tests.inference_service.process.test_shares import seconds
from tests.inference_service.support.caller import Caller, UnitAnswers, channel_to, duplex
from tests.support.scrape import Scrape, get, scrape
from tests.support.scripted_engine import running_worker, telemetry

CANARY = "the heron stands in the reeds"


class Conversation:
    """The record of a conversation: answers, spans, contexts of its units, a scrape while it was open."""

    def __init__(self) -> None:
        self.answers: list[UnitAnswers] = []
        self.contexts: list[str] = []
        self.spans: list[ReadableSpan] = []
        self.scrape = Scrape("")
        self.page = ""

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


async def hold() -> Conversation:
    found, exporter = Conversation(), InMemorySpanExporter()
    async with running_worker(
        load_engine, observed=telemetry(exporter), slots=2, admin_port=0, seed=1
    ) as worker:
        async with channel_to(worker.address) as channel:
            caller = await Caller(channel).ready(system_prompt=CANARY)
            for number, pcm in enumerate(seconds(7), 1):
                found.contexts.append(new_context())
                found.answers.append(await caller.unit(number, duplex(pcm), traceparent=found.contexts[-1]))
            assert worker.worker.admin_port is not None
            found.scrape = await scrape(worker.worker.admin_port)
            found.page = (await get(worker.worker.admin_port, "/")).body
            await caller.leave()
    found.spans = list(exporter.get_finished_spans())
    return found


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return asyncio.run(hold())


def test_the_model_speaks(conversation: Conversation) -> None:
    """Otherwise the rest proves less than it says."""
    assert sum(answers.samples for answers in conversation.answers) > 16_000


def test_every_unit_has_its_three_steps(conversation: Conversation) -> None:
    steps = [span for span in conversation.spans if span.name in STEPS]
    assert [span.name for span in steps] == STEPS * len(conversation.answers)
    assert [parent(span) for span in steps] == [ids(c) for c in conversation.contexts for _ in STEPS]


def test_generate_span_matches_its_answer(conversation: Conversation) -> None:
    for span, answers in zip(conversation.named(semconv.SPAN_GENERATE), conversation.answers, strict=True):
        end = pb.UnitEnd.Name(answers.done.end).removeprefix("UNIT_END_").lower()
        assert attribute(span, semconv.ATTR_UNIT_END) == end
        usage = answers.done.usage
        said = usage.output_text_tokens + usage.output_audio_tokens
        assert attribute(span, semconv.ATTR_GEN_AI_OUTPUT_TOKENS) == said


def test_finalize_span_carries_context_tokens(conversation: Conversation) -> None:
    told = [attribute(span, semconv.ATTR_KV_TOKENS) for span in conversation.named(semconv.SPAN_FINALIZE)]
    assert told == [answers.finalize.context_tokens for answers in conversation.answers]


def test_ticks_link_to_the_unit_that_was_in_them(conversation: Conversation) -> None:
    ticks = conversation.named(semconv.SPAN_TICK)
    assert ticks
    units = [ids(context) for context in conversation.contexts]
    for tick in ticks:
        number = attribute(tick, semconv.ATTR_TICK_ID)
        assert number % NAMED_TICKS == 0
        [link] = tick.links
        unit = units.index((link.context.trace_id, link.context.span_id)) + 1
        [generate] = [
            span
            for span in conversation.named(semconv.SPAN_GENERATE)
            if attribute(span, semconv.ATTR_UNIT) == unit
        ]
        assert attribute(generate, semconv.ATTR_TICK_ID) == number
        assert (generate.start_time or 0) <= (tick.end_time or 0)
        assert (tick.start_time or 0) <= (generate.end_time or 0)


def test_metrics_match_answers_of_conversation(conversation: Conversation) -> None:
    found, answers = conversation.scrape, conversation.answers
    phases = {p: found.value(f"{semconv.UNIT_PHASE.name}_count", phase=p) for p in Phase}
    spoken = sum(
        answer.done.HasField("timings") and answer.done.timings.HasField("vocoder") for answer in answers
    )
    whole = (Phase.INBOX, Phase.PREFILL, Phase.GENERATE, Phase.FINALIZE)
    assert {phases[phase] for phase in whole} == {len(answers)}
    assert phases[Phase.VOCODER] == spoken > 0
    assert found.total(semconv.KV_TOKENS.name) == answers[-1].finalize.context_tokens
    assert found.total(semconv.DEVICE_MEMORY.name) > 100 * 2**20
    rows = PAGE * found.value(semconv.KV_PAGES.name, state=PageState.USED)
    assert found.total(semconv.KV_TOKENS.name) - 2 <= rows < found.total(semconv.KV_TOKENS.name) + 2 * PAGE
    assert rows + PAGE * found.value(semconv.KV_PAGES.name, state=PageState.FREE) >= found.total(
        semconv.KV_CAPACITY.name
    )
    ticks = found.total(f"{semconv.TICK.name}_count")
    assert ticks == found.total(f"{semconv.TICK_BATCH.name}_count")
    assert ticks == found.total(f"{semconv.TICK_BATCH.name}_sum")  # one session alone
    # The two tokens that close the last unit wait for the next forward.
    assert found.total(f"{semconv.TICK_TOKENS.name}_sum") == answers[-1].finalize.context_tokens - 2
    assert f">{int(ticks):,}<" in conversation.page


def test_the_steps_of_a_unit_are_all_that_is_recorded_of_it(conversation: Conversation) -> None:
    steps = len(conversation.answers) * len(STEPS)
    assert len(conversation.spans) == steps + len(conversation.named(semconv.SPAN_TICK))


def test_nothing_that_was_said_is_anywhere(conversation: Conversation) -> None:
    said = "".join(answers.text for answers in conversation.answers).split()
    told = "".join(span.to_json() for span in conversation.spans)
    told += conversation.scrape.exposition + conversation.page
    assert "heron" not in told
    assert [word for word in said if len(word) > 5 and word in told] == []
