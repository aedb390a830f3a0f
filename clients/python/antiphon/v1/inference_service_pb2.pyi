from antiphon.v1 import common_pb2 as _common_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_MODE_UNSPECIFIED: _ClassVar[SessionMode]
    SESSION_MODE_CHAT: _ClassVar[SessionMode]
    SESSION_MODE_AUDIO: _ClassVar[SessionMode]
    SESSION_MODE_VIDEO: _ClassVar[SessionMode]
    SESSION_MODE_TRANSCRIBE: _ClassVar[SessionMode]
    SESSION_MODE_TOKENS: _ClassVar[SessionMode]

class TextPurpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEXT_PURPOSE_UNSPECIFIED: _ClassVar[TextPurpose]
    TEXT_PURPOSE_INSTRUCTIONS: _ClassVar[TextPurpose]
    TEXT_PURPOSE_THINKING: _ClassVar[TextPurpose]
    TEXT_PURPOSE_COMMENTARY: _ClassVar[TextPurpose]
    TEXT_PURPOSE_TOOL_RESULT: _ClassVar[TextPurpose]

class ToolMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_MODE_UNSPECIFIED: _ClassVar[ToolMode]
    TOOL_MODE_AUTO: _ClassVar[ToolMode]
    TOOL_MODE_NONE: _ClassVar[ToolMode]
    TOOL_MODE_REQUIRED: _ClassVar[ToolMode]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_ASSISTANT: _ClassVar[Role]
    ROLE_TOOL: _ClassVar[Role]

class UnitEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNIT_END_UNSPECIFIED: _ClassVar[UnitEnd]
    UNIT_END_LISTEN: _ClassVar[UnitEnd]
    UNIT_END_CHUNK: _ClassVar[UnitEnd]
    UNIT_END_TURN: _ClassVar[UnitEnd]
    UNIT_END_CONTEXT_FULL: _ClassVar[UnitEnd]
    UNIT_END_CANCELLED: _ClassVar[UnitEnd]
    UNIT_END_FAILED: _ClassVar[UnitEnd]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_EOS: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_LOADING: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
SESSION_MODE_UNSPECIFIED: SessionMode
SESSION_MODE_CHAT: SessionMode
SESSION_MODE_AUDIO: SessionMode
SESSION_MODE_VIDEO: SessionMode
SESSION_MODE_TRANSCRIBE: SessionMode
SESSION_MODE_TOKENS: SessionMode
TEXT_PURPOSE_UNSPECIFIED: TextPurpose
TEXT_PURPOSE_INSTRUCTIONS: TextPurpose
TEXT_PURPOSE_THINKING: TextPurpose
TEXT_PURPOSE_COMMENTARY: TextPurpose
TEXT_PURPOSE_TOOL_RESULT: TextPurpose
TOOL_MODE_UNSPECIFIED: ToolMode
TOOL_MODE_AUTO: ToolMode
TOOL_MODE_NONE: ToolMode
TOOL_MODE_REQUIRED: ToolMode
ROLE_UNSPECIFIED: Role
ROLE_SYSTEM: Role
ROLE_USER: Role
ROLE_ASSISTANT: Role
ROLE_TOOL: Role
UNIT_END_UNSPECIFIED: UnitEnd
UNIT_END_LISTEN: UnitEnd
UNIT_END_CHUNK: UnitEnd
UNIT_END_TURN: UnitEnd
UNIT_END_CONTEXT_FULL: UnitEnd
UNIT_END_CANCELLED: UnitEnd
UNIT_END_FAILED: UnitEnd
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_EOS: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_LOADING: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState

class PrefillRequest(_message.Message):
    __slots__ = ("unit", "config", "duplex", "turn", "stream", "traceparent", "run", "keep_last_token", "recorded")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    DUPLEX_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    KEEP_LAST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    unit: int
    config: SessionConfig
    duplex: DuplexInput
    turn: TurnInput
    stream: StreamInput
    traceparent: str
    run: GenerateUnit
    keep_last_token: bool
    recorded: UnitRecord
    def __init__(self, unit: _Optional[int] = ..., config: _Optional[_Union[SessionConfig, _Mapping]] = ..., duplex: _Optional[_Union[DuplexInput, _Mapping]] = ..., turn: _Optional[_Union[TurnInput, _Mapping]] = ..., stream: _Optional[_Union[StreamInput, _Mapping]] = ..., traceparent: _Optional[str] = ..., run: _Optional[_Union[GenerateUnit, _Mapping]] = ..., keep_last_token: bool = ..., recorded: _Optional[_Union[UnitRecord, _Mapping]] = ...) -> None: ...

