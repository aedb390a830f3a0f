"""Turns and their content as plain data; clips and pictures are stored separately."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.turn import Call, Message, Part, Picture, Role, Speech, Turn, Video


class SavedMedia(Struct, frozen=True):
    """The state of a clip, a picture or a video; `data` is the number of its bytes."""

    kind: Literal["picture", "speech", "video"]
    data: int
    stack_frames: int = 1


SavedPart: TypeAlias = str | SavedMedia


class SavedMessage(Struct, frozen=True):
    """The state of a message of a turn."""

    role: Role
    parts: tuple[SavedPart, ...]
    calls: tuple[Call, ...]
    call_id: str


class SavedTurn(Struct, frozen=True):
    """The state of a turn; `settings` has none of its messages."""

    settings: Turn
    messages: tuple[SavedMessage, ...]


def save_parts(parts: Iterable[Part], blobs: Blobs) -> tuple[SavedPart, ...]:
    """Return parts without their data."""
    return tuple(_saved(part, blobs) for part in parts)


def parts_of(saved: Iterable[SavedPart], blobs: Saved) -> tuple[Part, ...]:
    """Return saved parts with their data. Raises `KeyError` if it is missing."""
    return tuple(_part(part, blobs) for part in saved)


def save_turn(turn: Turn, blobs: Blobs) -> SavedTurn:
    """Return a turn without its data."""
    messages = (
        SavedMessage(it.role, save_parts(it.parts, blobs), it.calls, it.call_id) for it in turn.messages
    )
    return SavedTurn(structs.replace(turn, messages=()), tuple(messages))


def turn_of(saved: SavedTurn, blobs: Saved) -> Turn:
    """Return a saved turn with its data. Raises `KeyError` if it is missing."""
    messages = (Message(it.role, parts_of(it.parts, blobs), it.calls, it.call_id) for it in saved.messages)
    return structs.replace(saved.settings, messages=tuple(messages))


def _saved(part: Part, blobs: Blobs) -> SavedPart:
    match part:
        case Picture():
            return SavedMedia("picture", blobs.keep(part.data))
        case Speech():
            return SavedMedia("speech", blobs.keep(part.data))
        case Video():
            return SavedMedia("video", blobs.keep(part.data), part.stack_frames)
    return part


def _part(saved: SavedPart, blobs: Saved) -> Part:
    if isinstance(saved, str):
        return saved
    data = blobs[saved.data]
    match saved.kind:
        case "picture":
            return Picture(data)
        case "speech":
            return Speech(data)
    return Video(data, saved.stack_frames)
