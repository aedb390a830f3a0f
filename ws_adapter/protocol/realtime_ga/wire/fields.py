"""Client fields of a session and of a response. `ws_adapter.protocol.wire.events` explains `REQUIRED`.

In a change, an absent field keeps its value. Null switches off a field that can be off; these fields are
`UNSET` if they are absent. For all other fields null is the same as absent.
"""

from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from ws_adapter.protocol.wire.events import MAX_PROMPT_CHARACTERS

MAX_TOOLS: Final = 128
MAX_TOKENS: Final = 4096
"""The most tokens of an answer."""

Modalities: TypeAlias = Annotated[
    list[Literal["text", "audio"]],
    Meta(
        min_length=1,
        max_length=1,
        description="Either audio, which comes with its transcript, or text.",
    ),
]
Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | Literal["inf"]


class PcmFormat(Struct, frozen=True, tag_field="type", tag="audio/pcm", forbid_unknown_fields=True):
    """Little-endian int16."""

    rate: Literal[24000] | None = None


class PcmuFormat(Struct, frozen=True, tag_field="type", tag="audio/pcmu", forbid_unknown_fields=True):
    """G.711 mu-law at 8 kHz, the law of North America and Japan."""

    rate: Literal[8000] | None = None


class PcmaFormat(Struct, frozen=True, tag_field="type", tag="audio/pcma", forbid_unknown_fields=True):
    """G.711 A-law at 8 kHz, the law of all other countries."""

    rate: Literal[8000] | None = None


AudioFormat: TypeAlias = PcmFormat | PcmuFormat | PcmaFormat


class TranscriptionConfig(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Transcription of the user's speech beside the conversation. Only `model` has an effect."""

    model: str | None = None
    """A model that transcribes; without it, or with one of OpenAI's names, any of them."""
    language: str | None = None
    languages: list[str] | None = None
    prompt: str | None = None
    keywords: list[str] | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class NoiseReduction(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The place of the microphone. It is accepted without effect."""

    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


class ServerVad(Struct, frozen=True, tag_field="type", tag="server_vad", forbid_unknown_fields=True):
    """Turn detection by the server, which detects the start and end of speech."""

    threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5000)] | None = None
    silence_duration_ms: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: Annotated[int, Meta(ge=1000, le=600_000)] | UnsetType | None = UNSET


class SemanticVad(Struct, frozen=True, tag_field="type", tag="semantic_vad", forbid_unknown_fields=True):
    """The model itself decides when it speaks."""

    eagerness: Literal["auto", "low", "medium", "high"] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None


TurnDetection: TypeAlias = ServerVad | SemanticVad


class InputFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the input audio."""

    format: AudioFormat | None = None
    transcription: TranscriptionConfig | UnsetType | None = UNSET
    noise_reduction: NoiseReduction | UnsetType | None = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET


class VoiceId(Struct, frozen=True, forbid_unknown_fields=True):
    """A voice that is registered with the server."""

    id: str | None = None

    REQUIRED: ClassVar = ("id",)


class OutputFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the output audio."""

    format: AudioFormat | None = None
    voice: str | VoiceId | None = None
    """A registered voice, or one of OpenAI's names, which stand for the model's own voice."""
    speed: Annotated[float, Meta(ge=0.25, le=1.5)] | None = None
    """Only 1: the speed of speech cannot be changed."""


class AudioFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The audio settings of both directions."""

    input: InputFields | None = None
    output: OutputFields | None = None


class FunctionTool(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function of the client that the model may call."""

    type: Literal["function"] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")] | None = None
    description: Annotated[str, Meta(max_length=4096)] | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of its arguments."""

    REQUIRED: ClassVar = ("type", "name")


class ToolOfChoice(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The tool that the model has to call."""

    type: Literal["function"] | None = None
    name: str | None = None

    REQUIRED: ClassVar = ("type", "name")


Tools: TypeAlias = Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)]
ToolChoice: TypeAlias = Literal["auto", "none", "required"] | ToolOfChoice


class TokenLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of the remaining conversation."""

    post_instructions: Annotated[int, Meta(ge=0)] | None = None


class RetentionRatio(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The share of the conversation that remains when it is too long for the model."""

    type: Literal["retention_ratio"] | None = None
    retention_ratio: Annotated[float, Meta(ge=0, le=1)] | None = None
    token_limits: TokenLimits | None = None

    REQUIRED: ClassVar = ("type", "retention_ratio")


class TracingConfig(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The name of a trace. It is accepted without effect: the operator of the server configures tracing."""

    workflow_name: str | None = None
    group_id: str | None = None
    metadata: dict[str, Any] | None = None


class Reasoning(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The effort of reasoning. It is accepted without effect."""

    effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class StoredPrompt(Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt that OpenAI stores; none are stored here."""

    id: str | None = None
    version: str | None = None
    variables: dict[str, Any] | None = None

    REQUIRED: ClassVar = ("id",)


NoPrompt: TypeAlias = Annotated[StoredPrompt, Meta(description="Only null: no prompts are stored here.")]
Instructions: TypeAlias = Annotated[str, Meta(max_length=MAX_PROMPT_CHARACTERS)]


class SessionFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a session."""

    type: Literal["realtime", "transcription"] | None = None
    """Only realtime: the type of a session cannot change."""
    model: str | None = None
    """Only the model of the URL."""
    output_modalities: Modalities | None = None
    instructions: Instructions | None = None
    """The system prompt of the model; empty for none."""
    audio: AudioFields | None = None
    include: list[Literal["item.input_audio_transcription.logprobs"]] | UnsetType | None = UNSET
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Tokens | None = None
    truncation: Literal["auto", "disabled"] | RetentionRatio | None = None
    prompt: NoPrompt | None = None
    tracing: Literal["auto"] | TracingConfig | UnsetType | None = UNSET
    reasoning: Reasoning | None = None

    REQUIRED: ClassVar = ("type",)


class ResponseOutputFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The audio settings of a response."""

    format: AudioFormat | None = None
    voice: str | VoiceId | None = None


class ResponseAudioFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The audio settings of a response."""

    output: ResponseOutputFields | None = None


Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16, description="Notes of the client, returned with the response."),
]
