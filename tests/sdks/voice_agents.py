"""A conversation by OpenAI's SDK of voice agents, as its users hold one; prints what came as JSON.

    python voice_agents.py ws://HOST:PORT/v1/realtime?model=MODEL KEY MODEL

It runs in an environment of its own, since that SDK needs an older `websockets`. Events that do not fit their
types it reports as errors.
"""

import asyncio
import json
import sys
from typing import Any

from agents.realtime import RealtimeAgent, RealtimeRunner

PATIENCE_S = 60.0


async def converse(url: str, key: str, model: str) -> dict[str, Any]:
    agent = RealtimeAgent(name="Antiphon", instructions="Answer briefly.")
    settings: Any = {"model_name": model, "audio": {"input": {"turn_detection": {"type": "server_vad"}}}}
    runner = RealtimeRunner(agent, config={"model_settings": settings})
    session = await runner.run(model_config={"url": url, "api_key": key})
    told: dict[str, Any] = {"events": [], "errors": [], "audio_bytes": 0, "history": []}
    questions = ["tell me a joke"]
    async with session:
        await session.send_message("what is your name")
        async for event in session:
            match event.type:
                case "raw_model_event" if event.data.type == "raw_server_event":
                    told["events"].append(event.data.data["type"])
                case "raw_model_event" if event.data.type == "exception":
                    told["errors"].append(repr(event.data.exception))
                case "error":
                    told["errors"].append(str(event.error))
                case "audio":
                    told["audio_bytes"] += len(event.audio.data)
                case "agent_end" if questions:
                    await session.send_message(questions.pop())
                case "agent_end":
                    break
        told["history"] = [item.model_dump() for item in session._history]
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(converse(*sys.argv[1:]), PATIENCE_S))))
