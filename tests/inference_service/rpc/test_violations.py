"""Callers that break the contract: all three calls end alike, with the reason."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from antiphon.contract import Reason
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
