"""The dialect of `/ws/duplex` without a network."""

import base64
import io
from typing import Any, ClassVar

from PIL import Image

from tests.ws_adapter.support.conversation import Conversation, Event, bring, pcm, ready_signal
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.duplex.vocabulary import Vocabulary
from ws_adapter.protocol.duplex.ws_duplex import Duplex

PREPARE: Event = {"type": "prepare", "system_prompt": "Answer briefly."}
PAUSE: Event = {"type": "pause"}
RESUME: Event = {"type": "resume"}
INTERRUPT: Event = {"type": "interrupt"}
STOP: Event = {"type": "stop"}


def chunk(seconds: float = 1.0, level: float = 0.1, **fields: Any) -> Event:
    """An `audio_chunk`."""
    return {"type": "audio_chunk", "audio_base64": pcm(seconds, level), **fields}


def picture(shade: int = 0, side: int = 16) -> bytes:
    """A PNG file; pictures of different shades differ."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (shade, shade, shade)).save(file, "PNG")
    return file.getvalue()


def pictured(shade: int = 0, side: int = 16) -> str:
    """Base64 of `picture`."""
    return base64.b64encode(picture(shade, side)).decode()


class DuplexConversation(Conversation):
    """One session on `/ws/duplex/{label}`, or with `bare` on `/ws/duplex`; `notes` went to the log."""

    opener: ClassVar[Event] = PREPARE

    def __init__(
        self, *, mode: Mode = Mode.VIDEO, bare: bool = False, recording_id: str | None = None, **options: Any
    ) -> None:
        self._bare = bare
        self._recording_id = recording_id
        super().__init__(mode=mode, **{"silence_tail_units": 0, **options})

    def vocabulary(self, mode: Mode) -> Vocabulary:
        how: Any = {"announces_slot": not self._bare, "recording_id": self._recording_id}
        return Duplex("omni_k3f9", mode, self.limits, self._new_token, **how)

    def activate(self, payload: Event | None = None, **ready: Any) -> Event:
        """Bring the session to ACTIVE; return `prepared`."""
        self.connect()
        self.client({"type": "prepare", **(payload or {})})
        return self.worker(ready_signal(**ready))[0]


def duplex_in(state: State, **options: Any) -> DuplexConversation:
    """Return a session in `state`."""
    talk = DuplexConversation(**options)
    bring(talk, state)
    return talk


def names(events: list[Event]) -> list[str]:
    """`type` of each event, of results whether they `listen` or `speak`, of errors their code."""
    return [_name(event) for event in events]


def _name(event: Event) -> str:
    match event["type"]:
        case "result":
            return "listen" if event["is_listen"] else "speak"
        case "error":
            return f"error:{event['code']}"
        case other:
            return str(other)
