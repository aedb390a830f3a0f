"""Whether the server accepts an event, judged by its form and content in any state of a session."""

import json
from typing import Any

from tests.support.schemas import Event
from tests.ws_adapter.support.conversation import CATALOGUE, INIT, ready_signal
from tests.ws_adapter.support.live_conversation import LiveConversation
from ws_adapter.protocol.chat.realtime_chat import RealtimeChat
from ws_adapter.protocol.chat.ws_chat import Chat
from ws_adapter.protocol.chat.ws_chat_events import Error
from ws_adapter.protocol.core.actions import Send
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.machine import Machine
from ws_adapter.protocol.core.signals import TextPurpose
from ws_adapter.protocol.duplex.earlier import Earlier
from ws_adapter.protocol.duplex.realtime import Realtime
from ws_adapter.protocol.duplex.vocabulary import Begin, HoldFrame, Input, Vocabulary
from ws_adapter.protocol.duplex.ws_duplex import Duplex
from ws_adapter.protocol.realtime_ga.wire.frames import FRAMES as GA_FRAMES
from ws_adapter.protocol.transcription.commands import ChooseModel, Rejection, read_command
from ws_adapter.protocol.transcription_ga.frames import FRAMES as GA_TRANSCRIPTION_FRAMES
from ws_adapter.protocol.wire.errors import ErrorCode, Refusal
from ws_adapter.protocol.wire.events import ErrorEvent
from ws_adapter.protocol.wire.frames import Fault, FrameReader
from ws_adapter.protocol.wire.limits import Limits


def vocabulary(dialect: str) -> Vocabulary:
    """The one of `dialect`, for sessions that see."""
    match dialect:
        case "duplex":
            return Duplex("omni", Mode.VIDEO, Limits(), lambda: "1", announces_slot=True)
        case "earlier":
            return Earlier("rt_1", Mode.VIDEO, 60.0, lambda: "1")
        case _:
            return Realtime("sess_1", Mode.VIDEO, 60.0, lambda: "1")


def refusal(dialect: str, event: Event) -> Refusal | None:
    """Return why the server refuses `event` in every state of a session, or None."""
    if dialect == "transcription":
        return _rejection(event)
    if dialect == "live":
        return _refused_live(event)
    if dialect == "realtime_ga":
        return _malformed(GA_FRAMES, event)
    if dialect == "transcription_ga":
        return _malformed(GA_TRANSCRIPTION_FRAMES, event)
    if dialect in ("chat", "realtime_chat"):
        return _refused_by(Chat(Limits(), lambda: CATALOGUE) if dialect == "chat" else _chat(event), event)
    try:
        match vocabulary(dialect).decode(json.dumps(event).encode()):
            case Begin(read=read):
                read(CATALOGUE)
            case Input(read=read):
                read(None)
            case HoldFrame(read=read):
                read()
    except Refusal as refused:
        return refused
    return None


def _chat(event: Event) -> RealtimeChat:
    """A chat in which the time for `event` has come."""
    chat = RealtimeChat("sess_1", Limits(), lambda: CATALOGUE, lambda: "1")
    chat.granted(0.0)
    if event.get("type") != "session.init":
        chat.text_frame(json.dumps(INIT).encode(), 0.0)
        chat.signal(ready_signal(), 0.0)
    return chat


def _refused_by(chat: Machine, event: Event) -> Refusal | None:
    for action in chat.text_frame(json.dumps(event).encode(), 0.0):
        match action:
            case Send(event=ErrorEvent(error=body)):
                return Refusal(body.code, body.message)
            case Send(event=Error(error=message, code=code)):
                return Refusal(code, message)
    return None


def _refused_live(event: Event) -> Refusal | None:
    """In a session that has begun, but for what begins one."""
    session = LiveConversation()
    if event.get("type") != "session.start":
        session.begin(reads=frozenset(TextPurpose))
    for answer in session.client(json.dumps(event).encode()):
        if answer["type"] == "error":
            return Refusal(ErrorCode.INVALID_PAYLOAD, answer["error"]["message"])
    return None


def _malformed(frames: FrameReader[Any], event: Event) -> Refusal | None:
    """By its form alone: what else is taken hangs on the session and its model."""
    read = frames.read(json.dumps(event).encode(), False)
    return read.refusal if isinstance(read, Fault) else None


def _rejection(event: Event) -> Refusal | None:
    try:
        command = read_command(json.dumps(event).encode())
    except Rejection as rejected:
        return Refusal(ErrorCode.INVALID_PAYLOAD, str(rejected))
    if isinstance(command, ChooseModel) and command.model not in CATALOGUE.models:
        return Refusal(ErrorCode.INVALID_PAYLOAD, "no such model")
    return None
