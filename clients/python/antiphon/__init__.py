"""Antiphon: talk to full-duplex speech models.

    async with antiphon.connect("ws://localhost:8006") as client:
        async with client.duplex(instructions="You are a helpful assistant.") as session:
            async with session.stream_file("question.wav"):
                async for event in session:
                    match event:
                        case antiphon.TextDelta(text=text):
                            print(text, end="")
                        case antiphon.TurnEnd():
                            break

`client.chat` requests one answer to a chat of text, pictures, recordings and videos, and `client.transcribe`
transcribes speech. `antiphon.sync` offers the same as blocking calls. Services in the same cluster use
`antiphon.grpc.Session`, which connects to a worker directly.
"""

from antiphon import sync
from antiphon.audio.devices import Microphone, Speaker
from antiphon.audio.files import read_audio
from antiphon.audio.pacing import FileStream
from antiphon.audio.samples import INPUT_RATE_HZ, OUTPUT_RATE_HZ
from antiphon.audio.wav import read_wav, write_wav
from antiphon.client import Client, connect
from antiphon.connection.retry import Retry
from antiphon.errors import (
    AntiphonError,
    AudioError,
    AuthError,
    CallTimeout,
    ConnectError,
    ImageError,
    ProtocolError,
    QueueFull,
    ReplayError,
    SessionClosed,
    VideoError,
)
from antiphon.protocol.chat import GenerationConfig, ImageConfig, Speech
from antiphon.protocol.duplex import DuplexConfig
from antiphon.protocol.events import (
    Answer,
    AudioDelta,
    CallDelta,
    ChatEvent,
    Closed,
    ConnectionLost,
    Created,
    ErrorEvent,
    Event,
    Interrupted,
    Listening,
    Moved,
    Prefilled,
    Queued,
    Resumed,
    ResumeOffer,
    TextDelta,
    ThinkingDelta,
    Transcript,
    TranscriptionEvent,
    TurnEnd,
)
from antiphon.protocol.messages import Call, Clip, Image, Message, Part, Tool, Video
from antiphon.session.chat import ChatTurn
from antiphon.session.duplex import DuplexSession
from antiphon.session.transcription import TranscriptionSession
from antiphon.version import VERSION

__version__ = VERSION

__all__ = [
    "INPUT_RATE_HZ",
    "OUTPUT_RATE_HZ",
    "Answer",
    "AntiphonError",
    "AudioDelta",
    "AudioError",
    "AuthError",
    "Call",
    "CallDelta",
    "CallTimeout",
    "ChatEvent",
    "ChatTurn",
    "Client",
    "Clip",
    "Closed",
    "ConnectError",
    "ConnectionLost",
    "Created",
    "DuplexConfig",
    "DuplexSession",
    "ErrorEvent",
    "Event",
    "FileStream",
    "GenerationConfig",
    "Image",
    "ImageConfig",
    "ImageError",
    "Interrupted",
    "Listening",
    "Message",
    "Microphone",
    "Moved",
    "Part",
    "Prefilled",
    "ProtocolError",
    "QueueFull",
    "Queued",
    "ReplayError",
    "ResumeOffer",
    "Resumed",
    "Retry",
    "SessionClosed",
    "Speaker",
    "Speech",
    "TextDelta",
    "ThinkingDelta",
    "Tool",
    "Transcript",
    "TranscriptionEvent",
    "TranscriptionSession",
    "TurnEnd",
    "Video",
    "VideoError",
    "connect",
    "read_audio",
    "read_wav",
    "sync",
    "write_wav",
]
