from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AudioEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIO_ENCODING_UNSPECIFIED: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCM_F32LE: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCM_S16LE: _ClassVar[AudioEncoding]

class ListenSpeakMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LISTEN_SPEAK_MODE_UNSPECIFIED: _ClassVar[ListenSpeakMode]
    LISTEN_SPEAK_MODE_EXPLICIT: _ClassVar[ListenSpeakMode]

class DecodeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECODE_MODE_UNSPECIFIED: _ClassVar[DecodeMode]
    DECODE_MODE_SAMPLING: _ClassVar[DecodeMode]
    DECODE_MODE_GREEDY: _ClassVar[DecodeMode]

class WindowMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WINDOW_MODE_UNSPECIFIED: _ClassVar[WindowMode]
    WINDOW_MODE_OFF: _ClassVar[WindowMode]
    WINDOW_MODE_BASIC: _ClassVar[WindowMode]
    WINDOW_MODE_CONTEXT: _ClassVar[WindowMode]
AUDIO_ENCODING_UNSPECIFIED: AudioEncoding
AUDIO_ENCODING_PCM_F32LE: AudioEncoding
AUDIO_ENCODING_PCM_S16LE: AudioEncoding
LISTEN_SPEAK_MODE_UNSPECIFIED: ListenSpeakMode
LISTEN_SPEAK_MODE_EXPLICIT: ListenSpeakMode
DECODE_MODE_UNSPECIFIED: DecodeMode
DECODE_MODE_SAMPLING: DecodeMode
DECODE_MODE_GREEDY: DecodeMode
WINDOW_MODE_UNSPECIFIED: WindowMode
WINDOW_MODE_OFF: WindowMode
WINDOW_MODE_BASIC: WindowMode
WINDOW_MODE_CONTEXT: WindowMode

class AudioChunk(_message.Message):
    __slots__ = ("encoding", "sample_rate_hz", "data")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    encoding: AudioEncoding
    sample_rate_hz: int
    data: bytes
    def __init__(self, encoding: _Optional[_Union[AudioEncoding, str]] = ..., sample_rate_hz: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Video(_message.Message):
    __slots__ = ("data", "stack_frames")
    DATA_FIELD_NUMBER: _ClassVar[int]
    STACK_FRAMES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    stack_frames: int
    def __init__(self, data: _Optional[bytes] = ..., stack_frames: _Optional[int] = ...) -> None: ...

class Voice(_message.Message):
    __slots__ = ("llm_reference", "speech_reference", "voice_id")
    LLM_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    SPEECH_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    VOICE_ID_FIELD_NUMBER: _ClassVar[int]
    llm_reference: AudioChunk
    speech_reference: AudioChunk
    voice_id: str
    def __init__(self, llm_reference: _Optional[_Union[AudioChunk, _Mapping]] = ..., speech_reference: _Optional[_Union[AudioChunk, _Mapping]] = ..., voice_id: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("max_new_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "length_penalty", "stop_token_ids", "stop", "ignore_eos", "seed")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    length_penalty: float
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop: _containers.RepeatedScalarFieldContainer[str]
    ignore_eos: bool
    seed: int
    def __init__(self, max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., length_penalty: _Optional[float] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_eos: bool = ..., seed: _Optional[int] = ...) -> None: ...

class DuplexConfig(_message.Message):
    __slots__ = ("generate_audio", "ls_mode", "force_listen_count", "max_new_speak_tokens_per_chunk", "decode_mode", "temperature", "top_k", "top_p", "text_repetition_penalty", "text_repetition_window_size", "length_penalty", "listen_prob_scale", "listen_top_k", "tts_temperature", "chunk_ms", "sample_rate")
    GENERATE_AUDIO_FIELD_NUMBER: _ClassVar[int]
    LS_MODE_FIELD_NUMBER: _ClassVar[int]
    FORCE_LISTEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_SPEAK_TOKENS_PER_CHUNK_FIELD_NUMBER: _ClassVar[int]
    DECODE_MODE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TEXT_REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    TEXT_REPETITION_WINDOW_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LISTEN_PROB_SCALE_FIELD_NUMBER: _ClassVar[int]
    LISTEN_TOP_K_FIELD_NUMBER: _ClassVar[int]
    TTS_TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_MS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    generate_audio: bool
    ls_mode: ListenSpeakMode
    force_listen_count: int
    max_new_speak_tokens_per_chunk: int
    decode_mode: DecodeMode
    temperature: float
    top_k: int
    top_p: float
    text_repetition_penalty: float
    text_repetition_window_size: int
    length_penalty: float
    listen_prob_scale: float
    listen_top_k: int
    tts_temperature: float
    chunk_ms: int
    sample_rate: int
    def __init__(self, generate_audio: bool = ..., ls_mode: _Optional[_Union[ListenSpeakMode, str]] = ..., force_listen_count: _Optional[int] = ..., max_new_speak_tokens_per_chunk: _Optional[int] = ..., decode_mode: _Optional[_Union[DecodeMode, str]] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., text_repetition_penalty: _Optional[float] = ..., text_repetition_window_size: _Optional[int] = ..., length_penalty: _Optional[float] = ..., listen_prob_scale: _Optional[float] = ..., listen_top_k: _Optional[int] = ..., tts_temperature: _Optional[float] = ..., chunk_ms: _Optional[int] = ..., sample_rate: _Optional[int] = ...) -> None: ...

class WindowConfig(_message.Message):
    __slots__ = ("mode", "high_tokens", "low_tokens")
    MODE_FIELD_NUMBER: _ClassVar[int]
    HIGH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    mode: WindowMode
    high_tokens: int
    low_tokens: int
    def __init__(self, mode: _Optional[_Union[WindowMode, str]] = ..., high_tokens: _Optional[int] = ..., low_tokens: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_text_tokens", "input_audio_tokens", "input_vision_tokens", "cached_tokens", "output_text_tokens", "output_audio_tokens")
    INPUT_TEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INPUT_AUDIO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INPUT_VISION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_AUDIO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_text_tokens: int
    input_audio_tokens: int
    input_vision_tokens: int
    cached_tokens: int
    output_text_tokens: int
    output_audio_tokens: int
    def __init__(self, input_text_tokens: _Optional[int] = ..., input_audio_tokens: _Optional[int] = ..., input_vision_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_text_tokens: _Optional[int] = ..., output_audio_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue", "prefill", "decode", "speech", "vocoder", "total")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    SPEECH_FIELD_NUMBER: _ClassVar[int]
    VOCODER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    queue: _duration_pb2.Duration
    prefill: _duration_pb2.Duration
    decode: _duration_pb2.Duration
    speech: _duration_pb2.Duration
    vocoder: _duration_pb2.Duration
    total: _duration_pb2.Duration
    def __init__(self, queue: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., decode: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., speech: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., vocoder: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., total: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ItemError(_message.Message):
    __slots__ = ("reason", "message", "field", "retryable")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    field: str
    retryable: bool
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retryable: bool = ...) -> None: ...
