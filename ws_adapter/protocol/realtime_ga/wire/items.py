"""Items of a conversation, as clients send and as they receive them, and the parts of messages."""

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_ID_CHARACTERS: Final = 64

ItemId: TypeAlias = Annotated[
    str, Meta(max_length=MAX_ID_CHARACTERS, description="An id of the client's; else the server makes one.")
]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]
_BASE64: Final = {"contentEncoding": "base64"}

# ----------------------------------------------------------------------------------------------- client


class InputTextPart(Struct, frozen=True, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    """Written text."""

    text: str | None = None

    REQUIRED: ClassVar = ("text",)


class InputAudioPart(Struct, frozen=True, tag_field="type", tag="input_audio", forbid_unknown_fields=True):
    """Speech in the input format of the session. Without audio its transcript is used."""

    audio: Annotated[str, Meta(description="Base64.", extra_json_schema=_BASE64)] | None = None
    transcript: str | None = None


class InputImagePart(Struct, frozen=True, tag_field="type", tag="input_image", forbid_unknown_fields=True):
    """A picture of at most 1 MiB and 4 megapixels."""

    image_url: (
        Annotated[
            str,
            Meta(
                description="A `data:` URI with the base64 of a JPEG, PNG or WebP file.",
                extra_json_schema=_BASE64,
            ),
        ]
        | None
    ) = None
    detail: Literal["auto", "low", "high"] | None = None
    """Returned as given, without effect."""

    REQUIRED: ClassVar = ("image_url",)


class OutputTextPart(Struct, frozen=True, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    """Text of the model."""

    text: str | None = None

    REQUIRED: ClassVar = ("text",)


class OutputAudioPart(Struct, frozen=True, tag_field="type", tag="output_audio", forbid_unknown_fields=True):
    """Speech of the model, of which only the transcript is used."""

    transcript: str | None = None
    audio: str | None = None
    """Only absent: clients cannot supply audio of the model."""

    REQUIRED: ClassVar = ("transcript",)


GivenPart: TypeAlias = InputTextPart | InputAudioPart | InputImagePart | OutputTextPart | OutputAudioPart


class GivenMessage(Struct, frozen=True, tag_field="type", tag="message", forbid_unknown_fields=True):
    """A message."""

    role: Literal["user", "assistant", "system"] | None = None
    content: list[GivenPart] | None = None
    """Input parts of the user, text parts of the system, output parts of the assistant."""
    id: ItemId | None = None
    object: Literal["realtime.item"] | None = None
    status: Status | None = None

    REQUIRED: ClassVar = ("role", "content")


class GivenCall(Struct, frozen=True, tag_field="type", tag="function_call", forbid_unknown_fields=True):
    """A call that the model made."""

    name: str | None = None
    arguments: str | None = None
    """A JSON object."""
    call_id: Annotated[str, Meta(max_length=MAX_ID_CHARACTERS)] | None = None
    id: ItemId | None = None
    object: Literal["realtime.item"] | None = None
    status: Status | None = None

    REQUIRED: ClassVar = ("name", "arguments")


class GivenCallOutput(
    Struct, frozen=True, tag_field="type", tag="function_call_output", forbid_unknown_fields=True
):
    """The result of a call."""

    call_id: Annotated[str, Meta(max_length=MAX_ID_CHARACTERS)] | None = None
    output: Annotated[str, Meta(extra_json_schema={"minLength": 0})] | None = None
    id: ItemId | None = None
    object: Literal["realtime.item"] | None = None
    status: Status | None = None

    REQUIRED: ClassVar = ("call_id", "output")
    MAY_BE_EMPTY: ClassVar = ("output",)


class ItemReference(Struct, frozen=True, tag_field="type", tag="item_reference", forbid_unknown_fields=True):
    """An item of the conversation."""

    id: ItemId | None = None

    REQUIRED: ClassVar = ("id",)


GivenItem: TypeAlias = GivenMessage | GivenCall | GivenCallOutput

# ----------------------------------------------------------------------------------------------- server


class Text(Struct, kw_only=True, tag_field="type", tag="input_text"):
    """Written text."""

    text: str


class InputAudioContent(Struct, kw_only=True, tag_field="type", tag="input_audio"):
    """Speech of the user."""

    transcript: str | None
    audio: str | UnsetType = UNSET
    """Base64 in the input format, converted from the input of the model; only in
    `conversation.item.retrieved`."""


class InputImageContent(Struct, kw_only=True, tag_field="type", tag="input_image"):
    """A picture."""

    image_url: str | UnsetType = UNSET
    """A `data:` URI; only in `conversation.item.retrieved`."""
    detail: Literal["auto", "low", "high"] | UnsetType = UNSET


class Written(Struct, kw_only=True, tag_field="type", tag="output_text"):
    """Text of the model."""

    text: str


class Spoken(Struct, kw_only=True, tag_field="type", tag="output_audio"):
    """Speech of the model."""

    transcript: str
    audio: str | UnsetType = UNSET
    """Base64; only in `conversation.item.retrieved`, as long as the server keeps it."""


Part: TypeAlias = Text | InputAudioContent | InputImageContent | Written | Spoken


class MessageItem(Struct, kw_only=True, tag_field="type", tag="message"):
    """A message."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    status: Status
    role: Literal["user", "assistant", "system"]
    content: list[Part]


class CallItem(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call that the model made."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    status: Status
    name: str
    call_id: str
    arguments: str


class CallOutputItem(Struct, kw_only=True, tag_field="type", tag="function_call_output"):
    """The result of a call."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    status: Status
    call_id: str
    output: str


Item: TypeAlias = MessageItem | CallItem | CallOutputItem
