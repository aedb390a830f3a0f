"""Ask about a picture in a chat: `python chat.py ws://localhost:8006 circle.jpg answer.wav`."""

import asyncio
import sys

import antiphon
from antiphon import Image, Message


async def look(url: str, picture: str, recording: str) -> None:
    chat = [Message("user", [Image.read(picture), "What do you see?"])]
    async with antiphon.connect(url) as client:
        async with client.chat(chat) as turn:
            async for event in turn:
                match event:
                    case antiphon.TextDelta(text=text):
                        print(text, end="", flush=True)
                    case antiphon.Answer(text=answer):
                        print()
        chat += [Message("assistant", answer), Message("user", "What is your name?")]
        async with client.chat(chat, speech=antiphon.Speech()) as turn:
            spoken = await turn.answer()
    print(spoken.text)
    antiphon.write_wav(recording, spoken.samples)


asyncio.run(look(*sys.argv[1:]))
