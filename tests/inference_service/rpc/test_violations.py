"""Callers that break the contract: all three calls end alike, with the reason."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from antiphon.contract import ERROR_DOMAIN, Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served
from tests.inference_service.support.caller import Caller, Ending
from tests.support.scripted_engine import ScriptedEngine

Code = grpc.StatusCode
Act = Callable[[Caller], Awaitable[Any]]


async def ending_of(served: Served, act: Act, engine: ScriptedEngine | None = None) -> Ending:
    """Opens a session, does what is forbidden, and says how it ended; the worker must then serve on."""
    engine = engine or ScriptedEngine(slots=1)
    async with served(engine) as new_caller:
        caller = await new_caller().open()
        await act(caller)
        ending = await caller.end()
        after = await new_caller().ready()
        await after.prefill(1)
    return ending


def configured(act: Act) -> Act:
    """`act` in an ACTIVE session."""

    async def run(caller: Caller) -> None:
        await caller.configure()
        await act(caller)

    return run


def prefilled(**content: Any) -> Act:
    """A unit with this content in an ACTIVE session."""
    return configured(lambda c: c.write(Stream.PREFILL, pb.PrefillRequest(unit=1, **content)))


UNKNOWN_VOICE = common.Voice(voice_id="x")
NO_ACTION = configured(lambda c: c.write(Stream.GENERATE, pb.GenerateRequest(unit=1)))
CHAT_TURN, STREAM_INPUT = prefilled(turn=pb.TurnInput()), prefilled(stream=pb.StreamInput(text="x"))


async def _three_units(caller: Caller) -> None:
    for unit in (1, 2, 3):
        await caller.prefill(unit)


async def _half_close_unasked(caller: Caller) -> None:
    await caller.prefill(1)
    await caller.read(Stream.PREFILL)
    await caller.half_close(Stream.GENERATE)


ROWS = [
    ("input before config", lambda c: c.prefill(1), Code.FAILED_PRECONDITION, Reason.CONFIG_REQUIRED),
    ("no config", lambda c: c.half_close(Stream.PREFILL), Code.FAILED_PRECONDITION, Reason.CONFIG_REQUIRED),
    ("config as unit 3", lambda c: c.send_config(unit=3), Code.FAILED_PRECONDITION, Reason.UNIT_OUT_OF_ORDER),
    ("bad config", lambda c: c.send_config(mode=0), Code.INVALID_ARGUMENT, Reason.CONFIG_INVALID),
    ("other mode", lambda c: c.send_config(mode=1), Code.UNIMPLEMENTED, Reason.MODE_UNSUPPORTED),
    ("other model", lambda c: c.send_config(model="x"), Code.NOT_FOUND, Reason.MODEL_NOT_FOUND),
    ("other voice", lambda c: c.send_config(voice=UNKNOWN_VOICE), Code.NOT_FOUND, Reason.VOICE_NOT_FOUND),
    ("2nd config", configured(lambda c: c.send_config()), Code.FAILED_PRECONDITION, Reason.CONFIG_REPEATED),
    ("gap", configured(lambda c: c.prefill(2)), Code.FAILED_PRECONDITION, Reason.UNIT_OUT_OF_ORDER),
    ("unit 0", configured(lambda c: c.prefill(0)), Code.FAILED_PRECONDITION, Reason.UNIT_OUT_OF_ORDER),
    ("Generate gap", configured(lambda c: c.generate(2)), Code.FAILED_PRECONDITION, Reason.UNIT_OUT_OF_ORDER),
    ("Finalize gap", configured(lambda c: c.finalize(9)), Code.FAILED_PRECONDITION, Reason.UNIT_OUT_OF_ORDER),
    ("window", configured(_three_units), Code.RESOURCE_EXHAUSTED, Reason.UNIT_WINDOW),
    ("unasked", configured(_half_close_unasked), Code.FAILED_PRECONDITION, Reason.UNIT_OUT_OF_ORDER),
    ("no payload", prefilled(), Code.INVALID_ARGUMENT, Reason.PAYLOAD_INVALID),
    ("chat input", CHAT_TURN, Code.INVALID_ARGUMENT, Reason.PAYLOAD_INVALID),
    ("stream input", STREAM_INPUT, Code.INVALID_ARGUMENT, Reason.PAYLOAD_INVALID),
    ("no action", NO_ACTION, Code.INVALID_ARGUMENT, Reason.PAYLOAD_INVALID),
    ("cancel unit 0", configured(lambda c: c.cancel(0)), Code.INVALID_ARGUMENT, Reason.PAYLOAD_INVALID),
]


@pytest.mark.parametrize(("act", "code", "reason"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
async def test_all_calls_end_alike(served: Served, act: Act, code: grpc.StatusCode, reason: Reason) -> None:
    ending = await ending_of(served, act)
    assert (ending.code, ending.reason, ending.domain) == (code, reason, ERROR_DOMAIN)
    assert ending.message


@pytest.mark.parametrize("stream", Stream)
async def test_repeated_request_is_out_of_order_and_error_names_expected_unit(
    served: Served, stream: Stream
) -> None:
    async def repeat(caller: Caller) -> None:
        await caller.configure()
        await caller.unit(1)
        again: dict[Stream, Act] = {
            Stream.PREFILL: lambda caller: caller.prefill(1),
            Stream.GENERATE: lambda caller: caller.generate(1),
            Stream.FINALIZE: lambda caller: caller.finalize(1),
        }
        await again[stream](caller)

    ending = await ending_of(served, repeat)
    assert ending.reason == Reason.UNIT_OUT_OF_ORDER
    assert ending.metadata == {"stream": stream.value, "unit": "1", "expected": "2"}


async def test_the_fields_of_a_bad_config_are_listed(served: Served) -> None:
    duplex_config = common.DuplexConfig(temperature=9, top_k=0)
    ending = await ending_of(served, lambda caller: caller.send_config(duplex=duplex_config))
    assert ending.fields == ("duplex.temperature", "duplex.top_k")


@pytest.mark.parametrize("stream", Stream)
async def test_bytes_that_are_no_message_end_the_session(served: Served, stream: Stream) -> None:
    async with served(ScriptedEngine()) as new_caller:
        caller = await new_caller().open(*(other for other in Stream if other is not stream))
        raw = caller.start(stream)
        raw._request_serializer = bytes
        await caller.write(stream, b"\xff\xff\xff")
        ending = await caller.end()
    assert (ending.code, ending.reason) == (Code.INVALID_ARGUMENT, Reason.PAYLOAD_INVALID)


async def test_a_neighbour_is_not_disturbed(served: Served) -> None:
    async with served(ScriptedEngine()) as new_caller:
        neighbour, offender = await new_caller().ready(), await new_caller().ready()
        await offender.prefill(9)
        assert (await offender.end()).reason == Reason.UNIT_OUT_OF_ORDER
        await neighbour.unit(1)
