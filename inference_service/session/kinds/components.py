"""The parts that an architecture brings to the duplex runtime: an ear, an eye, a voice, and its prompts.

The first three work on the device, on the engine thread; what comes before them, from bytes and samples to
arrays, belongs to the `Senses` and is done on the media thread. States are each session's own.
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
"""Embeddings of the language model that a second of sound becomes."""

SLICE_MARKS = 2
"""Ids before and behind a slice of a picture."""
Look = Callable[[Sequence["View"], Sequence[Tensor]], list[list[Rows]]]
"""The slices of each picture with the marks round them, from embeddings [n, hidden] without."""

# ---------------------------------------------------------------------------------------- on the media thread


class Hearing(Protocol):
    """The features of one endless stream of sound."""

    is_quick: bool
    """Whether a second takes no longer than waking another thread for it: then it is never handed over."""

    def feed(self, second: Pcm) -> Pcm:
        """Those of the next second, float32 [16000], for `Ear.encode`: float32."""


class Listener(Protocol):
    """A recogniser's ear for one endless stream of sound."""

    def follow(self, second: Pcm) -> Any:
        """Take the next second, float32 [16000]; return what seems to be an utterance that ended, or None."""

    def words(self, utterance: Any) -> str:
        """Return the words of an utterance; none if it was not understood. May take long, in any thread."""

    def know(self, utterance: Any) -> None:
        """Note that the words of an utterance are known already."""


@dataclass(frozen=True)
class View:
    """A picture, cut up: an overview and, in a grid of so many `columns`, its details row by row."""

    slices: tuple[Any, ...]
    """For `Eye.see`."""
    columns: int = 0
    name: bytes = b""
    """The SHA-256 of what the slices were made of; empty if that is not known."""

    @property
    def names(self) -> list[bytes]:
        """The names of the slices."""
        return [self.name and digest(self.name, str(number)) for number in range(len(self.slices))]


@dataclass(frozen=True)
class Measure:
    """The slices that a picture will be cut into."""

    slices: int = 1
    columns: int = 0

    @property
    def rows(self) -> int:
        """Rows of the picture's details."""
        return (self.slices - 1) // self.columns if self.columns else 0


@dataclass(frozen=True)
class Sound:
    """A part of a clip that one call of `Ear.listen` takes; `begins` for its first one."""

    features: Tensor
    seconds: float
    begins: bool
    name: bytes = field(init=False)
    """The SHA-256 of its features."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", digest(self.features.numpy(), self.begins))


class Senses(Protocol):
    """Makes arrays of pictures and of sound. Holds nothing of a session."""

    def hearing(self) -> Hearing:
        """Return the hearing of a new session."""

    def measure(self, data: bytes, *, field: str, max_slices: int | None) -> Measure:
        """Return what becomes of an encoded picture, told from its head. None is the model's own most slices.

        `field` is the path of `data` in its request. Raises `UnitRefused`, as does `look`.
        """

    def look(self, data: bytes, *, field: str, max_slices: int | None) -> View:
        """Return the picture."""

    def frame_pixels(self, max_slices: int) -> int:
        """Return how many pixels of a video's frame are of use at most."""

    def measure_frame(self, size: tuple[int, int], max_slices: int) -> Measure:
        """Return what becomes of a frame of this width and height."""

    def look_at(self, pixels: NDArray[np.uint8], max_slices: int) -> View:
        """Return a frame, from RGB [height, width, 3]."""

    def clip_tokens(self, samples: int) -> int:
        """Return embeddings of a clip."""

    def sounds(self, pcm: Pcm) -> Iterator[Sound]:
        """Yield the sounds of a whole clip at 16 kHz."""


class VoicePrompts(Protocol):
    """The vocoder's prompts of a voice."""

    def prompt(self, reference: VoiceReference, salt: bytes = b"") -> Any:
        """That of a session; may take long. None is the model's own voice.

        What is remembered of a recording is found again with the same `salt` alone: that of the tenant whose
        recording it is, or none for the operator's. Raises `UnitRefused` for a recording that cannot be used.
        """


# --------------------------------------------------------------------------------------- on the engine thread


class Ear(Protocol):
    """Sound into embeddings of the language model."""

    def initial_state(self) -> Any:
        """Return the state of a stream that has heard nothing."""

    def encode(self, heard: list[Tensor], states: list[Any]) -> tuple[list[Tensor], list[Any]]:
        """Encode the next second of each stream, as `Hearing.feed` gives it: embeddings [n, hidden], new
        states."""

    def listen(self, sound: Sound, state: Any) -> tuple[Tensor, Any]:
        """Encode the next part of a clip; `state` is what the call before gave, None for one that begins."""

    def capture(self, streams: int) -> None:
        """Make ready, on a device other than the CPU, what so many streams need; states come after it."""


class Eye(Protocol):
    """Slices of pictures into embeddings of the language model."""

    def see(self, slices: list[Any]) -> list[Tensor]:
        """Return embeddings [queries, hidden] of each slice."""


class MouthState(Protocol):
    """The vocoder's state of a session's open turn."""

    def reset(self) -> None:
        """Begin a new turn."""

    def mark(self) -> Callable[[], None]:
        """Return a way back to how it is now, unless it is reset."""


