"""Ask a worker a recorded question directly: `python direct.py 127.0.0.1:50051 question.wav`."""

import asyncio
import sys

import numpy as np

import antiphon
from antiphon.grpc import Session, Text, UnitDone, UnitEnd
from antiphon.v1 import inference_service_pb2 as pb


async def ask(target: str, question: str) -> None:
    pcm = antiphon.read_wav(question)
    pcm = np.pad(pcm, (0, 8 * 16_000))  # eight seconds in which to answer
    async with Session.open(target, pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)) as session:

        async def send() -> None:
            for start in range(0, len(pcm), 16_000):
                await session.send_unit(pcm[start : start + 16_000])
            session.half_close()

        sending = asyncio.create_task(send())
        async for output in session:
            match output:
                case Text(text=text):
                    print(text, end="", flush=True)
                case UnitDone(end=UnitEnd.TURN):
                    print()
        await sending


asyncio.run(ask(*sys.argv[1:]))