class UnitRecord(_message.Message):
    __slots__ = ("end", "sampled_ids", "speech_codes", "text_draws", "speech_draws", "word_ids")
    END_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_IDS_FIELD_NUMBER: _ClassVar[int]
    SPEECH_CODES_FIELD_NUMBER: _ClassVar[int]
    TEXT_DRAWS_FIELD_NUMBER: _ClassVar[int]
    SPEECH_DRAWS_FIELD_NUMBER: _ClassVar[int]
    WORD_IDS_FIELD_NUMBER: _ClassVar[int]
    end: UnitEnd
    sampled_ids: _containers.RepeatedScalarFieldContainer[int]
    speech_codes: _containers.RepeatedScalarFieldContainer[int]
    text_draws: int
    speech_draws: int
    word_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, end: _Optional[_Union[UnitEnd, str]] = ..., sampled_ids: _Optional[_Iterable[int]] = ..., speech_codes: _Optional[_Iterable[int]] = ..., text_draws: _Optional[int] = ..., speech_draws: _Optional[int] = ..., word_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionConfig(_message.Message):
    __slots__ = ("mode", "model", "system_prompt", "voice", "duplex", "sampling", "window", "seed", "max_duration", "idle_timeout", "language", "automatic_units", "records", "background")
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_PROMPT_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    DUPLEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    AUTOMATIC_UNITS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    mode: SessionMode
    model: str
    system_prompt: str
    voice: _common_pb2.Voice
    duplex: _common_pb2.DuplexConfig
    sampling: _common_pb2.SamplingParams
    window: _common_pb2.WindowConfig
    seed: int
    max_duration: _duration_pb2.Duration
    idle_timeout: _duration_pb2.Duration
    language: str
    automatic_units: bool
    records: bool
    background: bool
    def __init__(self, mode: _Optional[_Union[SessionMode, str]] = ..., model: _Optional[str] = ..., system_prompt: _Optional[str] = ..., voice: _Optional[_Union[_common_pb2.Voice, _Mapping]] = ..., duplex: _Optional[_Union[_common_pb2.DuplexConfig, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., window: _Optional[_Union[_common_pb2.WindowConfig, _Mapping]] = ..., seed: _Optional[int] = ..., max_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., idle_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., language: _Optional[str] = ..., automatic_units: bool = ..., records: bool = ..., background: bool = ...) -> None: ...

class DuplexInput(_message.Message):
    __slots__ = ("audio", "frames", "max_slice_nums", "texts")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    MAX_SLICE_NUMS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    audio: _common_pb2.AudioChunk
    frames: _containers.RepeatedCompositeFieldContainer[_common_pb2.Image]
    max_slice_nums: int
    texts: _containers.RepeatedCompositeFieldContainer[StandaloneText]
    def __init__(self, audio: _Optional[_Union[_common_pb2.AudioChunk, _Mapping]] = ..., frames: _Optional[_Iterable[_Union[_common_pb2.Image, _Mapping]]] = ..., max_slice_nums: _Optional[int] = ..., texts: _Optional[_Iterable[_Union[StandaloneText, _Mapping]]] = ...) -> None: ...

class StandaloneText(_message.Message):
    __slots__ = ("purpose", "text")
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    purpose: TextPurpose
    text: str
    def __init__(self, purpose: _Optional[_Union[TextPurpose, str]] = ..., text: _Optional[str] = ...) -> None: ...

class TurnInput(_message.Message):
    __slots__ = ("messages", "tts", "image", "omni_mode", "enable_thinking", "use_tts_template", "tools", "tool_choice", "parallel_tool_calls")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TTS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    OMNI_MODE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_THINKING_FIELD_NUMBER: _ClassVar[int]
    USE_TTS_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    tts: TtsConfig
    image: ImageConfig
    omni_mode: bool
    enable_thinking: bool
    use_tts_template: bool
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., tts: _Optional[_Union[TtsConfig, _Mapping]] = ..., image: _Optional[_Union[ImageConfig, _Mapping]] = ..., omni_mode: bool = ..., enable_thinking: bool = ..., use_tts_template: bool = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[ToolChoice, _Mapping]] = ..., parallel_tool_calls: bool = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json: _Optional[str] = ...) -> None: ...

