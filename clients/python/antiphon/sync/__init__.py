"""A blocking client for scripts: the asyncio client on a loop in a thread of its own.

>>> with antiphon.sync.connect("ws://localhost:8006") as client:
...     with client.duplex() as session, session.stream_file("question.wav"):
...         for event in session:
...             match event:
...                 case antiphon.TextDelta(text=text):
...                     print(text, end="")
...                 case antiphon.TurnEnd():
...                     break

Every call has a deadline, `timeout_s` of `connect` or of the call, and raises `CallTimeout` when it passes.
Calls may come from several threads: one may send while another iterates. Coroutines must not call this
client; they use `antiphon.connect`.
"""

from antiphon.sync.client import TIMEOUT_S, Client, connect
from antiphon.sync.sessions import ChatTurn, DuplexSession, Streaming, TranscriptionSession

__all__ = [
    "TIMEOUT_S",
    "ChatTurn",
    "Client",
    "DuplexSession",
    "Streaming",
    "TranscriptionSession",
    "connect",
]
