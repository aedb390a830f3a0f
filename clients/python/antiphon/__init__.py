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

Callers inside the house use `antiphon.grpc.Session`, which talks to a worker directly.
"""

__version__ = "0.1.0"  # before the imports: a module below reads it

from antiphon.audio import INPUT_RATE_HZ, OUTPUT_RATE_HZ
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
    AudioDelta,
    Closed,
    Created,
    ErrorEvent,
    Event,
    Interrupted,
    Listening,
    Queued,
    TextDelta,
    TurnEnd,
)
from antiphon.pacing import FileStream
from antiphon.wav import read_wav, write_wav
from antiphon.wire import DuplexConfig

__all__ = [
    "INPUT_RATE_HZ",
    "OUTPUT_RATE_HZ",
    "AntiphonError",
    "AudioDelta",
    "AudioError",
    "AuthError",
    "Client",
    "Closed",
    "ConnectError",
    "Created",
    "DuplexConfig",
    "DuplexSession",
    "ErrorEvent",
    "Event",
    "FileStream",
    "Interrupted",
    "Listening",
    "ProtocolError",
    "QueueFull",
    "Queued",
    "SessionClosed",
    "TextDelta",
    "TurnEnd",
    "connect",
    "read_wav",
    "write_wav",
]
