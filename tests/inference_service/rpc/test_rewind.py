"""`rewind` on a real server: asked for on Generate and answered there."""

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.session.units import Stream
from tests.inference_service.conftest import SessionOf
from tests.inference_service.support.caller import Caller
from tests.support.scripted_engine import EVERYTHING, TALK, ScriptedEngine


async def rewind(caller: Caller, unit: int, **fields: int) -> pb.GenerateResponse:
    """The answer to it, which must be the next one."""
    await caller.write(Stream.GENERATE, pb.GenerateRequest(unit=unit, rewind=pb.RewindUnits(**fields)))
    answer: pb.GenerateResponse = await caller.read(Stream.GENERATE)
    return answer


async def test_unheard_answer_is_rewound_and_session_continues(session_of: SessionOf) -> None:
    engine = ScriptedEngine(*TALK)
    async with session_of(engine) as caller:
        for unit in (1, 2, 3, 4):
            await caller.unit(unit)
        answer = await rewind(caller, 3, heard_samples=9_600)
        assert answer.unit == 3
        assert answer.HasField("rewound")
        assert not answer.rewound.HasField("error")
        assert answer.rewound.rewound_units == 1
        assert answer.rewound.context_tokens == engine.session.context_tokens
        assert ("rewind", 3, 9_600) in engine.session.calls
        assert (await caller.unit(5)).done.end == pb.UNIT_END_TURN


async def test_all_samples_are_heard_where_none_are_named(session_of: SessionOf) -> None:
    engine = ScriptedEngine(*TALK)
    async with session_of(engine) as caller:
        await caller.unit(1)
        await rewind(caller, 1)
        await rewind(caller, 1, heard_samples=0)
    assert [call for call in engine.session.calls if call[0] == "rewind"] == [
        ("rewind", 1, None),
        ("rewind", 1, 0),
    ]


async def test_a_session_that_is_not_full_duplex_cannot_go_back(session_of: SessionOf) -> None:
    async with session_of(ScriptedEngine(info=EVERYTHING), mode=pb.SESSION_MODE_TOKENS) as caller:
        await caller.unit(1, pb.StreamInput(text="Once"))
        answer = await rewind(caller, 1)
        assert answer.rewound.error.reason == Reason.CONTENT_UNSUPPORTED
        assert (await caller.unit(2, pb.StreamInput(text="more"))).finalize.unit == 2
