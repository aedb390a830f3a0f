"""Settings of a session, input of its units, and sampling of its tokens."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from inference_service.interface.engine import End

MAX_SLICES: Final = 9
"""Most slices that a caller may ask a picture to be cut into."""


@dataclass(frozen=True)
class DuplexSettings:
    """Decoding settings of one session; defaults and ranges as the public `config` object."""

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
    """Behaviour of a context that grows beyond its window."""

    OFF = auto()
    BASIC = auto()
    CONTEXT = auto()
    """As BASIC, but what the model said in dropped units stays, as text behind the prompt."""


@dataclass(frozen=True)
class Window:
    """Above `high_tokens` of context, whole oldest units are dropped until at most `low_tokens` remain.

    The last two fields are of CONTEXT only.
    """

    mode: WindowMode = WindowMode.OFF
    high_tokens: int = 0
    low_tokens: int = 0
    max_units: int = 24
    """More units than these are dropped too."""
    remembered_tokens: int = 500
    """Most tokens of dropped text that stay, the newest."""


@dataclass(frozen=True)
class Tenant:
    """The caller on whose behalf a session runs: sessions of different tenants share no cached results."""

    salt: bytes = b""
    """Part of the name of every cached page and result. Unguessable, and never the key of a caller."""
    is_session: bool = False
    """Whether the tenant is this one session: then its cached pages are dropped with it."""


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
"""`top_k` that keeps every token."""


@dataclass(frozen=True)
class Sampling:
    """Sampling options of a chat or a token stream.

    `max_new_tokens` counts per unit, the token that ends it included. `length_penalty` divides the score of
    the end-of-sequence token if that is positive, and multiplies it otherwise: above 1 answers get longer.
    `repetition_penalty` sees the tokens of this unit. `stop` are strings, for chat only.
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
    """What the language model hears in its prompt."""
    spoken: NDArray[np.float32] | None = None
    """The voice of the output; `heard` if there is none."""
    voice_id: str = ""
    """Instead: a registered voice of the output."""

    @property
    def is_unset(self) -> bool:
        """Whether no voice is asked for."""
        return self.heard is None and self.spoken is None and not self.voice_id


MODELS_VOICE = VoiceReference()
"""What a session has that asks for no voice."""


class _Kind:
    """Settings that all sessions of one kind share."""

    is_duplex: ClassVar[bool] = False
    """Whether its units are seconds of a conversation."""
    is_chat: ClassVar[bool] = False
    """Whether each of its units brings a whole history."""
    is_stream: ClassVar[bool] = False
    """Whether its units are chunks of a stream, of which many may be in flight."""


@dataclass(frozen=True)
class UnitFormat:
    """The sound of duplex units: how long one is, and the rate of its samples."""

    seconds: float
    sample_rate_hz: int

    @property
    def samples(self) -> int:
        """Samples of a whole unit."""
        return round(self.seconds * self.sample_rate_hz)


@dataclass(frozen=True)
class DuplexSetup(_Kind):
    """Everything that decides how a full-duplex session runs; nothing of it outlives the session."""

    is_duplex = True

    system_prompt: str
    duplex: DuplexSettings
    window: Window
    seed: int
    sees: bool = False
    """Whether its units may bring pictures."""
    voice: VoiceReference = MODELS_VOICE
    tenant: Tenant = COMMON
    records: bool = False
    """Whether the end of each unit brings its `UnitRecord`, and units may be replayed."""
    format: UnitFormat | None = None
    """Of its units; None is the model's usual format."""


