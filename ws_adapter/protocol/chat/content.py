"""The validation of requests for an answer, shared by the chat turns of all dialects."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec.structs import asdict, replace

from ws_adapter.protocol.chat.fields import (
    MAX_MESSAGES,
    MAX_PICTURES,
    MAX_SPEECH_S,
    MAX_VIDEOS,
    AudioPart,
    ChatFields,
    ChatMessage,
    ContentPart,
    GenerationFields,
    ImageFields,
    ImagePart,
    SpeechFields,
    TextPart,
    VideoPart,
)
from ws_adapter.protocol.chat.saved import SavedRequest
from ws_adapter.protocol.chat.tools import check_result, read_calls, read_choice, read_tools
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.config import Capabilities
from ws_adapter.protocol.core.saved_turn import save_turn, turn_of
from ws_adapter.protocol.core.signals import Prefilled, Ready
from ws_adapter.protocol.core.turn import Call, Generation, Message, Part, Picture, Speech, Turn, Video
from ws_adapter.protocol.media.images import read_frame
from ws_adapter.protocol.media.reference_voice import (
    NO_VOICE,
    RATE_HZ,
    Voice,
    read_reference,
    read_voice_id,
)
from ws_adapter.protocol.media.videos import read_video
from ws_adapter.protocol.media.wav import Sound, is_wav, read_wav
from ws_adapter.protocol.wire.codec import bounded, decode_base64
from ws_adapter.protocol.wire.errors import invalid, missing

MAX_MEDIA_BYTES = 30 * 2**20
"""The most bytes of clips, pictures and videos of a request, as sent to the worker, whose messages hold at
most 32 MiB."""

MAX_TEXT = 8 * 2**20
"""The most characters of a request, more than any context holds; longer requests reach no worker."""


@dataclass(frozen=True)
class Request:
    """A turn as its client requests it.

    `asks_for_speech` is the path of the field that requests speech, empty without such a field. `unsupported`
    are paths of accepted fields without effect.
    """

    turn: Turn
    streaming: bool
    voice: Voice | None
    asks_for_speech: str = ""
    unsupported: tuple[str, ...] = ()
    clipped_samples: int = 0
    has_own_slices: bool = False
    """Whether the request itself limits the slices of a picture."""

    def save(self, blobs: Blobs) -> SavedRequest:
        """Return the state."""
        voice = self.voice or NO_VOICE
        references = (voice.llm_reference, voice.speech_reference)
        llm, speech = (blobs.keep(data) if data is not None else None for data in references)
        return SavedRequest(
            save_turn(self.turn, blobs),
            self.streaming,
            self.voice is not None,
            llm,
            speech,
            voice.voice_id,
            self.asks_for_speech,
            self.unsupported,
            self.clipped_samples,
            self.has_own_slices,
        )

    @classmethod
    def restored(cls, saved: SavedRequest, blobs: Saved) -> "Request":
        """Return a request from a saved state. Raises `KeyError`."""
        references = (saved.llm_reference, saved.speech_reference)
        llm, speech = (blobs[number] if number is not None else None for number in references)
        return cls(
            turn_of(saved.turn, blobs),
            saved.streaming,
            Voice(llm, speech, saved.voice_id) if saved.has_voice else None,
            saved.asks_for_speech,
            saved.unsupported,
            saved.clipped_samples,
            saved.has_own_slices,
        )

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return self.turn.size + (self.voice.size if self.voice is not None else 0)

    def for_worker(self, ready: Ready, *, has_own_session: bool) -> tuple[Turn, list[str]]:
        """Return the turn as a worker can run it, and the paths of all settings without effect.

        `has_own_session`: the session at the worker was configured for this turn, with its voice.
        """
        unsupported = list(self.unsupported)
        if self.voice is not None:
            path = "tts.ref_audio_data" if self.voice.size else "tts.ref_audio_path"
            if not has_own_session or any(field.startswith("voice.") for field in ready.ignored_fields):
                unsupported.append(path)
        if not self.turn.speaks or ready.speaks:
            return self.turn, unsupported
        return replace(self.turn, speaks=False), [*filter(None, [self.asks_for_speech]), *unsupported]

    def ignored_by(self, prefilled: Prefilled) -> list[str]:
        """Return the paths of settings without effect on the model that has read the turn."""
        # The session reports its own limit of slices at its start; a template affects a spoken answer.
        told = {_SLICES: not self.has_own_slices, _TEMPLATE: self.turn.speaks}
        paths = [path.removeprefix("turn.") for path in prefilled.ignored_fields]
        return [path for path in paths if not told.get(path)]


_SLICES: Final = "image.max_slice_nums"
_TEMPLATE: Final = "use_tts_template"


@dataclass(frozen=True)
class ChatRules:
    """The rules for a request. `root` is the path of its fields in their event; with `speaks` answers are
    spoken by default."""

    root: str
    speaks: bool
    max_slice_nums: int | None = None
    is_mute: bool = False
    """Whether the session has switched speech off."""


def read_request(fields: ChatFields, rules: ChatRules, capabilities: Capabilities) -> Request:
    """Validate a whole request and return it. Raises `Refusal`; then no part of the request takes effect.

    `capabilities` are those of the model that will answer.
    """
    reader = _Reader(rules.root, calls_tools=capabilities.calls_tools)
    messages = reader.messages(fields.messages)
    tools = read_tools(fields.tools, f"{rules.root}tools", calls_tools=reader.calls_tools)
    tts, image = fields.tts or SpeechFields(), fields.image or ImageFields()
    enabled = rules.speaks if tts.enabled is None else tts.enabled
    asked = [
        name
        for name, wish in (("tts.enabled", tts.enabled), ("use_tts_template", fields.use_tts_template))
        if wish
    ]
    return Request(
        turn=Turn(
            messages=messages,
            generation=_generation(fields.generation),
            speaks=(enabled or bool(fields.use_tts_template)) and not rules.is_mute,
            tts_mode=tts.mode or "",
            language=tts.language or "",
            use_tts_template=bool(fields.use_tts_template),
            enable_thinking=bool(fields.enable_thinking),
            omni_mode=bool(fields.omni_mode),
            max_slice_nums=image.max_slice_nums or rules.max_slice_nums,
            use_image_id=image.use_image_id,
            tools=tools,
            tool_choice=read_choice(fields.tool_choice, tools, f"{rules.root}tool_choice"),
            parallel_tool_calls=fields.parallel_tool_calls is not False,
        ),
        streaming=fields.streaming is not False,
        voice=reader.voice(tts, capabilities.voices),
        asks_for_speech=asked[0] if asked else "",
        unsupported=("tts.ref_audio_path",) if tts.ref_audio_data and tts.ref_audio_path else (),
        clipped_samples=reader.clipped_samples,
        has_own_slices=image.max_slice_nums is not None,
    )


def _generation(fields: GenerationFields | None) -> Generation:
    given = {name: value for name, value in asdict(fields).items() if value is not None} if fields else {}
    return Generation(**given)


class _Reader:
    """The reader of one request, which adds up the sizes of its texts and media."""

    def __init__(self, root: str, *, calls_tools: bool) -> None:
        self.clipped_samples = 0
        self.calls_tools = calls_tools
        self._root = root
        self._called: set[str] = set()
        self._speech_s = 0.0
        self._bytes = 0
        self._videos = 0
        self._characters = 0

    def messages(self, given: Sequence[ChatMessage] | None) -> tuple[Message, ...]:
        path = f"{self._root}messages"
        if not given:
            raise missing(path, "a list of messages")
        if len(given) > MAX_MESSAGES:
            raise invalid(path, f"expected at most {MAX_MESSAGES} messages, got {len(given)}")
        for i, message in enumerate(given):
            if message.role is None:
                raise missing(f"{path}[{i}].role", '"system", "user", "assistant" or "tool"')
        if all(message.role != "user" for message in given):
            raise invalid(path, "at least one user message is needed")
        return tuple(self._message(message, f"{path}[{i}]") for i, message in enumerate(given))

    def voice(self, tts: SpeechFields, voices: Set[str] | None) -> Voice | None:
        """Return the voice that a request names, None without one; audio takes precedence over an id."""
        path = f"{self._root}tts."
        if tts.ref_audio_data:
            return Voice(speech_reference=read_reference(tts.ref_audio_data, f"{path}ref_audio_data"))
        if tts.ref_audio_path:
            return Voice(voice_id=read_voice_id(tts.ref_audio_path, f"{path}ref_audio_path", voices))
        return None

    def _message(self, message: ChatMessage, path: str) -> Message:
        assert message.role is not None
        if message.role == "tool":
            return self._result(message, path)
        calls = self._calls(message, f"{path}.tool_calls") if message.tool_calls else ()
        if message.tool_call_id is not None:
            raise invalid(f"{path}.tool_call_id", "expected none in a message that is no tool's")
        return Message(message.role, self._parts(message, f"{path}.content"), calls)

    def _result(self, message: ChatMessage, path: str) -> Message:
        if not self.calls_tools:
            raise invalid(f"{path}.role", "expected no tool: the model calls none")
        if not isinstance(message.content, str) or not message.content:
            raise missing(f"{path}.content", "a text")
        self._count_text(message.content)
        call_id = check_result(message.tool_call_id, self._called, f"{path}.tool_call_id")
        return Message("tool", (message.content,), call_id=call_id)

    def _calls(self, message: ChatMessage, path: str) -> tuple[Call, ...]:
        if message.role != "assistant":
            raise invalid(path, "expected none in a message that is not the assistant's")
        if not self.calls_tools:
            raise invalid(path, "expected none: the model calls no tools")
        calls = read_calls(message.tool_calls or (), path)
        for call in calls:
            self._count_text(call.arguments_json)
        self._called.update(call.id for call in calls)
        return calls

    def _parts(self, message: ChatMessage, path: str) -> tuple[Part, ...]:
        if not message.content:
            if message.tool_calls:
                return ()
            raise missing(path, "a text, or a list of parts,")
        if isinstance(message.content, str):
            self._count_text(message.content)
            return (message.content,)
        pictures = sum(isinstance(part, ImagePart) for part in message.content)
        if pictures > MAX_PICTURES:
            raise invalid(path, f"expected at most {MAX_PICTURES} pictures in one message, got {pictures}")
        return tuple(self._part(part, f"{path}[{i}]") for i, part in enumerate(message.content))

    def _part(self, part: ContentPart, path: str) -> Part:
        match part:
            case TextPart():
                if not part.text:
                    raise missing(f"{path}.text", "a text")
                self._count_text(part.text)
                return part.text
            case ImagePart():
                picture = read_frame(part.data or "", f"{path}.data")
                self._count(len(picture))
                return Picture(picture)
            case AudioPart():
                return Speech(self._speech(part, f"{path}.data"))
            case VideoPart():
                return self._video(part, path)
        raise TypeError(type(part))

    def _video(self, part: VideoPart, path: str) -> Video:
        self._videos += 1
        if self._videos > MAX_VIDEOS:
            raise invalid(path, f"expected at most {MAX_VIDEOS} videos in all messages, got more")
        data = read_video(part.data or "", f"{path}.data")
        self._count(len(data))
        return Video(data, part.stack_frames or 1)

    def _speech(self, part: AudioPart, path: str) -> bytes:
        if not part.data:
            raise missing(path, "base64 of audio")
        data = decode_base64(part.data, path)
        sound = read_wav(data, path) if is_wav(data) else self._raw(data, part.sample_rate or RATE_HZ, path)
        if not sound.samples.size:
            raise missing(path, "base64 of at least one sample")
        self.clipped_samples += sound.clipped
        self._speech_s += sound.seconds
        if self._speech_s > MAX_SPEECH_S:
            expected = f"expected at most {MAX_SPEECH_S} s of audio in all messages"
            raise invalid(path, f"{expected}, got {self._speech_s:.6g} s up to here")
        self._count(round(sound.seconds * RATE_HZ) * 4)
        return bounded(sound.at(RATE_HZ), path).data

    def _raw(self, data: bytes, rate_hz: int, path: str) -> Sound:
        if len(data) % 4:
            raise invalid(path, f"expected a WAV file or whole float32 samples, got {len(data)} bytes")
        clip = bounded(np.frombuffer(data, "<f4"), path)
        return Sound(clip.samples, rate_hz, clip.clipped)

    def _count_text(self, text: str) -> None:
        self._characters += len(text)
        if self._characters > MAX_TEXT:
            expected = f"expected at most {MAX_TEXT} characters of text in all messages"
            raise invalid(f"{self._root}messages", f"{expected}, got more")

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_MEDIA_BYTES:
            expected = (
                f"expected at most {MAX_MEDIA_BYTES // 2**20} MiB of pictures, clips and videos "
                "in all messages"
            )
            raise invalid(f"{self._root}messages", f"{expected}, got more; clips count as float32 at 16 kHz")
