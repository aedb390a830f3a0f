"""Items that clients create: read whole, with their audio and pictures."""

from collections.abc import Iterator

from ws_adapter.protocol.core.turn import Part, Picture, Speech
from ws_adapter.protocol.live.sound import Format, InputConverter
from ws_adapter.protocol.media.images import read_frame
from ws_adapter.protocol.realtime_ga.conversation import Entry
from ws_adapter.protocol.realtime_ga.settings import Abilities
from ws_adapter.protocol.realtime_ga.wire.items import (
    CallItem,
    CallOutputItem,
    GivenCall,
    GivenCallOutput,
    GivenItem,
    GivenMessage,
    GivenPart,
    InputAudioContent,
    InputAudioPart,
    InputImageContent,
    InputImagePart,
    InputTextPart,
    MessageItem,
    OutputAudioPart,
    OutputTextPart,
    Text,
    Written,
)
from ws_adapter.protocol.realtime_ga.wire.items import Part as ToldPart
from ws_adapter.protocol.wire.codec import decode_base64
from ws_adapter.protocol.wire.errors import invalid, missing

_OF_ROLE = {
    "user": (InputTextPart, InputAudioPart, InputImagePart),
    "system": (InputTextPart,),
    "assistant": (OutputTextPart, OutputAudioPart),
}


def read_item(given: GivenItem, new_id: str, format: Format, abilities: Abilities, path: str) -> Entry:
    """Return an item in its form for a conversation. Raises `Refusal`; changes nothing of a session."""
    item_id = given.id or new_id
    match given:
        case GivenCall():
            call = CallItem(
                id=item_id,
                status="completed",
                name=given.name or "",
                call_id=given.call_id or item_id,
                arguments=given.arguments or "",
            )
            return Entry(call)
        case GivenCallOutput():
            output = CallOutputItem(
                id=item_id, status="completed", call_id=given.call_id or "", output=given.output or ""
            )
            return Entry(output)
    assert isinstance(given, GivenMessage)
    assert given.role is not None
    read = list(_parts(given, format, abilities, f"{path}.content"))
    item = MessageItem(
        id=item_id, status=given.status or "completed", role=given.role, content=[told for told, _ in read]
    )
    return Entry(item, tuple(part for _, part in read))


def _parts(
    given: GivenMessage, format: Format, abilities: Abilities, path: str
) -> Iterator[tuple[ToldPart, Part]]:
    assert given.role is not None
    for i, part in enumerate(given.content or ()):
        place = f"{path}[{i}]"
        if not isinstance(part, _OF_ROLE[given.role]):
            kinds = " or ".join(str(shape.__struct_config__.tag) for shape in _OF_ROLE[given.role])
            kind = part.__struct_config__.tag
            raise invalid(f"{place}.type", f"expected {kinds} of the {given.role}, got {kind}")
        yield _part(part, format, abilities, place)


def _part(part: GivenPart, format: Format, abilities: Abilities, path: str) -> tuple[ToldPart, Part]:
    match part:
        case InputTextPart():
            return Text(text=part.text or ""), part.text or ""
        case InputImagePart():
            if not abilities.chats:
                raise invalid(path, "the model sees no pictures; send text")
            return InputImageContent(detail=part.detail or "auto"), Picture(_picture(part, path))
        case InputAudioPart():
            if part.audio and abilities.chats:
                return InputAudioContent(transcript=part.transcript), _clip(
                    part.audio, format, abilities, f"{path}.audio"
                )
            if part.audio and not part.transcript:
                raise invalid(f"{path}.audio", "the model hears only the microphone; send text")
            if not part.transcript:
                raise missing(f"{path}.audio", "base64 audio, or a transcript,")
            return InputAudioContent(transcript=part.transcript), part.transcript
        case OutputAudioPart():
            if part.audio:
                message = "audio of the model cannot be supplied; leave it out"
                raise invalid(f"{path}.audio", message)
            return Written(text=part.transcript or ""), part.transcript or ""
        case OutputTextPart():
            return Written(text=part.text or ""), part.text or ""
    raise TypeError(type(part))


def _picture(part: InputImagePart, path: str) -> bytes:
    path = f"{path}.image_url"
    if not (part.image_url or "").startswith("data:"):
        raise invalid(path, "expected a data: URI: nothing is fetched here")
    return read_frame(part.image_url or "", path)


def _clip(audio: str, format: Format, abilities: Abilities, path: str) -> Speech:
    if not abilities.hears:
        raise invalid(path, "the model cannot hear; send text")
    converter = InputConverter(format)
    converter.wait(decode_base64(audio, path))
    return Speech(converter.end().astype("<f4", copy=False).tobytes())
