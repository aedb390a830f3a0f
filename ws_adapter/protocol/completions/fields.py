"""Fields of a request for a chat completion, as OpenAI's clients send them."""

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, Struct

from antiphon.contract import MAX_TOOLS
from ws_adapter.protocol.chat.tools import CallFields, CallId, ToolChoice, ToolFields

MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 256
MOST_TOKENS: Final = 4096

TokenCount = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class ContentPart(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of the parts of a message."""


class TextPart(ContentPart, frozen=True, tag="text"):
    """A text."""

    text: str | None = None

    REQUIRED: ClassVar = ("text",)


class ImageUrl(Struct, frozen=True, forbid_unknown_fields=True):
    """A picture in a `data:` URL."""

    url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None
    """Without effect."""

    REQUIRED: ClassVar = ("url",)


class ImagePart(ContentPart, frozen=True, tag="image_url"):
    """A picture."""

    image_url: ImageUrl | None = None

    REQUIRED: ClassVar = ("image_url",)


class InputAudio(Struct, frozen=True, forbid_unknown_fields=True):
    """A recording: base64 of a WAV file."""

    data: str | None = None
    format: Literal["wav"] | None = None

    REQUIRED: ClassVar = ("data", "format")


class AudioPart(ContentPart, frozen=True, tag="input_audio"):
    """A clip of audio."""

    input_audio: InputAudio | None = None

    REQUIRED: ClassVar = ("input_audio",)


class VideoUrl(Struct, frozen=True, forbid_unknown_fields=True):
    """A video in a `data:` URL."""

    url: str | None = None

    REQUIRED: ClassVar = ("url",)


class VideoPart(ContentPart, frozen=True, tag="video_url"):
    """A video with its sound. OpenAI has no such part; other servers use the same name."""

    video_url: VideoUrl | None = None

    REQUIRED: ClassVar = ("video_url",)


Part = TextPart | ImagePart | AudioPart | VideoPart


class MessageFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A message of one side."""

    role: Literal["developer", "system", "user", "assistant", "tool"] | None = None
    content: str | list[Part] | None = None
    name: str | None = None
    """Without effect."""
    tool_calls: list[CallFields] | None = None
    tool_call_id: CallId | None = None
    refusal: None = None
    audio: Any = None
    """The id of an earlier answer; refused without `content`, because the server keeps no answers."""
    annotations: Any = None
    """Without effect; the SDK sends it back with a message that it received."""
    function_call: None = None

    REQUIRED: ClassVar = ("role",)


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Further content of a stream besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Without effect: nothing is obfuscated."""


class AudioFields(Struct, frozen=True, forbid_unknown_fields=True):
    """Speech of the answer."""

    voice: str | None = None
    format: Literal["wav", "pcm16"] | None = None

    REQUIRED: ClassVar = ("voice", "format")


class ResponseFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the answer: text."""

    type: Literal["text"] | None = None

    REQUIRED: ClassVar = ("type",)


class CompletionRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a chat completion."""

    model: str | None = None
    messages: list[MessageFields] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: TokenCount | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioFields | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[ToolFields], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    # Without effect.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    # Accepted only with the values in `ACCEPTED_VALUES`.
    n: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None
    store: Any = None
    service_tier: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    prediction: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None

    REQUIRED: ClassVar = ("model", "messages")


ACCEPTED_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "prediction": (),
    "web_search_options": (),
    "functions": (),
    "function_call": (),
}
"""Unsupported fields, each with the values that request nothing; other values are refused."""