class ToolChoice(_message.Message):
    __slots__ = ("mode", "name")
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    mode: ToolMode
    name: str
    def __init__(self, mode: _Optional[_Union[ToolMode, str]] = ..., name: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments_json: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "tool_calls", "tool_call_id")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    role: Role
    content: _containers.RepeatedCompositeFieldContainer[Content]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., content: _Optional[_Iterable[_Union[Content, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ...) -> None: ...

class Content(_message.Message):
    __slots__ = ("text", "image", "audio", "video")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    VIDEO_FIELD_NUMBER: _ClassVar[int]
    text: str
    image: _common_pb2.Image
    audio: _common_pb2.AudioChunk
    video: _common_pb2.Video
    def __init__(self, text: _Optional[str] = ..., image: _Optional[_Union[_common_pb2.Image, _Mapping]] = ..., audio: _Optional[_Union[_common_pb2.AudioChunk, _Mapping]] = ..., video: _Optional[_Union[_common_pb2.Video, _Mapping]] = ...) -> None: ...

class TtsConfig(_message.Message):
    __slots__ = ("enabled", "mode", "voice", "language")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    mode: str
    voice: _common_pb2.Voice
    language: str
    def __init__(self, enabled: bool = ..., mode: _Optional[str] = ..., voice: _Optional[_Union[_common_pb2.Voice, _Mapping]] = ..., language: _Optional[str] = ...) -> None: ...

class ImageConfig(_message.Message):
    __slots__ = ("max_slice_nums", "use_image_id")
    MAX_SLICE_NUMS_FIELD_NUMBER: _ClassVar[int]
    USE_IMAGE_ID_FIELD_NUMBER: _ClassVar[int]
    max_slice_nums: int
    use_image_id: bool
    def __init__(self, max_slice_nums: _Optional[int] = ..., use_image_id: bool = ...) -> None: ...

class StreamInput(_message.Message):
    __slots__ = ("token_ids", "text", "audio", "begin_utterance", "end_utterance")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    BEGIN_UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    END_UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    token_ids: TokenIds
    text: str
    audio: _common_pb2.AudioChunk
    begin_utterance: bool
    end_utterance: bool
    def __init__(self, token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., text: _Optional[str] = ..., audio: _Optional[_Union[_common_pb2.AudioChunk, _Mapping]] = ..., begin_utterance: bool = ..., end_utterance: bool = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class PrefillResponse(_message.Message):
    __slots__ = ("unit", "ready", "prefilled", "error")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    unit: int
    ready: SessionReady
    prefilled: Prefilled
    error: _common_pb2.ItemError
    def __init__(self, unit: _Optional[int] = ..., ready: _Optional[_Union[SessionReady, _Mapping]] = ..., prefilled: _Optional[_Union[Prefilled, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.ItemError, _Mapping]] = ...) -> None: ...

class SessionReady(_message.Message):
    __slots__ = ("worker_id", "model", "prompt_tokens", "context_limit", "max_units_in_flight", "input_sample_rate_hz", "output_sample_rate_hz", "unit_duration", "effective", "ignored_fields", "text_purposes", "max_slices")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAX_UNITS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    INPUT_SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    UNIT_DURATION_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_PURPOSES_FIELD_NUMBER: _ClassVar[int]
    MAX_SLICES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    model: str
    prompt_tokens: int
    context_limit: int
    max_units_in_flight: int
    input_sample_rate_hz: int
    output_sample_rate_hz: int
    unit_duration: _duration_pb2.Duration
    effective: SessionConfig
    ignored_fields: _containers.RepeatedScalarFieldContainer[str]
    text_purposes: _containers.RepeatedScalarFieldContainer[TextPurpose]
    max_slices: int
    def __init__(self, worker_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., context_limit: _Optional[int] = ..., max_units_in_flight: _Optional[int] = ..., input_sample_rate_hz: _Optional[int] = ..., output_sample_rate_hz: _Optional[int] = ..., unit_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., effective: _Optional[_Union[SessionConfig, _Mapping]] = ..., ignored_fields: _Optional[_Iterable[str]] = ..., text_purposes: _Optional[_Iterable[_Union[TextPurpose, str]]] = ..., max_slices: _Optional[int] = ...) -> None: ...

class Prefilled(_message.Message):
    __slots__ = ("context_tokens", "usage", "timings", "vision_slices", "ignored_fields")
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    VISION_SLICES_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    context_tokens: int
    usage: _common_pb2.Usage
    timings: _common_pb2.Timings
    vision_slices: int
    ignored_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, context_tokens: _Optional[int] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timings: _Optional[_Union[_common_pb2.Timings, _Mapping]] = ..., vision_slices: _Optional[int] = ..., ignored_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("unit", "run", "cancel", "rewind")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    unit: int
    run: GenerateUnit
    cancel: CancelUnits
    rewind: RewindUnits
    def __init__(self, unit: _Optional[int] = ..., run: _Optional[_Union[GenerateUnit, _Mapping]] = ..., cancel: _Optional[_Union[CancelUnits, _Mapping]] = ..., rewind: _Optional[_Union[RewindUnits, _Mapping]] = ...) -> None: ...

class GenerateUnit(_message.Message):
    __slots__ = ("force_listen", "sampling")
    FORCE_LISTEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    force_listen: bool
    sampling: _common_pb2.SamplingParams
    def __init__(self, force_listen: bool = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ...) -> None: ...

class CancelUnits(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RewindUnits(_message.Message):
    __slots__ = ("heard_samples",)
    HEARD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    heard_samples: int
    def __init__(self, heard_samples: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("unit", "text", "audio", "done", "go_away", "tool_call", "thinking", "rewound", "prefilled", "finalized", "sampled_ids")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    REWOUND_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_FIELD_NUMBER: _ClassVar[int]
    FINALIZED_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_IDS_FIELD_NUMBER: _ClassVar[int]
    unit: int
    text: TextDelta
    audio: _common_pb2.AudioChunk
    done: UnitDone
    go_away: GoAway
    tool_call: ToolCallDelta
    thinking: TextDelta
    rewound: UnitsRewound
    prefilled: Prefilled
    finalized: FinalizeResponse
    sampled_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, unit: _Optional[int] = ..., text: _Optional[_Union[TextDelta, _Mapping]] = ..., audio: _Optional[_Union[_common_pb2.AudioChunk, _Mapping]] = ..., done: _Optional[_Union[UnitDone, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ..., tool_call: _Optional[_Union[ToolCallDelta, _Mapping]] = ..., thinking: _Optional[_Union[TextDelta, _Mapping]] = ..., rewound: _Optional[_Union[UnitsRewound, _Mapping]] = ..., prefilled: _Optional[_Union[Prefilled, _Mapping]] = ..., finalized: _Optional[_Union[FinalizeResponse, _Mapping]] = ..., sampled_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "name", "arguments", "complete")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    complete: bool
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ..., complete: bool = ...) -> None: ...

class UnitsRewound(_message.Message):
    __slots__ = ("context_tokens", "rewound_units", "error")
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REWOUND_UNITS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    context_tokens: int
    rewound_units: int
    error: _common_pb2.ItemError
    def __init__(self, context_tokens: _Optional[int] = ..., rewound_units: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.ItemError, _Mapping]] = ...) -> None: ...

class TextDelta(_message.Message):
    __slots__ = ("text", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class UnitDone(_message.Message):
    __slots__ = ("end", "finish_reason", "context_tokens", "usage", "timings", "error", "record")
    END_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    end: UnitEnd
    finish_reason: FinishReason
    context_tokens: int
    usage: _common_pb2.Usage
    timings: _common_pb2.Timings
    error: _common_pb2.ItemError
    record: UnitRecord
    def __init__(self, end: _Optional[_Union[UnitEnd, str]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., context_tokens: _Optional[int] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timings: _Optional[_Union[_common_pb2.Timings, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.ItemError, _Mapping]] = ..., record: _Optional[_Union[UnitRecord, _Mapping]] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("time_left", "reason")
    TIME_LEFT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    time_left: _duration_pb2.Duration
    reason: str
    def __init__(self, time_left: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class FinalizeRequest(_message.Message):
    __slots__ = ("unit", "keep_last_token")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    KEEP_LAST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    unit: int
    keep_last_token: bool
    def __init__(self, unit: _Optional[int] = ..., keep_last_token: bool = ...) -> None: ...

class FinalizeResponse(_message.Message):
    __slots__ = ("unit", "context_tokens", "dropped_units", "discarded_tokens", "session_usage", "timings")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_UNITS_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    unit: int
    context_tokens: int
    dropped_units: int
    discarded_tokens: int
    session_usage: _common_pb2.Usage
    timings: _common_pb2.Timings
    def __init__(self, unit: _Optional[int] = ..., context_tokens: _Optional[int] = ..., dropped_units: _Optional[int] = ..., discarded_tokens: _Optional[int] = ..., session_usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timings: _Optional[_Union[_common_pb2.Timings, _Mapping]] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("worker_id", "version", "model", "modes", "slots", "free_slots", "context_limit", "input_sample_rate_hz", "output_sample_rate_hz", "max_message_bytes", "duplex_defaults", "sampling_defaults", "voice_ids", "state", "short_of_time", "calls_tools", "held", "replays_units", "engine", "replays_turns", "revision", "lease_version", "usage", "unit_formats", "yields", "ignored_fields")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    INPUT_SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DUPLEX_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    VOICE_IDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SHORT_OF_TIME_FIELD_NUMBER: _ClassVar[int]
    CALLS_TOOLS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REPLAYS_UNITS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    REPLAYS_TURNS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LEASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FORMATS_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    version: str
    model: str
    modes: _containers.RepeatedScalarFieldContainer[SessionMode]
    slots: int
    free_slots: int
    context_limit: int
    input_sample_rate_hz: int
    output_sample_rate_hz: int
    max_message_bytes: int
    duplex_defaults: _common_pb2.DuplexConfig
    sampling_defaults: _common_pb2.SamplingParams
    voice_ids: _containers.RepeatedScalarFieldContainer[str]
    state: WorkerState
    short_of_time: bool
    calls_tools: bool
    held: _containers.RepeatedCompositeFieldContainer[HeldSlot]
    replays_units: bool
    engine: EngineInfo
    replays_turns: bool
    revision: str
    lease_version: int
    usage: _containers.RepeatedCompositeFieldContainer[LeaseUsage]
    unit_formats: _containers.RepeatedCompositeFieldContainer[UnitFormat]
    yields: bool
    ignored_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker_id: _Optional[str] = ..., version: _Optional[str] = ..., model: _Optional[str] = ..., modes: _Optional[_Iterable[_Union[SessionMode, str]]] = ..., slots: _Optional[int] = ..., free_slots: _Optional[int] = ..., context_limit: _Optional[int] = ..., input_sample_rate_hz: _Optional[int] = ..., output_sample_rate_hz: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., duplex_defaults: _Optional[_Union[_common_pb2.DuplexConfig, _Mapping]] = ..., sampling_defaults: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., voice_ids: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[WorkerState, str]] = ..., short_of_time: bool = ..., calls_tools: bool = ..., held: _Optional[_Iterable[_Union[HeldSlot, _Mapping]]] = ..., replays_units: bool = ..., engine: _Optional[_Union[EngineInfo, _Mapping]] = ..., replays_turns: bool = ..., revision: _Optional[str] = ..., lease_version: _Optional[int] = ..., usage: _Optional[_Iterable[_Union[LeaseUsage, _Mapping]]] = ..., unit_formats: _Optional[_Iterable[_Union[UnitFormat, _Mapping]]] = ..., yields: bool = ..., ignored_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class UnitFormat(_message.Message):
    __slots__ = ("chunk_ms", "sample_rate")
    CHUNK_MS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    chunk_ms: int
    sample_rate: int
    def __init__(self, chunk_ms: _Optional[int] = ..., sample_rate: _Optional[int] = ...) -> None: ...

class LeaseUsage(_message.Message):
    __slots__ = ("epoch", "input_tokens", "output_tokens")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    input_tokens: int
    output_tokens: int
    def __init__(self, epoch: _Optional[int] = ..., input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class EngineInfo(_message.Message):
    __slots__ = ("name", "version", "tensor_parallel_size", "pipeline_parallel_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., tensor_parallel_size: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ...) -> None: ...

class HeldSlot(_message.Message):
    __slots__ = ("slot", "epoch")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    slot: int
    epoch: int
    def __init__(self, slot: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...
