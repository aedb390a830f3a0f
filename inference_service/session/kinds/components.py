"""The parts that an architecture brings to the duplex runtime: an ear, an eye, a voice, and its prompts.

The first three work on the device, on the engine thread. The `Senses` turn bytes and samples into arrays
before, in the media pool. Each session has its own states.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference_service.device.rows import Rows
from inference_service.device.side_stream import Arrival
from inference_service.engine.batch.speech import SpeechJob
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import MODELS_VOICE, StandaloneText, VoiceReference
from inference_service.media.memo import digest
from inference_service.models.chat_template import PART_JOINT
from inference_service.models.config import TurnBound
from inference_service.models.speech_head import SpeechHead
from inference_service.models.tokenizer import Tokenizer

Pcm = NDArray[np.float32]

ROWS_PER_SECOND = 10
"""Embeddings of the language model for a second of audio."""

SLICE_MARKS = 2
"""Marks round a slice of a picture."""
Look = Callable[[Sequence["View"], Sequence[Tensor]], list[list[Rows]]]
"""Return the slices of each picture with the marks round them, from embeddings [n, hidden] without marks."""

# ------------------------------------------------------------------------------------------ in the media pool


class Hearing(Protocol):
    """Feature extraction for one endless stream of sound."""

    is_quick: bool
    """Whether a second takes less time than waking another thread; then it is never handed over."""

    def feed(self, second: Pcm) -> Pcm:
        """Return the features of the next second, float32 [16000], for `Ear.encode`: float32."""


class Listener(Protocol):
    """The speech recogniser's state for one endless stream of sound."""

    def follow(self, second: Pcm) -> Any:
        """Take the next second, float32 [16000]; return the utterance that seems to have ended, or None."""

    def words(self, utterance: Any) -> str:
        """Return the words of an utterance; empty if it was not understood. May take long, in any thread."""

    def know(self, utterance: Any) -> None:
        """Note that the words of an utterance are known already."""


@dataclass(frozen=True)
class View:
    """A picture in slices: an overview, and its details row by row in a grid of `columns`."""

    slices: tuple[Any, ...]
    """Slices for `Eye.see`."""
    columns: int = 0
    name: bytes = b""
    """The SHA-256 of the data that the slices were made of; empty if it is not known."""

    @property
    def names(self) -> list[bytes]:
        """The names of the slices."""
        return [self.name and digest(self.name, str(number)) for number in range(len(self.slices))]


@dataclass(frozen=True)
class Measure:
    """The number of slices that a picture will be cut into."""

    slices: int = 1
    columns: int = 0

    @property
    def rows(self) -> int:
        """Rows of the picture's details."""
        return (self.slices - 1) // self.columns if self.columns else 0


@dataclass(frozen=True)
class Sound:
    """A part of a clip that one call of `Ear.listen` takes; `begins` marks the first part."""

    features: Tensor
    seconds: float
    begins: bool
    name: bytes = field(init=False)
    """The SHA-256 of its features."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", digest(self.features.numpy(), self.begins))


class Senses(Protocol):
    """The preprocessing of pictures and sound into arrays. It holds no state of a session."""

    def hearing(self) -> Hearing:
        """Return the feature extraction of a new session."""

    def measure(self, data: bytes, *, field: str, max_slices: int | None) -> Measure:
        """Return the size in slices of an encoded picture, read from its header.

        A `max_slices` of None is the model's own limit. `field` is the path of `data` in its request. Raises
        `UnitRefused`, as does `look`.
        """

    def look(self, data: bytes, *, field: str, max_slices: int | None) -> View:
        """Return the picture."""

    def frame_pixels(self, max_slices: int) -> int:
        """Return the most pixels of a video frame that are of use."""

    def measure_frame(self, size: tuple[int, int], max_slices: int) -> Measure:
        """Return the size in slices of a frame of this width and height."""

    def look_at(self, pixels: NDArray[np.uint8], max_slices: int) -> View:
        """Return a frame, from RGB [height, width, 3]."""

    def clip_tokens(self, samples: int) -> int:
        """Return the number of embeddings of a clip."""

    def sounds(self, pcm: Pcm) -> Iterator[Sound]:
        """Yield the sounds of a whole clip at 16 kHz."""


class VoicePrompts(Protocol):
    """The maker of the vocoder's prompts of voices."""

    def prompt(self, reference: VoiceReference, salt: bytes = b"") -> Any:
        """Return the prompt of a session; may take long. None is the model's own voice.

        The prompt of a recording is cached under `salt`: the salt of the tenant whose recording it is, or
        none for the operator's. Raises `UnitRefused` for a recording that cannot be used.
        """


# --------------------------------------------------------------------------------------- on the engine thread


class Ear(Protocol):
    """The audio encoder: from sound to embeddings of the language model."""

    def initial_state(self) -> Any:
        """Return the state of a new stream."""

    def encode(self, heard: list[Tensor], states: list[Any]) -> tuple[list[Tensor], list[Any]]:
        """Encode the next second of each stream from `Hearing.feed`; return embeddings [n, hidden] and new
        states.
        """

    def listen(self, sound: Sound, state: Any) -> tuple[Tensor, Any]:
        """Encode the next part of a clip; `state` comes from the previous call, None at the start
        of a clip.
        """

    def capture(self, streams: int) -> None:
        """Prepare for this many streams on a device other than the CPU; states are created after it."""


class Eye(Protocol):
    """The vision encoder: from slices of pictures to embeddings of the language model."""

    def see(self, slices: list[Any]) -> list[Tensor]:
        """Return embeddings [queries, hidden] of each slice."""


