"""Transcribe recordings, one after the other: `python transcribe.py ws://localhost:8006 one.wav two.wav`."""

import asyncio
import sys

import antiphon


async def write_down(url: str, *recordings: str) -> None:
    async with antiphon.connect(url) as client, client.transcribe() as session:
        for recording in recordings:
            async with session.stream_file(recording):  # real_time=True sends it as a microphone would
                async for event in session:
                    match event:
                        case antiphon.TextDelta(text=text):
                            print(text, end="", flush=True)
                        case antiphon.Transcript():
                            print()
                            break
                        case antiphon.ErrorEvent(message=message):
                            raise SystemExit(message)


asyncio.run(write_down(*sys.argv[1:]))
