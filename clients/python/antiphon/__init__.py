"""Antiphon: talk to full-duplex speech models.

>>> async with antiphon.connect("ws://localhost:8006") as client:
...     async with client.duplex(instructions="You are a helpful assistant.") as session:
...         async with session.stream_file("question.wav"):
...             async for event in session:
...                 match event:
...                     case antiphon.TextDelta(text=text):
...                         print(text, end="")
...                     case antiphon.TurnEnd():
...                         break

`client.chat` asks for one answer to a chat of text, pictures and recordings, `client.transcribe` writes down
what is said. Callers inside the house use `antiphon.grpc.Session`, which talks to a worker directly.
"""

__version__ = "0.1.0"  # before the imports: a module below reads it

from antiphon.audio import INPUT_RATE_HZ, OUTPUT_RATE_HZ
from antiphon.chat import ChatTurn
from antiphon.chat_wire import GenerationConfig, ImageConfig, Speech
from antiphon.client import Client, connect
from antiphon.duplex import DuplexSession
from antiphon.errors import (
    AntiphonError,
    AudioError,
    AuthError,
    ConnectError,
    ProtocolError,
    QueueFull,
    SessionClosed,
)
from antiphon.events import (
    Answer,
    AudioDelta,
    ChatEvent,
    Closed,
    Created,
    ErrorEvent,
    Event,
    Interrupted,
    Listening,
    Prefilled,
    Queued,
    TextDelta,
    Transcript,
    TranscriptionEvent,
    TurnEnd,
)
from antiphon.messages import Clip, Image, Message, Part
from antiphon.pacing import FileStream
from antiphon.transcription import TranscriptionSession
from antiphon.wav import read_wav, write_wav
from antiphon.wire import DuplexConfig

__all__ = [
    "INPUT_RATE_HZ",
    "OUTPUT_RATE_HZ",
    "Answer",
    "AntiphonError",
    "AudioDelta",
    "AudioError",
    "AuthError",
    "ChatEvent",
    "ChatTurn",
    "Client",
    "Clip",
    "Closed",
    "ConnectError",
    "Created",
    "DuplexConfig",
    "DuplexSession",
    "ErrorEvent",
    "Event",
    "FileStream",
    "GenerationConfig",
    "Image",
    "ImageConfig",
    "Interrupted",
    "Listening",
    "Message",
    "Part",
    "Prefilled",
    "ProtocolError",
    "QueueFull",
    "Queued",
    "SessionClosed",
    "Speech",
    "TextDelta",
    "Transcript",
    "TranscriptionEvent",
    "TranscriptionSession",
    "TurnEnd",
    "connect",
    "read_wav",
    "write_wav",
]
