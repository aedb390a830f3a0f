"""What the server says to an event, whenever it comes: its form and its content alone."""

import json

from tests.adapter.conversation import CATALOGUE
from tests.schemas import Event
from ws_adapter.dialects.config import Mode
from ws_adapter.dialects.duplex import Duplex
from ws_adapter.dialects.earlier import Earlier
from ws_adapter.dialects.errors import Refusal
from ws_adapter.dialects.limits import Limits
from ws_adapter.dialects.realtime import Realtime
from ws_adapter.dialects.vocabulary import Begin, HoldFrame, Input, Vocabulary


def vocabulary(dialect: str) -> Vocabulary:
    """The one of `dialect`, for sessions that see."""
    match dialect:
        case "duplex":
            return Duplex("omni", Mode.VIDEO, Limits(), lambda prefix: prefix, announces_slot=True)
        case "earlier":
            return Earlier("rt_1", Mode.VIDEO, 60.0, lambda prefix: prefix)
        case _:
            return Realtime("sess_1", Mode.VIDEO, 60.0, lambda prefix: prefix)


def refusal(dialect: str, event: Event) -> Refusal | None:
    """Why the server does not take `event`, at whatever time it comes."""
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
