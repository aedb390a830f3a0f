"""Items of a conversation with pending transcripts, which another adapter can request again."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from msgspec import Struct, structs

from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.machine import Action, Transcribe
from ws_adapter.protocol.core.transcription import InputTranscript, InputTranscriptDelta

Tell: TypeAlias = Callable[[InputTranscript, float], list[Action]]
"""A callback for the results of an item and the time."""


class SavedTranscription(Struct, frozen=True):
    """The state of a pending item. `at_ms` is the beginning of the item, in dialects that need it."""

    item_id: str
    audio: int
    model: str
    at_ms: int
    told: int


class _Awaited(Struct):
    """A pending item: `told` characters were sent to the client, `repeated` of those have come again."""

    audio: bytes
    model: str
    at_ms: int
    told: int = 0
    repeated: int = 0


class Transcriptions:
    """The pending items. If an item is transcribed again, words that were sent before are left out."""

    def __init__(self) -> None:
        self._awaited: dict[str, _Awaited] = {}

    def ask(self, item_id: str, audio: bytes, model: str, tell: Tell, at_ms: int = 0) -> Transcribe:
        """Return the action that transcribes an item; `audio` is float32 at 16 kHz."""
        self._awaited[item_id] = _Awaited(audio, model, at_ms)
        return Transcribe(item_id, audio, model, partial(self._tell, item_id, tell))

    def forget(self, item_id: str) -> None:
        """Forget an item. Harmless when repeated."""
        self._awaited.pop(item_id, None)

    def save(self, blobs: Blobs) -> tuple[SavedTranscription, ...]:
        """Return the items."""
        return tuple(
            SavedTranscription(item_id, blobs.keep(item.audio), item.model, item.at_ms, item.told)
            for item_id, item in self._awaited.items()
        )

    def restore(
        self, saved: Iterable[SavedTranscription], blobs: Saved, tell: Callable[[SavedTranscription], Tell]
    ) -> list[Transcribe]:
        """Return the actions that transcribe saved items again; `tell` returns the callback for an item."""
        asked = []
        for item in saved:
            asked.append(self.ask(item.item_id, blobs[item.audio], item.model, tell(item), item.at_ms))
            awaited = self._awaited[item.item_id]
            awaited.told = awaited.repeated = item.told
        return asked

    def _tell(self, item_id: str, tell: Tell, news: InputTranscript, now: float) -> list[Action]:
        item = self._awaited.get(item_id)
        if item is None:
            return tell(news, now)
        if not isinstance(news, InputTranscriptDelta):
            self.forget(item_id)
            return tell(news, now)
        text = news.text[item.repeated :]
        item.repeated -= len(news.text) - len(text)
        item.told += len(text)
        return tell(structs.replace(news, text=text), now) if text else []
