"""A failed unit is data: three answers, and the session goes on."""

import numpy as np

from antiphon.contract import Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.engine import Failure
from tests.inference_service.conftest import SessionOf
from tests.inference_service.support.caller import duplex
from tests.support.scripted_engine import Play, ScriptedEngine, fails, listen


async def test_every_unit_of_a_bad_session_has_three_answers(session_of: SessionOf) -> None:
    """All kinds of failure after one another, two units in flight."""
    refused = Play(refused=Failure(Reason.INPUT_TOO_LONG, "It does not fit."))
    engine = ScriptedEngine(listen(), listen(), fails(), refused, listen(), repeat=True)
    async with session_of(engine) as caller:

        async def send(unit: int) -> None:
            kind = unit % 5
            if kind == 2:
                await caller.cancel(unit)
            await caller.send_unit(
                unit,
                duplex(np.array([np.nan])) if kind == 1 else None,
                sampling=common.SamplingParams(temperature=-1.0) if kind == 0 else None,
            )

        await send(1)
        ends = []
        for unit in range(1, 26):
            await send(unit + 1)
            ends.append((await caller.answers(unit)).done.end)
    failed, cancelled = pb.UNIT_END_FAILED, pb.UNIT_END_CANCELLED
    assert ends == [failed, cancelled, failed, failed, failed] * 5
