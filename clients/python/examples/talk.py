"""Ask a recorded question over WebSocket: `python talk.py ws://127.0.0.1:8006 question.wav answer.wav`."""

import asyncio
import sys

import numpy as np

import antiphon


async def talk(url: str, question: str, answer: str) -> None:
    heard = []
    async with antiphon.connect(url) as client, client.duplex() as session, session.stream_file(question):
        async for event in session:
            match event:
                case antiphon.TextDelta(text=text):
                    print(text, end="", flush=True)
                case antiphon.AudioDelta(samples=pcm):
                    heard.append(pcm)  # float32, 24 kHz
                case antiphon.TurnEnd():
                    break
    antiphon.write_wav(answer, np.concatenate(heard), antiphon.OUTPUT_RATE_HZ)


asyncio.run(talk(*sys.argv[1:]))
