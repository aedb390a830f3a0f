"""A conversation by LiveKit's agents, as its users hold one; prints what came as JSON.

    python livekit_agent.py http://HOST:PORT/v1 KEY MODEL QUESTION.pcm realtime|live|tool [TURN_DETECTION]

An `AgentSession` hears a spoken question, and over Realtime three typed ones. Its second answer is
interrupted by the program, its fourth by the question, spoken over it. With `tool` it has a light, of which
the question speaks, and one typed request. Its microphone is the file, 24 kHz,
one channel, 16-bit PCM without a header, at the pace of speech, and silence around it; its loudspeaker plays
as fast as sound is spoken. TURN_DETECTION is `default` or the JSON of one.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Literal

from livekit import rtc
from livekit.agents import Agent, AgentSession, function_tool
from livekit.agents.voice import io
from livekit.plugins import openai
from openai.types.realtime import RealtimeAudioInputTurnDetection
from pydantic import TypeAdapter

PATIENCE_S = 120.0
PIECE_S = 0.02
PIECE = 960
"""Bytes of that."""
RATE_HZ = 24_000


class Microphone(io.AudioInput):
    """Silence, and what is said into it."""

    def __init__(self) -> None:
        super().__init__(label="file")
        self._pcm = b""
        self._due = time.monotonic()

    def say(self, pcm: bytes) -> None:
        self._pcm += pcm

    async def __anext__(self) -> rtc.AudioFrame:
        self._due += PIECE_S
        await asyncio.sleep(max(0.0, self._due - time.monotonic()))
        piece, self._pcm = self._pcm[:PIECE].ljust(PIECE, b"\0"), self._pcm[PIECE:]
        return rtc.AudioFrame(piece, RATE_HZ, 1, PIECE // 2)


class Loudspeaker(io.AudioOutput):
    """Plays in real time, as a room does."""

    def __init__(self) -> None:
        super().__init__(label="clock", capabilities=io.AudioOutputCapabilities(pause=False))
        self.bytes = 0
        self._began_at: float | None = None
        self._length_s = 0.0
        self._end: asyncio.TimerHandle | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if self._began_at is None:
            self._began_at = time.monotonic()
            self.on_playback_started(created_at=time.time())
        self.bytes += len(bytes(frame.data))
        self._length_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._began_at is not None:
            left_s = max(0.0, self._began_at + self._length_s - time.monotonic())
            self._end = asyncio.get_running_loop().call_later(left_s, self._finish, False)

    def clear_buffer(self) -> None:
        if self._began_at is not None:
            self._finish(True)

    def _finish(self, interrupted: bool) -> None:
        if self._end is not None:
            self._end.cancel()
        began_at, length_s = self._began_at or time.monotonic(), self._length_s
        self._began_at, self._length_s, self._end = None, 0.0, None
        position = min(length_s, time.monotonic() - began_at)
        self.on_playback_finished(playback_position=position, interrupted=interrupted)


async def converse(url: str, key: str, model: str, question: str, kind: str, turns: str) -> dict[str, Any]:
    pcm = Path(question).read_bytes()  # noqa: ASYNC240
    given: dict[str, Any] = {}
    if turns != "default":
        given["turn_detection"] = TypeAdapter(RealtimeAudioInputTurnDetection).validate_json(turns)
    if kind == "live":
        llm: Any = openai.realtime.GPTLiveModel(base_url=url, api_key=key, model=model)
    else:
        llm = openai.realtime.RealtimeModel(base_url=url, api_key=key, model=model, **given)
    session: AgentSession[None] = AgentSession(llm=llm)
    microphone, loudspeaker = Microphone(), Loudspeaker()
    session.input.audio, session.output.audio = microphone, loudspeaker
    told: dict[str, Any] = {"errors": [], "answers": [], "interrupted": [], "heard": [], "called": []}

    @function_tool
    async def set_light(state: Literal["on", "off"]) -> str:
        """Turn the light on or off."""
        told["called"].append(state)
        return f"The light is {state}."

    answered = asyncio.Event()
    speaks = asyncio.Event()

    def on_item(event: Any) -> None:
        if event.item.type == "message" and event.item.role == "assistant":
            told["answers"].append(event.item.text_content)
            told["interrupted"].append(event.item.interrupted)
            answered.set()

    session.on("conversation_item_added", on_item)
    session.on("user_input_transcribed", lambda event: told["heard"].append(event.transcript))
    session.on("error", lambda event: told["errors"].append(repr(event.error)))
    session.on(
        "agent_state_changed", lambda event: speaks.set() if event.new_state == "speaking" else speaks.clear()
    )

    async def answer() -> None:
        await answered.wait()
        answered.clear()

    tools = [set_light] if kind == "tool" else []
    await session.start(Agent(instructions="Answer briefly.", tools=tools))
    try:
        microphone.say(pcm)
        await answer()
        if kind == "tool":
            session.generate_reply(user_input="turn the light off")
            await answer()
        elif kind == "realtime":
            session.generate_reply(user_input="tell me a joke")
            await speaks.wait()
            await session.interrupt()
            await answer()
            session.generate_reply(user_input="what is your name")
            await answer()
            session.generate_reply(user_input="tell me a joke")
            await speaks.wait()
            microphone.say(pcm)
            await answer()
            await answer()
        told["history"] = [
            [item.role, item.text_content] for item in session.history.items if item.type == "message"
        ]
    finally:
        told["audio_bytes"] = loudspeaker.bytes
        await session.aclose()
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(converse(*sys.argv[1:]), PATIENCE_S))))
