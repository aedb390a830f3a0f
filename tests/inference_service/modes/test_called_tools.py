"""Tools over gRPC with a real engine and a causal model made on the spot."""

import json
from pathlib import Path

from jsonschema import validate

from antiphon.grpc import get_info
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.session.units import Stream
from tests.inference_service.engine.support import tiny_caller
from tests.inference_service.engine.support.tiny_caller import CITY
from tests.inference_service.modes.test_token_streams import stream, worker

WEATHER = pb.Tool(name="weather", parameters_json=json.dumps(CITY))
MOST = common.SamplingParams(temperature=1.0, max_new_tokens=400)


async def test_a_required_call_comes_in_pieces_and_its_result_goes_back(tmp_path: Path) -> None:
    question = pb.ChatMessage(role=pb.ROLE_USER, content=[pb.Content(text="Weather?")])
    folder = tiny_caller.save(tmp_path / "caller")
    async with worker(folder, context_limit=1024) as (address, new_caller):
        assert (await get_info(address)).calls_tools
        caller = await stream(new_caller, mode=pb.SESSION_MODE_CHAT, sampling=MOST)
        choice = pb.ToolChoice(mode=pb.TOOL_MODE_REQUIRED)
        turn = pb.TurnInput(messages=[question], tools=[WEATHER], tool_choice=choice)
        turn.parallel_tool_calls = False
        await caller.write(Stream.PREFILL, pb.PrefillRequest(unit=1, turn=turn))
        await caller.write(Stream.GENERATE, pb.GenerateRequest(unit=1, run=pb.GenerateUnit()))
        await caller.write(Stream.FINALIZE, pb.FinalizeRequest(unit=1))
        pieces = [await caller.read(Stream.GENERATE)]
        while not pieces[-1].HasField("done"):
            pieces.append(await caller.read(Stream.GENERATE))
        call = pb.ToolCall(id=pieces[0].tool_call.id, name=pieces[0].tool_call.name)
        call.arguments_json = "".join(piece.tool_call.arguments for piece in pieces)
        asked = pb.ChatMessage(role=pb.ROLE_ASSISTANT, tool_calls=[call])
        result = pb.ChatMessage(role=pb.ROLE_TOOL, content=[pb.Content(text="Rain.")], tool_call_id=call.id)
        await caller.read(Stream.PREFILL)
        await caller.read(Stream.FINALIZE)
        answered = await caller.unit(2, pb.TurnInput(messages=[question, asked, result], tools=[WEATHER]))
    assert call.name == "weather"
    validate(json.loads(call.arguments_json), CITY)
    assert any(piece.tool_call.complete for piece in pieces)
    assert not any(piece.HasField("text") for piece in pieces)
    assert pieces[-1].done.end == pb.UNIT_END_TURN
    assert answered.prefill.prefilled.usage.input_text_tokens > 0