@dataclass(frozen=True)
class ChatSetup(_Kind):
    """A session of turns, each of which brings its whole history."""

    is_chat = True

    sampling: Sampling
    seed: int
    system_prompt: str = ""
    """Stands before the messages of a turn that begin with no system message of their own."""
    voice: VoiceReference = MODELS_VOICE
    """Of spoken answers."""
    tenant: Tenant = COMMON
    records: bool = False
    """Whether its answers tell what was sampled, as `Piece.sampled`."""


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
    """Utterances that are written down while they are heard."""

    is_stream = True

    sampling: Sampling
    seed: int
    tenant: Tenant = COMMON
    is_background: bool = False
    """Whether its units have no deadline: those of conversations run first."""


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
    """The outcome of a duplex unit, for a session that replays the unit."""

    end: "End"
    sampled: tuple[int, ...] = ()
    """Ids drawn, in order; none of a unit that had to listen."""
    codes: tuple[int, ...] = ()
    """Speech codes that became sound."""
    text_draws: int = 0
    """Random numbers that the session's text has used up after it."""
    speech_draws: int = 0
    """As `text_draws`, of its speech."""
    words: tuple[int, ...] = ()
    """Ids of the words that a recogniser has heard in it."""


@dataclass(frozen=True)
class UnitInput:
    """Input of one duplex unit: float32 mono audio at the input rate, and encoded pictures, oldest first."""

    pcm: NDArray[np.float32] | None
    """None for a unit of pictures alone."""
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int = 1
    """Into how many slices a picture may be cut, by a model that cuts them up."""
    texts: tuple[StandaloneText, ...] = ()
    """What the model reads before it."""
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
    """Frames seen of each second; those after the first are joined to one picture."""


@dataclass(frozen=True)
class Tool:
    """A function of the caller's; `parameters` is the JSON Schema of its arguments, an object."""

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
    """With REQUIRED: the one to call; empty for any."""
    are_parallel: bool = True
    """Whether there may be several calls in the answer."""


NO_TOOLS = Tools()
"""What a turn has in which there is nothing to call."""


@dataclass(frozen=True)
class ToolCall:
    """A call in the history; `arguments` is what its JSON object holds."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ChatMessage:
    """One message; `role` is `system`, `user`, `assistant` or `tool`, and a part that is a `str` is text.

    `calls` are of the assistant. `call_id` is of a tool, whose text is the result of that call.
    """

    role: str
    parts: tuple[str | Picture | Clip | Video, ...]
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@dataclass(frozen=True)
class TurnInput:
    """A whole conversation to which the model is to answer; nothing of an earlier unit is left."""

    messages: tuple[ChatMessage, ...]
    speaks: bool = False
    """Whether the answer is spoken too."""
    use_tts_template: bool = False
    enable_thinking: bool = False
    omni_mode: bool = False
    """Whether pictures and sound of a message belong together in time; videos are seen and heard."""
    max_slice_nums: int | None = None
    use_image_id: bool | None = None
    """Whether pictures are numbered; None leaves it to the model."""
    tts_mode: str = ""
    """The model's name for a way of speaking; empty means its default."""
    language: str = ""
    """Language to speak; empty means that of the text."""
    tools: Tools = NO_TOOLS
    begun: tuple[int, ...] = ()
    """Ids with which the answer began in another session; it goes on behind them."""


@dataclass(frozen=True)
class StreamInput:
    """A chunk that is appended to the context: ids, text or audio of any length; None for no chunk.

    `begins` drops the context first, `ends` says that no more comes in this utterance.
    """

    chunk: "tuple[int, ...] | str | NDArray[np.float32] | None"
    begins: bool = False
    ends: bool = False


Content = UnitInput | TurnInput | StreamInput
"""The input of a unit, each mode its own: AUDIO and VIDEO, CHAT, TRANSCRIBE and TOKENS."""


@dataclass(frozen=True)
class UnitOverrides:
    """Sampling settings for one unit only; None means the session's."""

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
        """Return a session's sampling with these on top (the seed is the sampler's affair)."""
        changes = {name: value for name, value in vars(self).items() if name != "seed" and value is not None}
        return replace(session, **changes)

    def apply(self, settings: DuplexSettings) -> DuplexSettings:
        """Return the session's settings with these on top (the seed is the sampler's affair)."""
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
"""What a unit has that asks for no settings of its own."""
