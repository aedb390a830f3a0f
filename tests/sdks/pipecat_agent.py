"""A conversation by Pipecat, as its users hold one; prints what came as JSON.

    python pipecat_agent.py ws://HOST:PORT KEY MODEL PCM realtime|live|tool TURNS [TYPED [LATE_S [OVER]]]

A pipeline with Pipecat's context aggregators around its service for OpenAI's protocol. The user says the
question in the file PCM, LATE_S seconds after the connection, and then TYPED times types one. With `tool` the
context begins with a greeting and has a light, which is asked for. With OVER a joke is asked for at last, and
the question is spoken over it. The microphone is open from the start and sends 20 ms of 16-bit PCM at 24 kHz
at a time. TURNS is `default` or the JSON of a turn detection.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.adapters.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMRunFrame,
    OutputAudioRawFrame,
    TranscriptionFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.live.llm import OpenAILiveLLMService
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService

PATIENCE_S = 500.0
PIECE_S = 0.02
PIECE = 960
"""Bytes of that."""
RATE_HZ = 24_000
SET_LIGHT = FunctionSchema(
    name="set_light",
    description="Turn the light on or off.",
    properties={"state": {"type": "string", "enum": ["on", "off"]}},
    required=["state"],
)


class Listener(FrameProcessor):
    """Notes what the service says."""

    def __init__(self) -> None:
        super().__init__()
        self.audio_bytes = 0
        self.interruptions = 0
        self.speaks = asyncio.Event()
        self.words: list[str] = []
        self.answers: asyncio.Queue[str] = asyncio.Queue()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        match frame:
            case OutputAudioRawFrame():
                self.audio_bytes += len(frame.audio)
                self.speaks.set()
            case InterruptionFrame():
                self.interruptions += 1
            case TTSTextFrame():
                self.words.append(frame.text)
            case LLMFullResponseEndFrame():
                self.answers.put_nowait("".join(self.words))
                self.words.clear()
        await self.push_frame(frame, direction)


class Ear(FrameProcessor):
    """Notes what the service understood, and its errors, on their way upstream."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.errors: list[str] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        match frame:
            case TranscriptionFrame():
                self.heard.append(frame.text)
            case ErrorFrame():
                self.errors.append(frame.error)
        await self.push_frame(frame, direction)


class Microphone:
    """Silence, and what is said into it, at the pace of speech."""

    def __init__(self, task: PipelineTask) -> None:
        self._task = task
        self._pcm = b""

    def say(self, pcm: bytes) -> None:
        self._pcm += pcm

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            piece, self._pcm = self._pcm[:PIECE].ljust(PIECE, b"\0"), self._pcm[PIECE:]
            await self._task.queue_frames([InputAudioRawFrame(piece, RATE_HZ, 1)])
            due += PIECE_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def converse(
    url: str,
    key: str,
    model: str,
    question: str,
    kind: str,
    turns: str,
    typed: str = "1",
    late_s: str = "0",
    over: str = "",
) -> dict[str, Any]:
    pcm = Path(question).read_bytes()  # noqa: ASYNC240
    if kind == "live":
        service: Any = OpenAILiveLLMService(
            api_key=key,
            base_url=f"{url}/v1/live/sessions",
            settings=OpenAILiveLLMService.Settings(model=model, system_instruction="Answer briefly."),
        )
    else:
        properties = events.SessionProperties(instructions="Answer briefly.")
        if turns != "default":
            given = json.loads(turns)
            shape = events.SemanticTurnDetection if given["type"] == "semantic_vad" else events.TurnDetection
            heard = events.AudioInput(
                transcription=events.InputAudioTranscription(), turn_detection=shape(**given)
            )
            properties.audio = events.AudioConfiguration(input=heard)
        service = OpenAIRealtimeLLMService(
            api_key=key,
            base_url=f"{url}/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(model=model, session_properties=properties),
        )
    called: list[str] = []

    async def set_light(call: FunctionCallParams) -> None:
        called.append(call.arguments["state"])
        await call.result_callback({"state": call.arguments["state"]})

    context = LLMContext()
    if kind == "tool":
        greeting: Any = {"role": "user", "content": "hello"}
        context = LLMContext([greeting], ToolsSchema(standard_tools=[SET_LIGHT]))
        service.register_function("set_light", set_light)
    aggregators = LLMContextAggregatorPair(context)
    ear, listener = Ear(), Listener()
    pipeline = Pipeline([ear, aggregators.user(), service, listener, aggregators.assistant()])
    task = PipelineTask(
        pipeline,
        params=PipelineParams(audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ),
        idle_timeout_secs=None,
    )
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    microphone = Microphone(task)
    microphone.say(bytes(round(float(late_s) * RATE_HZ) * 2) + pcm)
    speaking = asyncio.create_task(microphone.run())
    if kind != "realtime":
        await task.queue_frames([LLMRunFrame()])

    async def answer() -> str:
        while not (said := await listener.answers.get()) and kind == "tool":
            pass  # a call, which is answered next
        return said

    answers = [await answer()]
    if kind == "tool":
        answers.append(await answer())

    async def ask(text: str) -> None:
        words = events.ItemContent(type="input_text", text=text)
        item = events.ConversationItem(type="message", role="user", content=[words])
        await service.send_client_event(events.ConversationItemCreateEvent(item=item))
        await service.send_client_event(events.ResponseCreateEvent())

    for _ in range(int(typed)):
        await ask("turn the light off" if kind == "tool" else "what is your name")
        answers.append(await answer())
    if over:
        listener.speaks.clear()
        await ask("tell me a joke")
        await listener.speaks.wait()
        before = listener.interruptions
        microphone.say(pcm)
        while listener.interruptions == before or answers[-1] != answers[0]:
            answers.append(await listener.answers.get())
    speaking.cancel()
    await task.cancel()
    await asyncio.wait({running}, timeout=20)
    return {
        "answers": answers,
        "called": called,
        "heard": ear.heard,
        "errors": ear.errors,
        "audio_bytes": listener.audio_bytes,
        "interruptions": listener.interruptions,
        "history": [[message["role"], message.get("content")] for message in context.get_messages()],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(converse(*sys.argv[1:]), PATIENCE_S))))
