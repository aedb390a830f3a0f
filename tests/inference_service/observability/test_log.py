"""Log sessions, faults and states of the worker, and nothing that was said."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.contract import METADATA_TRACEPARENT, Reason
from antiphon_service.telemetry.logs import JsonFormatter, SessionFilter
from inference_service.interface.engine import SessionFailed
from inference_service.session.units import Stream
from tests.inference_service.observability.test_tracing import ids, new_context
from tests.inference_service.support.caller import Caller, channel_to, until
from tests.support.scripted_engine import Play, ScriptedEngine, fails, running_worker, telemetry, turn_end

CANARY = "the heron stands in the reeds"


class Log:
    """The lines of `inference_service` as a service writes them."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def line(self, event: str) -> dict[str, Any]:
        [found] = [line for line in self.lines if line["event"] == event]
        return found


@pytest.fixture
def log() -> Iterator[Log]:
    found, logger = Log(), logging.getLogger("inference_service")
    handler = logging.StreamHandler(found.stream)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(SessionFilter())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_a_session_has_a_line_at_its_start_and_one_with_totals_at_its_end(log: Log) -> None:
    """None of them holds what was said."""
    async with running_worker(ScriptedEngine(turn_end(CANARY), fails()), worker_id="w") as worker:
        async with channel_to(worker.address) as channel:
            caller = await Caller(channel).ready(system_prompt=CANARY)
            assert (await caller.unit(1)).text == CANARY
            await caller.unit(2)
            await caller.leave()
    assert [line["event"] for line in log.lines] == [
        *("worker ready", "session opened", "unit failed", "session closed", "worker draining")
    ]
    assert "heron" not in log.stream.getvalue()
    begun, over = log.line("session opened"), log.line("session closed")
    assert begun["session_id"] == over["session_id"] == caller.session_id
    assert begun["worker_id"].startswith("w-")
    assert (begun["mode"], begun["slot"]) == ("audio_duplex", 0)
    assert (over["level"], over["code"], over["units"]) == ("info", "OK", 2)
    assert 0 <= over["seconds"] < 60


async def test_lines_carry_the_trace_of_the_unit(log: Log) -> None:
    context = new_context()
    exporter_less = telemetry(OTEL_TRACES_EXPORTER="console")
    async with running_worker(ScriptedEngine(fails()), observed=exporter_less) as worker:
        async with channel_to(worker.address) as channel:
            caller = await Caller(channel, None, (METADATA_TRACEPARENT, new_context())).ready()
            await caller.unit(1, traceparent=context)
    exporter_less.shutdown()
    failed = log.line("unit failed")
    assert (int(failed["trace_id"], 16), int(failed["span_id"], 16)) == ids(context)
    assert (failed["level"], failed["code"], failed["unit"]) == ("warning", Reason.INFERENCE_FAILED, 1)


@pytest.mark.parametrize(
    ("play", "level", "code"),
    [
        (Play(fails_session=SessionFailed(Reason.KV_EXHAUSTED, CANARY)), "error", Reason.KV_EXHAUSTED),
        (Play(), "info", "CANCELLED"),
    ],
)
async def test_only_our_own_faults_are_errors(log: Log, play: Play, level: str, code: str) -> None:
    engine = ScriptedEngine(play)
    async with running_worker(engine) as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).ready()
        await caller.send_last_unit(1)
        if code == "CANCELLED":
            caller.calls[Stream.PREFILL].cancel()
        await until(lambda: engine.session.is_closed)
    over = log.line("session closed")
    assert (over["level"], over["code"]) == (level, code)


async def test_a_refused_call_has_a_line(log: Log) -> None:
    async with running_worker(ScriptedEngine(slots=1)) as worker, channel_to(worker.address) as channel:
        owner = await Caller(channel).open()
        refused = Caller(channel)
        refused.start(Stream.PREFILL)
        await refused.end()
        owner.calls[Stream.PREFILL].cancel()
    line = log.line("call refused")
    assert (line["level"], line["code"], line["method"]) == ("warning", Reason.NO_FREE_SLOT, "Prefill")
