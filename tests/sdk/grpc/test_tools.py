"""Tools over the three streams: what is offered, calls as they come, and results in the history."""

import json
from pathlib import Path

import pytest
from jsonschema import validate

from antiphon import Call, Message, Tool
from antiphon.grpc import Audio, CallDelta, Output, Prefilled, Session, Text, Thinking, UnitDone, UnitEnd
from antiphon.grpc.outputs import from_generate
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from tests.inference_service.engine.support import tiny_caller
from tests.inference_service.engine.support.tiny_caller import CITY
from tests.inference_service.modes.test_token_streams import worker

pytestmark = pytest.mark.usefixtures("no_leaked_tasks")

WEATHER = Tool("weather", "Of a city.", CITY)
TIME = Tool("time")
CHAT = pb.SessionConfig(mode=pb.SESSION_MODE_CHAT, seed=1)
WARM = common.SamplingParams(temperature=1.0, max_new_tokens=400)


async def ask(session: Session, messages: list[Message], **settings: object) -> list[Output]:
    """All that comes of a turn."""
    unit = await session.send_turn(messages, sampling=WARM, **settings)  # type: ignore[arg-type]
    outputs: list[Output] = []
    async for output in session:
        outputs.append(output)
        if isinstance(output, UnitDone) and output.unit == unit:
            break
    return outputs


def of(outputs: list[Output], kind: type) -> list[Output]:
    return [output for output in outputs if isinstance(output, kind)]


async def test_a_call_is_put_together_and_its_result_goes_back(tmp_path: Path) -> None:
    folder = tiny_caller.save(tmp_path / "caller")
    history = [Message("user", "Weather?")]
    async with (
        worker(folder, context_limit=1024) as (address, _),
        Session.open(address, CHAT) as session,
    ):
        called = await ask(
            session, history, tools=[TIME, WEATHER], tool_choice=WEATHER, parallel_tool_calls=False
        )
        deltas = [output for output in called if isinstance(output, CallDelta)]
        call = Call(deltas[0].id, deltas[0].name, "".join(delta.arguments for delta in deltas))
        alone = await ask(session, history)
        history += [Message("assistant", "", [call]), Message("tool", "Rain.", call_id=call.id)]
        answered = await ask(session, history, tools=[WEATHER], tool_choice="none")
        any_of = await ask(session, history, tools=[TIME], tool_choice="required", parallel_tool_calls=False)

    assert (deltas[0].index, call.name) == (0, "weather")
    assert [delta.complete for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    validate(json.loads(call.arguments), CITY)
    assert of(called, Text) == of(called, Audio) == of(answered, CallDelta) == []
    assert {output.name for output in any_of if isinstance(output, CallDelta)} == {"time", ""}
    (before,), (after,) = of(alone, Prefilled), of(answered, Prefilled)
    assert isinstance(before, Prefilled)
    assert isinstance(after, Prefilled)
    assert after.context_tokens > before.context_tokens + len(call.arguments)
    (done,) = of(called, UnitDone)
    assert isinstance(done, UnitDone)
    assert done.end is UnitEnd.TURN


def test_thoughts_come_before_what_is_said_and_calls_behind_it() -> None:
    response = pb.GenerateResponse(
        unit=3,
        done=pb.UnitDone(end=pb.UNIT_END_TURN),
        text=pb.TextDelta(text="Well."),
        thinking=pb.TextDelta(text="Hm."),
        tool_call=pb.ToolCallDelta(id="call_1", name="time", arguments="{}", complete=True),
        audio=common.AudioChunk(
            encoding=common.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=24_000, data=bytes(4)
        ),
    )

    thought, text, audio, call, done = from_generate(response)

    assert thought == Thinking(3, "Hm.")
    assert isinstance(text, Text)
    assert isinstance(audio, Audio)
    assert call == CallDelta(3, 0, "call_1", "time", "{}", complete=True)
    assert isinstance(done, UnitDone)
