"""Items with their audio, for clients that retrieve them."""

import numpy as np
import pybase64
import soxr
from msgspec import UNSET, structs

from ws_adapter.protocol.core.turn import Picture, Speech
from ws_adapter.protocol.live.sound import INPUT_RATE_HZ, Format
from ws_adapter.protocol.realtime_ga.conversation import Entry, copied
from ws_adapter.protocol.realtime_ga.wire.items import (
    InputAudioContent,
    InputImageContent,
    Item,
    MessageItem,
    Spoken,
)

_KINDS = {b"\xff\xd8": "jpeg", b"\x89P": "png", b"RI": "webp"}


def with_media(entry: Entry, format: Format) -> Item:
    """Return the item of an entry with its pictures and its audio.

    The user's audio is converted into `format` from the samples that the model gets. The conversion may take
    long, and changes nothing of a session.
    """
    item = copied(entry.item)
    if not isinstance(item, MessageItem):
        return item
    for i, part in enumerate(item.content):
        own = entry.parts[i] if i < len(entry.parts) else None
        match part, own:
            case InputAudioContent(), Speech(data=data):
                item.content[i] = structs.replace(part, audio=_base64(_encoded(data, format)))
            case InputImageContent(), Picture(data=data):
                kind = _KINDS.get(data[:2], "jpeg")
                url = f"data:image/{kind};base64,{_base64(data)}"
                item.content[i] = structs.replace(part, image_url=url)
            case Spoken(), _:
                audio = _base64(bytes(entry.sound)) if entry.sound else UNSET
                item.content[i] = structs.replace(part, audio=audio)
    return item


def _encoded(data: bytes, format: Format) -> bytes:
    samples = np.frombuffer(data, "<f4")
    return format.encode(soxr.resample(samples, INPUT_RATE_HZ, format.rate_hz))


def _base64(data: bytes) -> str:
    return pybase64.b64encode(data).decode("ascii")
