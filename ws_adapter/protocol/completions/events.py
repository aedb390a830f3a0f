"""OpenAI's objects of chat completions, as the server sends them: whole, in pieces, and errors."""

from typing import ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType

from ws_adapter.protocol.chat.tools import DoneCall
from ws_adapter.protocol.wire.errors import ErrorCode
from ws_adapter.protocol.wire.events import Fault, ServerEvent

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptDetails(Struct, frozen=True):
    """Input tokens by kind."""

    audio_tokens: int
    cached_tokens: int


class CompletionDetails(Struct, frozen=True):
    """Output tokens by kind."""

    audio_tokens: int
    reasoning_tokens: int = 0


class Usage(Struct, frozen=True):
    """Tokens of a completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Audio(Struct, frozen=True):
    """Spoken audio of an answer. The server keeps no answers, so later requests cannot refer to the id."""

    id: str
    data: str
    expires_at: int
    transcript: str


class Message(Struct, frozen=True):
    """A whole answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    annotations: tuple[()] = ()
    tool_calls: list[DoneCall] | UnsetType = UNSET
    audio: Audio | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    """The thinking of the model."""


class Choice(Struct, frozen=True):
    """The single answer of a completion."""

    index: int
    message: Message
    finish_reason: FinishReason
    logprobs: None = None


class ChatCompletion(ServerEvent, kw_only=True, omit_defaults=False, tag=False):
    """A whole completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: None = None


class AudioDelta(Struct, frozen=True):
    """A piece of the spoken answer: audio, transcript, or both."""

    id: str
    data: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET


class FunctionDelta(Struct, frozen=True):
    """A piece of a call's arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class CallDelta(Struct, frozen=True):
    """A piece of a call."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class Delta(Struct, frozen=True):
    """A piece of an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET
    audio: AudioDelta | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChoiceDelta(Struct, frozen=True):
    """A piece of the single answer of a completion."""

    index: int
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: None = None


class ChatCompletionChunk(ServerEvent, kw_only=True, omit_defaults=False, tag=False):
    """A piece of a completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChoiceDelta]
    usage: Usage | UnsetType | None = UNSET
    """Absent without `include_usage`; with it the usage in the last chunk, and null in the others."""
    system_fingerprint: None = None


class ErrorBody(Struct):
    """An error."""

    message: str
    type: str
    param: str | None
    code: str | None
    trace_id: str | UnsetType = UNSET
    """The id by which the operator of the server finds the request."""


class Error(ServerEvent, kw_only=True, omit_defaults=False, tag=False):
    """The request was refused, or failed."""

    error: ErrorBody

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        is_known = self.error.code in set(ErrorCode)
        code = ErrorCode(self.error.code) if is_known and self.error.code else ErrorCode.INVALID_PAYLOAD
        return Fault(code, code.is_servers)

    def identify(self, trace_id: str) -> None:
        self.error.trace_id = trace_id
