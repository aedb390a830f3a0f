"""Fields of a chat turn, shared by `/ws/chat` and the chat mode of `/v1/realtime`."""

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from antiphon.contract import MAX_TOOLS
from ws_adapter.protocol.chat.tools import CallFields, CallId, ToolChoice, ToolFields
from ws_adapter.protocol.media.wav import HIGHEST_RATE_HZ, LOWEST_RATE_HZ
from ws_adapter.protocol.wire.events import PictureText, Slices, VoiceAudio

MAX_MESSAGES: Final = 256
MAX_PICTURES: Final = 4
"""The most pictures in one message."""
MAX_SPEECH_S: Final = 300
"""The most seconds of audio in all clips of a request."""
MAX_VIDEOS: Final = 4
"""The most videos in a request."""


class ContentPart(Struct, frozen=True, tag_field="type"):
    """Base of the parts of a message."""


class TextPart(ContentPart, frozen=True, tag="text"):
    """A text."""

    text: str | None = None

    REQUIRED: ClassVar = ("text",)


class ImagePart(ContentPart, frozen=True, tag="image"):
    """A picture."""

    data: PictureText | None = None

    REQUIRED: ClassVar = ("data",)


class AudioPart(ContentPart, frozen=True, tag="audio"):
    """A clip of audio."""

    data: (
        Annotated[
            str,
            Meta(
                description="Base64 of a WAV file or of raw little-endian float32, mono; at most 300 s in "
                "all clips of a request together.",
                extra_json_schema={"contentEncoding": "base64"},
            ),
        ]
        | None
    ) = None
    sample_rate: Annotated[int, Meta(ge=LOWEST_RATE_HZ, le=HIGHEST_RATE_HZ)] | None = None
    """Hz of raw samples, 16000 by default. A WAV file says it itself."""

    REQUIRED: ClassVar = ("data",)


class VideoPart(ContentPart, frozen=True, tag="video"):
    """A video: its frames and, with `omni_mode`, its sound between them."""

    data: (
        Annotated[
            str,
            Meta(
                description="Base64 of an MP4, MOV, WebM or Matroska file of at most 4096 x 4096 pixels. At "
                "most 4 videos in a request, of 10 minutes all together.",
                extra_json_schema={"contentEncoding": "base64"},
            ),
        ]
        | None
    ) = None
    stack_frames: Annotated[int, Meta(ge=1, le=8)] | None = None
    """Frames used of each second, 1 by default; those after the first are joined into one picture."""

    REQUIRED: ClassVar = ("data",)


Part: TypeAlias = TextPart | ImagePart | AudioPart | VideoPart


class ChatMessage(Struct, frozen=True):
    """A message of one side."""

    role: Literal["system", "user", "assistant", "tool"] | None = None
    content: str | Annotated[list[Part], Meta(extra_json_schema={"minItems": 1})] | None = None
    """A text, or parts in their order; at most 4 pictures in one message. Only a message with `tool_calls`
    may have no content; the content of a message of a tool is a text."""
    tool_calls: list[CallFields] | None = None
    """For role `assistant`: the calls that the model made."""
    tool_call_id: CallId | None = None
    """For role `tool`: the id of the call, in an earlier message, whose result this message is."""

    REQUIRED: ClassVar = ("role",)


class GenerationFields(Struct, frozen=True):
    """Sampling of the answer's tokens."""

    max_new_tokens: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """The most tokens of the answer, 512 by default."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """0.7 by default; 0 always takes the most likely token."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    """0.8 by default."""
    length_penalty: Annotated[float, Meta(ge=0.1, le=5)] | None = None
    """1.0 by default; above it answers get longer, below it shorter."""


class SpeechFields(Struct, frozen=True):
    """Speech of the answer."""

    enabled: bool | None = None
    mode: Literal["default", "audio_assistant", "omni", "audio_roleplay", "voice_cloning"] | None = None
    ref_audio_data: VoiceAudio | None = None
    """The voice to speak with."""
    ref_audio_path: str | None = None
    """Id of a voice registered with the server, without effect beside `ref_audio_data`; a leading directory
    and a file extension are removed."""
    language: Annotated[str, Meta(max_length=64)] | None = None
    """Language to speak."""


class ImageFields(Struct, frozen=True):
    """Handling of pictures."""

    max_slice_nums: Slices | None = None
    use_image_id: bool | None = None
    """Numbers the pictures, true by default."""


Messages: TypeAlias = Annotated[
    list[ChatMessage],
    Meta(
        description="The whole conversation so far, with at least one message of the user.",
        extra_json_schema={
            "minItems": 1,
            "maxItems": MAX_MESSAGES,
            "contains": {"properties": {"role": {"const": "user"}}, "required": ["role"]},
        },
    ),
]


class ChatFields(Struct, frozen=True):
    """Base of a request for an answer."""

    messages: Messages | None = None
    streaming: bool | None = None
    """True by default: the answer comes piece by piece. False: it comes at once."""
    generation: GenerationFields | None = None
    tts: SpeechFields | None = None
    use_tts_template: bool | None = None
    """True: the answer is spoken, as with `tts.enabled`, and the model is told so."""
    image: ImageFields | None = None
    omni_mode: bool | None = None
    """True: pictures and sound are synchronous; the model gets videos with their sound. False by default."""
    enable_thinking: bool | None = None
    """The model may think before it answers, if it can; its thinking is no part of the answer."""
    tools: Annotated[list[ToolFields], Meta(extra_json_schema={"maxItems": MAX_TOOLS})] | None = None
    """Functions that the model may call, with different names."""
    tool_choice: ToolChoice | None = None
    """`auto` by default. `required`, or a named tool, forces a call with arguments that match the schema."""
    parallel_tool_calls: bool | None = None
    """True by default. False: at most one call in the answer."""

    REQUIRED: ClassVar = ("messages",)
