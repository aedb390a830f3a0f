"""Ask a recorded question without the SDK: `python bare.py ws://127.0.0.1:8006 question.wav answer.pcm`."""

import asyncio
import base64
import json
import sys
import wave
from pathlib import Path

import websockets

SECOND = 2 * 16_000  # bytes of PCM16 at 16 kHz
ANSWER_S = 12  # seconds of silence behind the question, during which the model answers


async def talk(url: str, pcm: bytes) -> bytes:
    async with websockets.connect(f"{url}/v1/realtime?mode=audio", max_size=2**24) as socket:

        async def send(**event: object) -> None:
            await socket.send(json.dumps(event))

        async def play() -> None:
            for start in range(0, len(pcm), SECOND):
                second = pcm[start : start + SECOND].ljust(SECOND, b"\0")
                await send(
                    type="input.append",
                    input={"audio": base64.b64encode(second).decode(), "format": "pcm16"},
                )
                await asyncio.sleep(1)  # the model listens in real time

        heard = bytearray()
        async with asyncio.TaskGroup() as tasks:
            async for message in socket:
                match json.loads(message):
                    case {"type": "session.queued", "position": place}:
                        print(f"Waiting at place {place}.", file=sys.stderr)
                    case {"type": "session.queue_done"}:
                        await send(type="session.init", payload={})
                    case {"type": "session.created"}:
                        playing = tasks.create_task(play())
                    case {"kind": "text", "text": text}:
                        print(text, end="", flush=True)
                    case {"kind": "audio", "audio": samples}:
                        heard += base64.b64decode(samples)  # float32 at 24 kHz
                    case {"kind": "listen", "reason": "turn_end"}:
                        playing.cancel()
                        await send(type="session.close")
                    case {"type": "error", "error": {"message": problem}}:
                        raise SystemExit(problem)
    return bytes(heard)


url, question, answer = sys.argv[1:]
with wave.open(question) as file:
    pcm = file.readframes(file.getnframes()) + bytes(ANSWER_S * SECOND)
Path(answer).write_bytes(asyncio.run(talk(url, pcm)))
