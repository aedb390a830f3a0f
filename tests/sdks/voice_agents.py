"""A conversation by OpenAI's SDK of voice agents, as its users hold one; prints what came as JSON.

    python voice_agents.py ws://HOST:PORT/v1/realtime?model=MODEL KEY MODEL [QUESTION.pcm|semantic_vad|tool]

Two typed questions with server_vad; or one that is spoken with the turn detection that the SDK asks for by
itself; or, with `semantic_vad` in its place, two typed ones with that turn detection, and with `tool` two
requests for a light that the agent has. A spoken
question is 24 kHz, one channel, 16-bit PCM without a header, sent as fast as it is spoken, and then silence.
This runs in an environment of its own, since that SDK needs an older `websockets`. Events that do not fit
their types it reports as errors.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Literal

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession

PATIENCE_S = 60.0
PIECE_S = 0.02
PIECE = 960
"""Bytes of that."""


async def converse(url: str, key: str, model: str, question: str = "") -> dict[str, Any]:
    told: dict[str, Any] = {"events": [], "errors": [], "audio_bytes": 0, "history": [], "called": []}

    @function_tool
    async def set_light(state: Literal["on", "off"]) -> str:
        """Turn the light on or off."""
        told["called"].append(state)
        return f"The light is {state}."

    questions = ["tell me a joke", "what is your name"]
    tools = []
    is_default = question in ("semantic_vad", "tool")
    if question == "tool":
        questions, tools = ["turn the light off", "turn on the light"], [set_light]
    if is_default:
        question = ""
    agent = RealtimeAgent(name="Antiphon", instructions="Answer briefly.", tools=list(tools))
    settings: Any = {"model_name": model}
    if not question and not is_default:
        settings["audio"] = {"input": {"turn_detection": {"type": "server_vad"}}}
    runner = RealtimeRunner(agent, config={"model_settings": settings})
    session = await runner.run(model_config={"url": url, "api_key": key})
    if question:
        questions = []
    pcm = Path(question).read_bytes() if question else b""  # noqa: ASYNC240
    is_answered = is_said = False
    async with session:
        if question:
            speaking = asyncio.create_task(speak(session, pcm))
        else:
            await session.send_message(questions.pop())
        async for event in session:
            match event.type:
                case "raw_model_event" if event.data.type == "raw_server_event":
                    told["events"].append(event.data.data["type"])
                    if event.data.data["type"] == "response.done":
                        done = event.data.data["response"]["output"]
                        is_said = any(item["type"] == "message" for item in done)
                    if event.data.data["type"] == "session.updated":
                        heard = event.data.data["session"]["audio"]["input"]
                        told["turn_detection"] = heard["turn_detection"]["type"]
                case "raw_model_event" if event.data.type == "exception":
                    told["errors"].append(repr(event.data.exception))
                case "error":
                    told["errors"].append(str(event.error))
                case "audio":
                    told["audio_bytes"] += len(event.audio.data)
                case "agent_end" if not is_said:
                    pass  # a call, which is answered next
                case "agent_end" if questions:
                    await session.send_message(questions.pop())
                case "agent_end":
                    is_answered = True
            # That the user has stopped may be heard after the model has answered.
            if is_answered and any(
                item.role == "user" for item in session._history if item.type == "message"
            ):
                break
        if question:
            speaking.cancel()
        told["history"] = [item.model_dump() for item in session._history]
    return told


async def speak(session: RealtimeSession, pcm: bytes) -> None:
    """The question, and silence for ever."""
    due = asyncio.get_running_loop().time()
    while True:
        await session.send_audio(pcm[:PIECE].ljust(PIECE, b"\0"))
        pcm = pcm[PIECE:]
        due += PIECE_S
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(converse(*sys.argv[1:]), PATIENCE_S))))
