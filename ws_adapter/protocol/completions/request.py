"""The conversion of a request for a chat completion into a chat turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import structs

from ws_adapter.protocol.chat.content import ChatRules, Request, read_request
from ws_adapter.protocol.chat.fields import AudioPart as ChatAudio
from ws_adapter.protocol.chat.fields import ChatFields, ChatMessage, GenerationFields, SpeechFields
from ws_adapter.protocol.chat.fields import ImagePart as ChatPicture
from ws_adapter.protocol.chat.fields import Part as ChatPart
from ws_adapter.protocol.chat.fields import TextPart as ChatText
from ws_adapter.protocol.chat.fields import VideoPart as ChatVideo
from ws_adapter.protocol.completions.fields import (
    ACCEPTED_VALUES,
    AudioPart,
    CompletionRequest,
    ImagePart,
    MessageFields,
    Part,
    TextPart,
    VideoPart,
)
from ws_adapter.protocol.core.config import Capabilities, Catalogue, capabilities_of, check_model
from ws_adapter.protocol.wire.codec import RequestDecoder
from ws_adapter.protocol.wire.errors import ErrorCode, Refusal, invalid, missing
from ws_adapter.protocol.wire.faults import shown

OWN_VOICE: Final = "alloy"
"""The name of the model's own voice."""

_DATA: Final = "data:"
_RULES: Final = ChatRules(root="", speaks=False)
_DECODER: Final[RequestDecoder[CompletionRequest]] = RequestDecoder(CompletionRequest)
_PLACES: Final = {ImagePart: "image_url.url", AudioPart: "input_audio.data", VideoPart: "video_url.url"}


class UnknownModel(Refusal):
    """A model that is not served here."""


@dataclass(frozen=True)
class Completion(Request):
    """A chat turn, and the requested form of the answer."""

    model: str = ""
    seed: int | None = None
    include_usage: bool = False
    audio_format: Literal["wav", "pcm16"] | None = None
    """The format of the audio; None for an answer in text alone."""
    places: tuple[tuple[str, str], ...] = ()
    """Pairs: the beginning of a path in the chat turn, and the path in the request that replaces it."""


def read_completion(body: bytes, catalogue: Catalogue | None) -> Completion:
    """Return the completion that a request body asks for. Raises `Refusal` and `InvalidUtf8`."""
    try:
        fields = _DECODER.decode(body)
    except Refusal as refusal:
        raise _of_body(refusal) from None
    _check_unsupported(fields)
    if not fields.model:
        raise missing("model", "the name of a model")
    try:
        model = check_model(fields.model, catalogue, "model")
    except Refusal as refusal:
        raise UnknownModel(refusal.code, refusal.message, refusal.param) from None
    able = capabilities_of(model, catalogue)
    audio_format = _audio_format(fields, able)
    places = (*_places(fields.messages or ()), ("tts.ref_audio_path", "audio.voice"))
    wanted = ChatFields(
        messages=[_message(message, f"messages[{i}]") for i, message in enumerate(fields.messages or ())],
        streaming=fields.stream is True,
        generation=_generation(fields),
        tts=SpeechFields(enabled=audio_format is not None, ref_audio_path=_voice(fields, able)),
        omni_mode=any(public.endswith(_PLACES[VideoPart]) for _, public in places),
        tools=fields.tools,
        tool_choice=fields.tool_choice,
        parallel_tool_calls=fields.parallel_tool_calls,
    )
    try:
        request = read_request(wanted, _RULES, able)
    except Refusal as refusal:
        raise in_public(refusal, places) from None
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    turn = request.turn
    return Completion(
        turn=structs.replace(turn, generation=structs.replace(turn.generation, stop=stop)),
        streaming=request.streaming,
        voice=request.voice,
        clipped_samples=request.clipped_samples,
        model=model,
        seed=fields.seed,
        include_usage=_includes_usage(fields),
        audio_format=audio_format,
        places=places,
    )


def _of_body(refusal: Refusal) -> Refusal:
    if refusal.code is ErrorCode.INVALID_JSON:
        return Refusal(refusal.code, "the body is not valid JSON")
    return refusal


def in_public(refusal: Refusal, places: Sequence[tuple[str, str]]) -> Refusal:
    """Return a refusal of a chat turn with the paths of the request instead of those of the turn."""
    param = refusal.param or ""
    for path, public in places:
        if param.startswith(path):
            message = public + refusal.message.removeprefix(param)
            return Refusal(refusal.code, message, public)
    return refusal


