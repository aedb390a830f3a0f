"""A chat turn: the whole conversation so far, and how the model is to answer it."""

from typing import Literal, TypeAlias

from msgspec import Struct

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


class Picture(Struct, frozen=True, tag=True):
    """An encoded picture: JPEG, PNG or WebP."""

    data: bytes


class Speech(Struct, frozen=True, tag=True):
    """A clip of float32 audio at 16 kHz."""

    data: bytes


class Video(Struct, frozen=True, tag=True):
    """A video file: MP4, MOV, WebM or Matroska."""

    data: bytes
    stack_frames: int = 1
    """The frames used of each second; those after the first are joined into one picture."""


Part: TypeAlias = str | Picture | Speech | Video


class Tool(Struct, frozen=True):
    """A function that the model may call; the client runs it."""

    name: str
    description: str = ""
    parameters_json: str = ""
    """JSON Schema of an object; empty for a function without arguments."""

    @property
    def size(self) -> int:
        """The approximate size in bytes: characters count as one."""
        return len(self.name) + len(self.description) + len(self.parameters_json)


class Named(Struct, frozen=True):
    """The choice of one tool."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | Named


class Call(Struct, frozen=True):
    """A call that the model made, with its arguments as a JSON object."""

    id: str
    name: str
    arguments_json: str


class Message(Struct, frozen=True):
    """A message of one side. Only a message with calls may be without parts.

    `calls` belong to a message of the assistant. `call_id` belongs to a message of a tool, whose text is the
    result of that call.
    """

    role: Role
    parts: tuple[Part, ...]
    calls: tuple[Call, ...] = ()
    call_id: str = ""

    @property
    def size(self) -> int:
        """The approximate size in bytes: characters count as one."""
        said = sum(len(part if isinstance(part, str) else part.data) for part in self.parts)
        return said + sum(len(call.name) + len(call.arguments_json) for call in self.calls)


class Generation(Struct, frozen=True):
    """Sampling of an answer's tokens."""

    max_new_tokens: int = 512
    temperature: float | None = 0.7
    """The temperature; None is the model's own."""
    top_p: float | None = 0.8
    """The top-p; None is the model's own."""
    length_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are left out of it."""


class Turn(Struct, frozen=True):
    """The complete input of a turn; nothing of an earlier turn remains at the model."""

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
    use_image_id: bool | None = None
    """Whether pictures are numbered; None is the model's own."""
    tools: tuple[Tool, ...] = ()
    """The tools, at most 128, with different names."""
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    """Whether the answer may have more than one call."""

    @property
    def size(self) -> int:
        """The approximate size of its messages and tools in bytes."""
        return sum(message.size for message in self.messages) + sum(tool.size for tool in self.tools)
