"""A chat turn: the whole conversation so far, and how the model is to answer it."""

from typing import Literal, TypeAlias

from msgspec import Struct

Role: TypeAlias = Literal["system", "user", "assistant"]


class Picture(Struct, frozen=True):
    """An encoded picture: JPEG, PNG or WebP."""

    data: bytes


class Speech(Struct, frozen=True):
    """A clip of float32 audio at 16 kHz."""

    data: bytes


Part: TypeAlias = str | Picture | Speech


class Message(Struct, frozen=True):
    """What one side said."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes, about: characters count as one."""
        return sum(len(part if isinstance(part, str) else part.data) for part in self.parts)


class Generation(Struct, frozen=True):
    """How the tokens of an answer are drawn."""

    max_new_tokens: int = 512
    temperature: float = 0.7
    top_p: float = 0.8
    length_penalty: float = 1.0


class Turn(Struct, frozen=True):
    """Everything that the model is told; nothing of an earlier turn is left."""

    messages: tuple[Message, ...]
    generation: Generation = Generation()
    speaks: bool = False
    """Whether the answer is to be spoken too."""
    tts_mode: str = ""
    language: str = ""
    use_tts_template: bool = False
    enable_thinking: bool = False
    omni_mode: bool = False
    max_slice_nums: int | None = None
    use_image_id: bool = True

    @property
    def size(self) -> int:
        """Bytes of its messages, about."""
        return sum(message.size for message in self.messages)