class SpeakingSession(ABC):
    """A session with a voice."""

    mouth: MouthState | None
    """None for a session without a voice, and before it has begun."""

    @abstractmethod
    def speech_job(self) -> SpeechJob | None:
        """Return the speech under way in stage SPEAK; None if nothing more is to be said aloud."""

    @abstractmethod
    def spoken(self, audio: Tensor | None, spoken_at: float) -> None:
        """Take the job's finished speech, float32 [samples], or None."""


VOICES_AT_ONCE = 8
"""Streams that a mouth is given at once: more of them gain no time, and each takes memory."""


@dataclass(frozen=True)
class SpeechCodes:
    """Codes to be said, those of one unit at most; `is_last` ends the turn and says what was held back."""

    state: Any
    codes: Sequence[int]
    is_last: bool


class Mouth(Protocol):
    """Speech codes into sound."""

    def initial_state(self, voice: Any, seed: int) -> Any:
        """Return the `MouthState` of a session. `voice` is what `VoicePrompts` made, or None for the
        model's own."""

    def prepare(self, voice: Any) -> Iterator[None]:
        """Make `initial_state` quick for this voice, in portions of a few milliseconds on a GPU."""

    def say(self, chunks: list[SpeechCodes]) -> list[Arrival]:
        """Float32 samples for each chunk, which may be under way still; states move on in place."""

    def capture(self) -> None:
        """Make ready what a device other than the CPU does over and over, before the first session."""


# --------------------------------------------------------------------------------------------------- prompts


@dataclass(frozen=True)
class Opening:
    """The beginning of a context before the first unit: ids, a reference voice between them, and ids.

    A window that remembers what was said writes it before `after`.
    """

    before: list[int]
    after: list[int]
    hears_voice: bool = False


Interject = Callable[[StandaloneText], list[int]]
"""The ids of a text that a model reads before a unit."""


class Openings(Protocol):
    """Makes the prompts of duplex sessions."""

    def opening(self, system_prompt: str, *, hears_voice: bool) -> Opening:
        """Return the prompt; `hears_voice` if there is reference audio for the language model."""


@dataclass(frozen=True)
class ChatRules:
    """The chat rules of an architecture."""

    opens_with_space: bool = False
    """Whether its answers begin with a space, because all its words do; it is not shown."""
    ends: frozenset[int] = frozenset()
    """Ids that end an answer."""
    forbidden: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """Ids that no answer may hold."""
    numbers_pictures: bool = False
    """Whether it is told which picture is which, unless a turn says otherwise."""
    hearing_opens_speech: bool = False
    """Whether a turn with a clip in it is answered as one that is to be spoken."""
    omni_joint: str = PART_JOINT
    """What stands between the parts of a message in `omni_mode`."""
    interleaves_videos: bool = False
    """Whether a video's sound stands between its frames, in pieces; else it follows them in one."""


@dataclass(frozen=True)
class SpeechComponents:
    """The voice of a model."""

    head: SpeechHead
    mouth: Mouth
    capacity: int
    """Entries of speech context in a slot."""
    prompts: VoicePrompts | None = None
    """None for a model with one voice only."""
    default: VoiceReference = MODELS_VOICE
    """Of sessions that bring none."""
    ids: frozenset[str] = frozenset()
    """Of registered voices."""
    can_clone: bool = False
    """Whether it takes the voice of any recording."""


@dataclass(frozen=True)
class DuplexComponents:
    """A loaded duplex model, taken apart. Nothing of it holds anything of a session."""

    info: ModelInfo
    language: PreTrainedModel
    """Without its head."""
    embeddings: nn.Module
    head: nn.Module
    tokenizer: Tokenizer
    senses: Senses
    ear: Ear
    unit_tokens: int
    """Embeddings of one unit's audio."""
    openings: Openings
    forbidden: tuple[int, ...]
    """Ids that no decision of a duplex unit may be."""
    chat: ChatRules = field(default_factory=ChatRules)
    eye: Eye | None = None
    slice_tokens: int = 0
    """Embeddings of one slice of a picture."""
    turn_bound: TurnBound | None = None
    """None for a model that always comes to an end by itself."""
    detail_marks: tuple[int, int] | None = None
    """The ids round a detail of a picture, of a model that cuts pictures up."""
    speech: SpeechComponents | None = None
    """None for a model that is served without a voice."""
    recogniser: Callable[[], Listener] | None = None
    """Makes the recogniser's ear of a session; None where the encoder hears alone."""
    interject: Interject | None = None
    """None for a model that reads nothing while it listens."""
    transcription_prompt: str = ""
    """What stands before an utterance that is to be written down; empty for a model that does not."""
    reference_quirks: bool = False
    """Repeats what the reference implementation does wrong, for comparisons with its recordings only."""

    def reference(self, given: VoiceReference) -> VoiceReference:
        """Return the voice of a session: what it brings, and the model's own for the rest."""
        if self.speech is None:
            return given
        default = self.speech.default
        if given.is_unset:
            return default
        return replace(given, heard=default.heard) if given.heard is None else given