def _check_unsupported(fields: CompletionRequest) -> None:
    """Raise `Refusal` for a field that requests an unsupported feature."""
    for name, values in ACCEPTED_VALUES.items():
        given = getattr(fields, name)
        if given is None or any(given == value and type(given) is type(value) for value in values):
            continue
        if isinstance(given, float) and given in values:
            continue
        expected = f"expected {' or '.join(map(shown, values))}" if values else "expected none"
        raise invalid(name, f"{expected}, got {shown(given)}: it is not supported here")
    if fields.response_format is not None and fields.response_format.type is None:
        raise missing("response_format.type", '"text"')


def _includes_usage(fields: CompletionRequest) -> bool:
    options = fields.stream_options
    if options is None:
        return False
    if fields.stream is not True:
        raise invalid("stream_options", "expected none without stream")
    return options.include_usage is True


def _audio_format(fields: CompletionRequest, able: Capabilities) -> Literal["wav", "pcm16"] | None:
    """Return the audio format of the answer, None for text alone."""
    if "audio" not in (fields.modalities or ()):
        if fields.modalities == []:
            raise invalid("modalities", 'expected ["text"] or ["text", "audio"], got an empty list')
        if fields.audio is not None:
            raise invalid("audio", 'expected none without "audio" in modalities')
        return None
    if not able.speaks:
        raise invalid("modalities", 'expected ["text"]: the model does not speak')
    audio = fields.audio
    if audio is None or audio.format is None or not audio.voice:
        name = "audio" if audio is None else "audio.format" if audio.format is None else "audio.voice"
        raise missing(name, '{"voice", "format"} beside "audio" in modalities')
    if fields.stream is True and audio.format != "pcm16":
        raise invalid("audio.format", f'expected "pcm16" with stream, got {shown(audio.format)}')
    return audio.format


def _voice(fields: CompletionRequest, able: Capabilities) -> str | None:
    """Return the id of a registered voice, None for the model's own. Raises `Refusal`."""
    name = fields.audio.voice if fields.audio is not None else None
    if name is None or name == OWN_VOICE:
        return None
    if able.voices is not None and name not in able.voices:
        known = " or ".join(map(shown, sorted({OWN_VOICE, *able.voices})))
        raise invalid("audio.voice", f"expected {known}, got {shown(name)}")
    return name


def _generation(fields: CompletionRequest) -> GenerationFields:
    most = fields.max_completion_tokens
    if most is not None and fields.max_tokens is not None:
        raise invalid("max_tokens", "expected none beside max_completion_tokens")
    most = fields.max_tokens if most is None else most
    return GenerationFields(max_new_tokens=most, temperature=fields.temperature, top_p=fields.top_p)


def _places(messages: Sequence[MessageFields]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"messages[{i}].content[{j}].", f"messages[{i}].content[{j}].{_PLACES[type(part)]}")
        for i, message in enumerate(messages)
        if isinstance(message.content, list)
        for j, part in enumerate(message.content)
        if type(part) in _PLACES
    )


def _message(message: MessageFields, path: str) -> ChatMessage:
    content: str | list[ChatPart] | None = None
    if isinstance(message.content, list):
        content = [_part(part, f"{path}.content[{j}]") for j, part in enumerate(message.content)]
        if message.role == "tool" and all(isinstance(part, ChatText) for part in content):
            content = "".join(part.text or "" for part in content if isinstance(part, ChatText))
    else:
        content = message.content
    if message.audio is not None and not content:
        raise invalid(f"{path}.audio", "no answer is kept here: send its transcript as content")
    role = "system" if message.role == "developer" else message.role
    return ChatMessage(role, content, message.tool_calls, message.tool_call_id)


def _part(part: Part, path: str) -> ChatPart:
    match part:
        case TextPart():
            return ChatText(part.text)
        case ImagePart():
            url = part.image_url.url if part.image_url is not None else None
            return ChatPicture(_media(url, f"{path}.image_url.url"))
        case VideoPart():
            url = part.video_url.url if part.video_url is not None else None
            return ChatVideo(_media(url, f"{path}.video_url.url"))
        case AudioPart():
            if part.input_audio is None or not part.input_audio.data:
                raise missing(f"{path}.input_audio.data", "base64 of a WAV file")
            if part.input_audio.format is None:
                raise missing(f"{path}.input_audio.format", '"wav"')
            return ChatAudio(part.input_audio.data)


def _media(url: str | None, path: str) -> str:
    if not url:
        raise missing(path, "a data: URL with base64")
    if not url.startswith(_DATA):
        raise invalid(path, "expected a data: URL with base64: nothing is fetched from other servers")
    return url
