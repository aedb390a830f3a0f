"""Settings of a session, input of its units, and sampling of its tokens."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from inference_service.interface.engine import End

MAX_SLICES: Final = 9
"""Limit of slices of a picture that a caller may ask for."""


@dataclass(frozen=True)
class DuplexSettings:
    """Decoding settings of one session, with the defaults and ranges of the public `config` object."""

    generate_audio: bool = True
    force_listen_count: int = 3
    max_new_speak_tokens_per_chunk: int = 20
    greedy: bool = False
    temperature: float = 0.7
    top_k: int = 20
    top_p: float = 0.8
    text_repetition_penalty: float = 1.05
    text_repetition_window_size: int = 512
    length_penalty: float = 1.1
    listen_prob_scale: float = 1.0
    listen_top_k: int | None = None
    tts_temperature: float = 0.8


class WindowMode(Enum):
    """The behaviour of a context that grows beyond its window."""

    OFF = auto()
    BASIC = auto()
    CONTEXT = auto()
    """As BASIC, but the model's words in dropped units stay as text after the prompt."""


@dataclass(frozen=True)
class Window:
    """A sliding window: above `high_tokens`, the oldest units are dropped until at most `low_tokens` remain.

    The last two fields apply to CONTEXT only.
    """

    mode: WindowMode = WindowMode.OFF
    high_tokens: int = 0
    low_tokens: int = 0
    max_units: int = 24
    """Limit of units; older ones are dropped too."""
    remembered_tokens: int = 500
    """Limit of tokens of dropped text that stay in the context; the newest stay."""


@dataclass(frozen=True)
class Tenant:
    """The caller on whose behalf a session runs: sessions of different tenants share no cached results."""

    salt: bytes = b""
    """Part of the cache key of every page and result. It cannot be guessed, and is never an API key."""
    is_session: bool = False
    """Whether the tenant is only this session; then its cached pages are dropped with it."""


COMMON: Final = Tenant()
"""The tenant of sessions that are opened without the RPC layer, such as those of tests and benchmarks."""


class Mode(Enum):
    """A kind of session."""

    AUDIO = auto()
    VIDEO = auto()
    CHAT = auto()
    TRANSCRIBE = auto()
    TOKENS = auto()


KEEP_ALL = 2**31 - 1
"""The `top_k` that keeps every token."""


@dataclass(frozen=True)
class Sampling:
    """Sampling options of a chat or a token stream.

    `max_new_tokens` is the limit of a unit, including the token that ends it. `length_penalty` divides the
    score of the end-of-sequence token if that is positive, and multiplies it otherwise: above 1 answers get
    longer. `repetition_penalty` applies to the tokens of this unit. `stop` holds strings, for chat only.
    """

    max_new_tokens: int = 512
    temperature: float = 0.7
    top_p: float = 0.8
    top_k: int = KEEP_ALL
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class VoiceReference:
    """Reference audio, float32 mono at the model's input rate; None is the model's own voice."""

    heard: NDArray[np.float32] | None = None
    """Audio that the language model hears in its prompt."""
    spoken: NDArray[np.float32] | None = None
    """The voice of the output; `heard` if there is none."""
    voice_id: str = ""
    """A registered voice of the output, in place of `spoken`."""

    @property
    def is_unset(self) -> bool:
        """Whether no voice is asked for."""
        return self.heard is None and self.spoken is None and not self.voice_id


MODELS_VOICE = VoiceReference()
"""The voice of a session that asks for none."""


class _Kind:
    """Properties that all sessions of one kind share."""

    is_duplex: ClassVar[bool] = False
    """Whether units are seconds of a conversation."""
    is_chat: ClassVar[bool] = False
    """Whether each unit brings a whole history."""
    is_stream: ClassVar[bool] = False
    """Whether units are chunks of a stream, many of which may be in flight."""


@dataclass(frozen=True)
class UnitFormat:
    """The sound of duplex units: the length of a unit, and its sample rate."""

    seconds: float
    sample_rate_hz: int

    @property
    def samples(self) -> int:
        """Samples of a whole unit."""
        return round(self.seconds * self.sample_rate_hz)


@dataclass(frozen=True)
class DuplexSetup(_Kind):
    """All settings of a full-duplex session; none outlives the session."""

    is_duplex = True

    system_prompt: str
    duplex: DuplexSettings
    window: Window
    seed: int
    sees: bool = False
    """Whether units may bring pictures."""
    voice: VoiceReference = MODELS_VOICE
    tenant: Tenant = COMMON
    records: bool = False
    """Whether the end of each unit brings its `UnitRecord`; then units may also be replayed."""
    format: UnitFormat | None = None
    """The format of its units; None is the model's usual format."""


@dataclass(frozen=True)
class ChatSetup(_Kind):
    """A session of turns, each of which brings its whole history."""

    is_chat = True

    sampling: Sampling
    seed: int
    system_prompt: str = ""
    """Precedes the messages of a turn that does not begin with its own system message."""
    voice: VoiceReference = MODELS_VOICE
    """The voice of spoken answers."""
    tenant: Tenant = COMMON
    records: bool = False
    """Whether answers return the sampled ids as `Piece.sampled`."""


@dataclass(frozen=True)
class TokensSetup(_Kind):
    """A context of tokens that grows by one chunk a unit."""

    is_stream = True

    sampling: Sampling
    seed: int
    system_prompt: str = ""
    """Text at the very start of the context."""
    tenant: Tenant = COMMON


