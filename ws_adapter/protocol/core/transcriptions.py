"""Items of a conversation whose transcripts are awaited, and asked for again at another adapter."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from msgspec import Struct, structs

from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.machine import Action, Transcribe
from ws_adapter.protocol.core.transcription import InputTranscript, InputTranscriptDelta

Tell: TypeAlias = Callable[[InputTranscript, float], list[Action]]
"""Takes what comes of an item and the time; see `Transcribe`."""


class SavedTranscription(Struct, frozen=True):
    """Hold an item that is awaited. `at_ms` is where it begins, for dialects that know."""

    item_id: str
    audio: int
    model: str
    at_ms: int
    told: int


class _Awaited(Struct):
    """An item: `told` characters of it are with the client, `repeated` of those come again."""

    audio: bytes
    model: str
    at_ms: int
    told: int = 0
    repeated: int = 0


class Transcriptions:
    """The items that are awaited. Words that were told before an item was asked for again are left out."""

    def __init__(self) -> None:
        self._awaited: dict[str, _Awaited] = {}

    def ask(self, item_id: str, audio: bytes, model: str, tell: Tell, at_ms: int = 0) -> Transcribe:
        """Return what has an item transcribed; `audio` is float32 at 16 kHz."""
        self._awaited[item_id] = _Awaited(audio, model, at_ms)
        return Transcribe(item_id, audio, model, partial(self._tell, item_id, tell))

    def forget(self, item_id: str) -> None:
        """Await an item no more. Harmless when repeated."""
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
        """Return what has saved items transcribed anew; `tell` returns how one of them is told."""
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
