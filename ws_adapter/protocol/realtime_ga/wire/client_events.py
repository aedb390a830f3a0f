"""The eleven client events of the protocol.

The names and forms are those of the official SDK (`openai.types.realtime`). Unlike in most other
dialects, an unknown field is refused at any depth.
"""

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from ws_adapter.protocol.realtime_ga.wire.fields import (
    Instructions,
    Metadata,
    Modalities,
    NoPrompt,
    Reasoning,
    ResponseAudioFields,
    SessionFields,
    Tokens,
    ToolChoice,
    Tools,
)
from ws_adapter.protocol.realtime_ga.wire.items import (
    GivenCall,
    GivenCallOutput,
    GivenItem,
    GivenMessage,
    ItemReference,
)
from ws_adapter.protocol.wire.events import MAX_EVENT_ID_CHARACTERS

MAX_INPUT_ITEMS: Final = 256

EventId: TypeAlias = Annotated[
    str,
    Meta(
        max_length=MAX_EVENT_ID_CHARACTERS,
        description="The client's id of this event; an error about the event has it as `error.event_id`.",
    ),
]


class _Event(Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """Common fields of all client events."""

    event_id: EventId | None = None


class SessionUpdate(_Event, frozen=True, tag="session.update", forbid_unknown_fields=True):
    """Change the given settings, all of them or none."""

    session: SessionFields | None = None

    REQUIRED: ClassVar = ("session",)


class AudioAppend(_Event, frozen=True, tag="input_audio_buffer.append", forbid_unknown_fields=True):
    """Audio of the microphone; no event answers it."""

    audio: (
        Annotated[
            str,
            Meta(
                description="Base64 of raw mono audio in the input format; it may be cut anywhere.",
                extra_json_schema={"contentEncoding": "base64"},
            ),
        ]
        | None
    ) = None

    REQUIRED: ClassVar = ("audio",)


class AudioCommit(_Event, frozen=True, tag="input_audio_buffer.commit", forbid_unknown_fields=True):
    """Commit appended audio as an item."""


class AudioClear(_Event, frozen=True, tag="input_audio_buffer.clear", forbid_unknown_fields=True):
    """Clear appended audio."""


class OutputClear(_Event, frozen=True, tag="output_audio_buffer.clear", forbid_unknown_fields=True):
    """Drop the part of the answer that is not sent yet. No event answers it."""


class ItemCreate(_Event, frozen=True, tag="conversation.item.create", forbid_unknown_fields=True):
    """Add an item to the conversation."""

    item: GivenItem | None = None
    previous_item_id: str | None = None
    """The item after which it is inserted: `root` for the front, absent for the end."""

    REQUIRED: ClassVar = ("item",)


class ItemRetrieve(_Event, frozen=True, tag="conversation.item.retrieve", forbid_unknown_fields=True):
    """Retrieve an item with its audio."""

    item_id: str | None = None

    REQUIRED: ClassVar = ("item_id",)


class ItemTruncate(_Event, frozen=True, tag="conversation.item.truncate", forbid_unknown_fields=True):
    """Cut an answer to the part that the user has heard."""

    item_id: str | None = None
    content_index: Annotated[int, Meta(ge=0)] | None = None
    audio_end_ms: Annotated[int, Meta(ge=0)] | None = None

    REQUIRED: ClassVar = ("item_id", "content_index", "audio_end_ms")


class ItemDelete(_Event, frozen=True, tag="conversation.item.delete", forbid_unknown_fields=True):
    """Delete an item."""

    item_id: str | None = None

    REQUIRED: ClassVar = ("item_id",)


class ResponseFields(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one answer that differ from the session's."""

    output_modalities: Modalities | None = None
    instructions: Instructions | None = None
    audio: ResponseAudioFields | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Tokens | None = None
    conversation: Literal["auto", "none"] | None = None
    """With `none` the response joins no conversation, and may be open beside one that does."""
    input: (
        Annotated[
            list[GivenMessage | GivenCall | GivenCallOutput | ItemReference], Meta(max_length=MAX_INPUT_ITEMS)
        ]
        | None
    ) = None
    """The input of the model in place of the conversation."""
    metadata: Metadata | None = None
    prompt: NoPrompt | None = None
    reasoning: Reasoning | None = None


class ResponseCreate(_Event, frozen=True, tag="response.create", forbid_unknown_fields=True):
    """Create a response of the model."""

    response: ResponseFields | None = None


class ResponseCancel(_Event, frozen=True, tag="response.cancel", forbid_unknown_fields=True):
    """Cancel a response."""

    response_id: str | None = None


ClientEvent: TypeAlias = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputClear
    | ItemCreate
    | ItemRetrieve
    | ItemTruncate
    | ItemDelete
    | ResponseCreate
    | ResponseCancel
)
