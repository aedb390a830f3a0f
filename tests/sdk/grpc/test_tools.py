"""Tests of tools over the three streams: offers, streamed calls, and results in the history."""

from dataclasses import replace

import pytest

from antiphon import Call, Message, Tool
from antiphon.grpc import Audio, CallDelta, Session, Text, Thinking, UnitDone
from antiphon.grpc.outputs import from_generate
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface import setups
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, running_worker, write

pytestmark = pytest.mark.usefixtures("no_leaked_tasks")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = Tool("weather", "Of a city.", CITY)
TIME = Tool("time")
CHAT = pb.SessionConfig(mode=pb.SESSION_MODE_CHAT, seed=1)


async def test_tools_are_offered_and_calls_and_results_are_in_the_history() -> None:
    engine = ScriptedEngine(write("Rain."), info=replace(EVERYTHING, calls_tools=True), repeat=True)
    call = Call("call_1", "weather", '{"city": "Bern"}')
    history = [
        Message("user", "Weather?"),
        Message("assistant", "", [call]),
        Message("tool", "Rain.", call_id=call.id),
    ]
    async with running_worker(engine) as worker, Session.open(worker.address, CHAT) as session:
        await session.send_turn(
            history[:1], tools=[TIME, WEATHER], tool_choice=WEATHER, parallel_tool_calls=False
        )
        await session.send_turn(history, tools=[WEATHER], tool_choice="none")
        await session.send_turn(history, tools=[TIME], tool_choice="required")
        await session.send_turn(history)
        session.half_close()
        assert not any([isinstance(output, CallDelta) async for output in session])

    turns = list(engine.session.given.values())
    assert all(isinstance(turn, setups.TurnInput) for turn in turns)
    weather = setups.Tool("weather", "Of a city.", CITY)
    named, none, required, nothing = (turn.tools for turn in turns if isinstance(turn, setups.TurnInput))
    assert [tool.name for tool in named.offered] == ["time", "weather"]
    assert (named.mode, named.named, named.are_parallel) == (setups.ToolMode.REQUIRED, "weather", False)
    assert none == setups.Tools((weather,), setups.ToolMode.NONE)
    assert (required.mode, required.named, required.are_parallel) == (setups.ToolMode.REQUIRED, "", True)
    assert nothing == setups.NO_TOOLS
    assert isinstance(turns[1], setups.TurnInput)
    _, called, result = turns[1].messages
    assert called.calls == (setups.ToolCall("call_1", "weather", {"city": "Bern"}),)
    assert (result.role, result.call_id) == ("tool", "call_1")


def test_thinking_precedes_text_and_calls_follow_audio() -> None:
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