@dataclass(frozen=True)
class TranscribeSetup(_Kind):
    """A session of utterances that are transcribed while they are heard."""

    is_stream = True

    sampling: Sampling
    seed: int
    tenant: Tenant = COMMON
    is_background: bool = False
    """Whether its units have no deadline, so that those of conversations go first."""


SessionSetup = DuplexSetup | ChatSetup | TokensSetup | TranscribeSetup


class TextPurpose(Enum):
    """The purpose of a text for a model that is listening; the value is the name in a request."""

    INSTRUCTIONS = "instructions"
    THINKING = "thinking"
    COMMENTARY = "commentary"
    TOOL_RESULT = "tool_result"


@dataclass(frozen=True)
class StandaloneText:
    """A text for a model that is listening."""

    purpose: TextPurpose
    text: str


@dataclass(frozen=True)
class UnitRecord:
    """The outcome of a duplex unit, from which a session can replay the unit."""

    end: "End"
    sampled: tuple[int, ...] = ()
    """Sampled ids in order; empty for a unit that had to listen."""
    codes: tuple[int, ...] = ()
    """Speech codes that became sound."""
    text_draws: int = 0
    """Random numbers that the session's text has used up by the end of the unit."""
    speech_draws: int = 0
    """Random numbers that the session's speech has used up by the end of the unit."""
    words: tuple[int, ...] = ()
    """Ids of the words that a recogniser has heard in the unit."""


@dataclass(frozen=True)
class UnitInput:
    """Input of one duplex unit: float32 mono audio at the input rate, and encoded pictures, oldest first."""

    pcm: NDArray[np.float32] | None
    """The sound; None for a unit of pictures only."""
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int = 1
    """Limit of slices of a picture, for a model that cuts pictures up."""
    texts: tuple[StandaloneText, ...] = ()
    """Texts that the model reads before the unit."""
    recorded: UnitRecord | None = None
    """The recorded outcome of a replayed unit; None if the model decides."""


@dataclass(frozen=True)
class Picture:
    """An encoded picture inside a message: JPEG, PNG or WebP."""

    data: bytes


@dataclass(frozen=True)
class Clip:
    """Float32 mono audio inside a message, at the model's input rate."""

    pcm: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Video:
    """A video file inside a message: MP4, MOV, WebM or Matroska."""

    data: bytes
    stack_frames: int = 1
    """Frames taken of each second; those after the first are joined into one picture."""


@dataclass(frozen=True)
class Tool:
    """A function of the caller; `parameters` is the JSON Schema of its arguments, an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolMode(Enum):
    """Modes of tool calls."""

    AUTO = auto()
    NONE = auto()
    REQUIRED = auto()


@dataclass(frozen=True)
class Tools:
    """Tools that a model may call in one answer."""

    offered: tuple[Tool, ...] = ()
    mode: ToolMode = ToolMode.AUTO
    named: str = ""
    """The tool to call if the mode is REQUIRED; empty for any."""
    are_parallel: bool = True
    """Whether the answer may hold several calls."""


NO_TOOLS = Tools()
"""The tools of a turn without tools."""


@dataclass(frozen=True)
class ToolCall:
    """A call in the history; `arguments` is its JSON object."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ChatMessage:
    """One message; `role` is `system`, `user`, `assistant` or `tool`, and a part that is a `str` is text.

    Only the assistant has `calls`. Only a tool has a `call_id`; its text is the result of that call.
    """

    role: str
    parts: tuple[str | Picture | Clip | Video, ...]
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@dataclass(frozen=True)
class TurnInput:
    """A whole conversation for the model to answer; nothing of an earlier unit remains."""

    messages: tuple[ChatMessage, ...]
    speaks: bool = False
    """Whether the answer is also spoken."""
    use_tts_template: bool = False
    enable_thinking: bool = False
    omni_mode: bool = False
    """Whether pictures and sound of a message belong together in time; videos are seen and heard."""
    max_slice_nums: int | None = None
    use_image_id: bool | None = None
    """Whether pictures are numbered; None leaves it to the model."""
    tts_mode: str = ""
    """The model's name for a way of speaking; empty is the default."""
    language: str = ""
    """Language to speak; empty is the language of the text."""
    tools: Tools = NO_TOOLS
    begun: tuple[int, ...] = ()
    """Ids with which the answer began in another session; decoding continues after them."""


@dataclass(frozen=True)
class StreamInput:
    """A chunk to append to the context: ids, text or audio of any length; None for no chunk.

    `begins` drops the context first; `ends` marks the last chunk of an utterance.
    """

    chunk: "tuple[int, ...] | str | NDArray[np.float32] | None"
    begins: bool = False
    ends: bool = False


Content = UnitInput | TurnInput | StreamInput
"""The input of a unit; each mode has its own: AUDIO and VIDEO, CHAT, TRANSCRIBE and TOKENS."""


@dataclass(frozen=True)
class UnitOverrides:
    """Sampling settings for one unit only; None means the session's setting."""

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    length_penalty: float | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None

    def sampling(self, session: Sampling) -> Sampling:
        """Return a session's sampling with these overrides; the sampler handles the seed."""
        changes = {name: value for name, value in vars(self).items() if name != "seed" and value is not None}
        return replace(session, **changes)

    def apply(self, settings: DuplexSettings) -> DuplexSettings:
        """Return the session's settings with these overrides; the sampler handles the seed."""
        changes = {
            "max_new_speak_tokens_per_chunk": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "text_repetition_penalty": self.repetition_penalty,
            "length_penalty": self.length_penalty,
        }
        return replace(settings, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]


NO_OVERRIDES = UnitOverrides()
"""The overrides of a unit without settings of its own."""
