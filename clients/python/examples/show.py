"""Ask a spoken question about a picture: `python show.py ws://localhost:8006 question.wav circle.jpg`."""

import asyncio
import sys

import antiphon


async def show(url: str, question: str, picture: str) -> None:
    async with antiphon.connect(url) as client:
        async with client.duplex(mode="video", instructions="Answer briefly.") as session:
            await session.send_frame(picture)
            async with session.stream_file(question):
                async for event in session:
                    match event:
                        case antiphon.TextDelta(text=text):
                            print(text, end="", flush=True)
                        case antiphon.TurnEnd():
                            print()
                            break


asyncio.run(show(*sys.argv[1:]))