class MouthState(Protocol):
    """The vocoder's state in a session's open turn."""

    def reset(self) -> None:
        """Begin a new turn."""

    def mark(self) -> Callable[[], None]:
        """Return a function that restores the current state, unless the state is reset."""


class SpeakingSession(ABC):
    """A session with a voice."""

    mouth: MouthState | None
    """The state of the vocoder; None for a session without a voice, and before the session has begun."""

    @abstractmethod
    def speech_job(self) -> SpeechJob | None:
        """Return the running speech job in stage SPEAK; None if no speech is left."""

    @abstractmethod
    def spoken(self, audio: Tensor | None, spoken_at: float) -> None:
        """Take the job's finished speech, float32 [samples], or None."""


VOICES_AT_ONCE = 8
"""Limit of streams in one call of a mouth: larger batches save no time, and each stream takes memory."""


@dataclass(frozen=True)
class SpeechCodes:
    """Speech codes of one unit at most; `is_last` ends the turn and speaks the codes that were held back."""

    state: Any
    codes: Sequence[int]
    is_last: bool


class Mouth(Protocol):
    """The vocoder: from speech codes to sound."""

    def initial_state(self, voice: Any, seed: int) -> Any:
        """Return the `MouthState` of a session. `voice` comes from `VoicePrompts`; None is the
        model's own.
        """

    def prepare(self, voice: Any) -> Iterator[None]:
        """Prepare `initial_state` for this voice, in portions of a few milliseconds on a GPU."""

    def say(self, chunks: list[SpeechCodes]) -> list[Arrival]:
        """Return float32 samples for each chunk, possibly still being computed; states move on in place."""

    def capture(self) -> None:
        """Prepare repeated work on a device other than the CPU, before the first session."""


# --------------------------------------------------------------------------------------------------- prompts


@dataclass(frozen=True)
class DuplexPrompt:
    """The beginning of a context before the first unit: ids, a reference voice, and ids.

    A window of mode CONTEXT inserts the text of dropped units before `after`.
    """

    before: list[int]
    after: list[int]
    hears_voice: bool = False


Interject = Callable[[StandaloneText], list[int]]
"""Return the ids of a text that a model reads before a unit."""


class DuplexPrompts(Protocol):
    """The maker of the prompts of duplex sessions."""

    def prompt(self, system_prompt: str, *, hears_voice: bool) -> DuplexPrompt:
        """Return the prompt; `hears_voice` if the language model gets reference audio."""


@dataclass(frozen=True)
class ChatRules:
    """The chat rules of an architecture."""

    opens_with_space: bool = False
    """Whether its answers begin with a space, as all its words do; the space is not shown."""
    ends: frozenset[int] = frozenset()
    """Ids that end an answer."""
    forbidden: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """Ids that are never sampled in an answer."""
    numbers_pictures: bool = False
    """Whether pictures are numbered in the prompt, unless a turn says otherwise."""
    hearing_opens_speech: bool = False
    """Whether a prompt with a clip ends like one for a spoken answer."""
    omni_joint: str = PART_JOINT
    """Text between the parts of a message in `omni_mode`."""
    interleaves_videos: bool = False
    """Whether a video's sound stands in pieces between its frames; else it follows them in one piece."""


@dataclass(frozen=True)
class SpeechComponents:
    """The speech parts of a model."""

    head: SpeechHead
    mouth: Mouth
    capacity: int
    """Entries of speech context in a slot."""
    prompts: VoicePrompts | None = None
    """None for a model with one voice only."""
    default: VoiceReference = MODELS_VOICE
    """The voice of sessions that bring none."""
    ids: frozenset[str] = frozenset()
    """Ids of the registered voices."""
    can_clone: bool = False
    """Whether the model can speak with the voice of any recording."""


@dataclass(frozen=True)
class DuplexComponents:
    """The parts of a loaded duplex model. They hold no state of a session."""

    info: ModelInfo
    language: PreTrainedModel
    """The language model without its head."""
    embeddings: nn.Module
    head: nn.Module
    tokenizer: Tokenizer
    senses: Senses
    ear: Ear
    unit_tokens: int
    """Embeddings of the audio of one unit."""
    duplex_prompts: DuplexPrompts
    forbidden: tuple[int, ...]
    """Ids that are never decided in a duplex unit."""
    chat: ChatRules = field(default_factory=ChatRules)
    eye: Eye | None = None
    slice_tokens: int = 0
    """Embeddings of one slice of a picture."""
    turn_bound: TurnBound | None = None
    """The bound on open turns; None for a model that always ends its turns."""
    detail_marks: tuple[int, int] | None = None
    """The ids round a detail of a picture; None for a model that does not cut pictures up."""
    speech: SpeechComponents | None = None
    """The voice; None for a model that is served without one."""
    recogniser: Callable[[], Listener] | None = None
    """Makes the recogniser's listener of a session; None where only the encoder hears."""
    interject: Interject | None = None
    """Writes standalone texts; None for a model that reads no text while it listens."""
    transcription_prompt: str = ""
    """The prompt before an utterance to transcribe; empty for a model that does not transcribe."""
    reference_quirks: bool = False
    """Whether to repeat errors of the reference implementation; only for comparisons with its recordings."""

    def reference(self, given: VoiceReference) -> VoiceReference:
        """Return the voice of a session: the parts that it brings, and the model's own for the rest."""
        if self.speech is None:
            return given
        default = self.speech.default
        if given.is_unset:
            return default
        return replace(given, heard=default.heard) if given.heard is None else given
