"""Chat with OpenAI's SDK: `python completions.py http://localhost:8006 picture.jpg question.wav`."""

import base64
import sys
from pathlib import Path

from openai import OpenAI


def base64_of(file: str) -> str:
    return base64.b64encode(Path(file).read_bytes()).decode()


url, picture, recording = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="none")
model = client.models.list().data[0].id

answer = client.chat.completions.create(
    model=model,
    temperature=0,
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + base64_of(picture)}},
                {"type": "text", "text": "What do you see?"},
            ],
        }
    ],
)
print(answer.choices[0].message.content)

stream = client.chat.completions.create(
    model=model,
    temperature=0,
    messages=[{"role": "user", "content": "What is two plus three?"}],
    stream=True,
)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream))

spoken = client.chat.completions.create(
    model=model,
    temperature=0,
    modalities=["text", "audio"],
    audio={"voice": "alloy", "format": "wav"},
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "input_audio", "input_audio": {"data": base64_of(recording), "format": "wav"}}
            ],
        }
    ],
)
audio = spoken.choices[0].message.audio
if audio is not None:
    print(audio.transcript)
    Path("answer.wav").write_bytes(base64.b64decode(audio.data))
