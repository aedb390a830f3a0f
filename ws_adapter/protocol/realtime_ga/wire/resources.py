"""Sessions, conversations and responses as the official SDK has them.

Fields that the protocol always has are written as null if they have no value; other fields are absent then.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from ws_adapter.protocol.realtime_ga.wire.items import Item
from ws_adapter.protocol.wire.events import Count

Modality: TypeAlias = Literal["text", "audio"]
AsGiven: TypeAlias = Annotated[dict[str, Any], Meta(description="As given.")]


class Format(Struct, omit_defaults=True):
    """Raw mono audio: little-endian int16, or one of the laws of G.711."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: Literal[24000] | None = None


class ServerVadResource(Struct, kw_only=True, tag_field="type", tag="server_vad"):
    """Turn detection by the server, which detects the start and end of speech."""

    threshold: float
    prefix_padding_ms: Count
    silence_duration_ms: Count
    create_response: bool
    interrupt_response: bool
    idle_timeout_ms: Count | None


class SemanticVadResource(Struct, kw_only=True, tag_field="type", tag="semantic_vad"):
    """The model itself decides when it speaks."""

    eagerness: Literal["auto", "low", "medium", "high"]
    create_response: bool
    interrupt_response: bool


class InputResource(Struct, kw_only=True):
    """The settings of the input audio."""

    format: Format
    transcription: AsGiven | None
    noise_reduction: AsGiven | None
    turn_detection: ServerVadResource | SemanticVadResource | None


class OutputResource(Struct, kw_only=True):
    """The settings of the output audio."""

    format: Format
    voice: str
    speed: float


class AudioResource(Struct, kw_only=True):
    """The audio settings of both directions."""

    input: InputResource
    output: OutputResource


class SessionResource(Struct, kw_only=True):
    """The current settings of a session."""

    type: Literal["realtime"] = "realtime"
    object: Literal["realtime.session"] = "realtime.session"
    id: str
    model: str
    expires_at: Count
    """The latest end of the session, in Unix seconds."""
    output_modalities: list[Modality]
    instructions: str
    audio: AudioResource
    include: list[str] | None
    tools: list[AsGiven]
    tool_choice: Literal["auto", "none", "required"] | AsGiven
    parallel_tool_calls: bool
    max_output_tokens: int | Literal["inf"]
    truncation: Literal["auto", "disabled"] | AsGiven
    prompt: Annotated[Any, Meta(extra_json_schema={"type": "null"})] = None
    tracing: Literal["auto"] | AsGiven | None
    reasoning: AsGiven | None
    unsupported_fields: list[str] | UnsetType = UNSET
    """Paths in `session` of accepted fields without effect; absent if there are none."""


class Conversation(Struct, kw_only=True):
    """The one conversation of a session."""

    id: str
    object: Literal["realtime.conversation"] = "realtime.conversation"


class ResponseError(Struct, omit_defaults=True):
    """The error of a failed response."""

    type: str
    code: str
    message: str


class StatusDetails(Struct, omit_defaults=True):
    """The reason why a response is not complete."""

    type: Literal["cancelled", "incomplete", "failed"]
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens"] | None = None
    error: ResponseError | None = None


class CachedTokens(Struct):
    """Input tokens that were cached, by kind."""

    text_tokens: Count
    audio_tokens: Count
    image_tokens: Count


class InputTokens(Struct):
    """Input tokens by kind, cached ones included."""

    text_tokens: Count
    audio_tokens: Count
    image_tokens: Count
    cached_tokens: Count
    cached_tokens_details: CachedTokens | UnsetType = UNSET
    """Absent if a part of an input of several kinds was cached: the worker reports only the sum."""


class OutputTokens(Struct):
    """Output tokens by kind."""

    text_tokens: Count
    audio_tokens: Count


class Usage(Struct):
    """Tokens of a response; of an interrupted response, those known at its end."""

    total_tokens: Count
    input_tokens: Count
    output_tokens: Count
    input_token_details: InputTokens
    output_token_details: OutputTokens


class ResponseOutput(Struct, kw_only=True):
    """The audio settings of a response."""

    format: Format
    voice: str


class ResponseAudio(Struct, kw_only=True):
    """The audio settings of a response."""

    output: ResponseOutput


class ResponseResource(Struct, kw_only=True):
    """The current state of a response."""

    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
    status_details: StatusDetails | None
    output: list[Item]
    conversation_id: str | None
    output_modalities: list[Modality]
    max_output_tokens: int | Literal["inf"]
    audio: ResponseAudio
    usage: Usage | None
    metadata: dict[str, str] | None
