"""An agent of OpenAI's SDK whose model has to call a function of this program; prints what came as JSON.

    python agent_tools.py ws://HOST:PORT/v1/realtime?model=MODEL KEY MODEL

It runs in the environment of `voice_agents.py`.
"""

import asyncio
import json
import sys
from typing import Any, Literal

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession
from agents.realtime.model_inputs import RealtimeModelSendRawMessage

PATIENCE_S = 60.0


async def update(session: RealtimeSession, **changes: Any) -> None:
    """Changes what the agents' own settings have no word for."""
    data: Any = {"session": {"type": "realtime", **changes}}
    await session.model.send_event(
        RealtimeModelSendRawMessage(message={"type": "session.update", "other_data": data})
    )


async def converse(url: str, key: str, model: str) -> dict[str, Any]:
    told: dict[str, Any] = {"events": [], "errors": [], "called": [], "history": []}
    sessions: list[RealtimeSession] = []

    @function_tool
    async def forecast(city: Literal["Bern", "Rome"], days: Literal[1, 2, 3]) -> str:
        """The weather of a city."""
        told["called"].append((city, days))
        await update(sessions[0], tool_choice="none", max_output_tokens=16)
        return f"Rain in {city}."

    agent = RealtimeAgent(name="Antiphon", tools=[forecast])
    settings: Any = {
        "model_name": model,
        "output_modalities": ["text"],
        "tool_choice": "required",
        "audio": {"input": {"turn_detection": None}},
    }
    runner = RealtimeRunner(agent, config={"model_settings": settings})
    session = await runner.run(model_config={"url": url, "api_key": key})
    sessions.append(session)
    async with session:
        await update(session, parallel_tool_calls=False)
        await session.send_message("What is the weather?")
        async for event in session:
            match event.type:
                case "raw_model_event" if event.data.type == "raw_server_event":
                    told["events"].append(event.data.data["type"])
                    if told["events"].count("response.done") == 2:
                        break
                case "raw_model_event" if event.data.type == "exception":
                    told["errors"].append(repr(event.data.exception))
                case "error":
                    told["errors"].append(str(event.error))
        told["history"] = [item.model_dump() for item in session._history]
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(converse(*sys.argv[1:]), PATIENCE_S))))
