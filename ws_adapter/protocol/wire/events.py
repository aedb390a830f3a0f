"""Event structs that several dialects share: fields, figures, the queue, errors.

Structs are the single definition of each event: decoding, validation, error texts and the published schemas
(`ws_adapter.schemas`, with docstrings as descriptions) come from them. `null` for an optional field of the
client equals its absence; unknown fields are ignored.

Two class variables list the fields that an event must give. A given field is neither null, false nor empty; a
text may be empty if its type allows that. `REQUIRED`: all of these fields. Those of a client are optional in
Python, so that the adapter words the error for a missing one. `ANY_OF`: at least one of these fields; `a.b`
is the field `b` of the object in `a`, and counts only if the event itself has no `b`.
"""

from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct

from ws_adapter.protocol.wire.errors import ErrorCode

MAX_EVENT_ID_CHARACTERS: Final = 512
"""The longest id that a client may give an event."""

MAX_PROMPT_CHARACTERS = 32_768
MAX_INPUT_ID_CHARACTERS = 128

MAX_FRAMES: Final = 4
"""The most pictures in one append, and in one unit."""

Prompt: TypeAlias = Annotated[str, Meta(max_length=MAX_PROMPT_CHARACTERS, description="The system prompt.")]
Slices: TypeAlias = Annotated[
    int, Meta(ge=1, le=9, description="Into how many slices a picture may be cut; 1 by default.")
]
InputId: TypeAlias = Annotated[
    str,
    Meta(
        max_length=MAX_INPUT_ID_CHARACTERS,
        description="The client's id for this append, repeated in every answer to it; by default a new one.",
    ),
]
AudioEncoding: TypeAlias = Annotated[
    Literal["f32", "pcm16"],
    Meta(description="Samples: little-endian float32 in [-1, 1], the default, or little-endian int16."),
]
InputRate: TypeAlias = Annotated[Literal[16000], Meta(description="Hz of the audio sent.")]

_BASE64: Final = {"contentEncoding": "base64"}

InputAudio: TypeAlias = Annotated[
    str,
    Meta(description="Base64 of raw mono PCM at 16 kHz, at most 60 s of it.", extra_json_schema=_BASE64),
]
VoiceAudio: TypeAlias = Annotated[
    str,
    Meta(
        description="Base64 of a WAV file or of raw float32 mono at 16 kHz, 0.5 s to 30 s, with or without "
        "`data:...;base64,` before it.",
        extra_json_schema=_BASE64,
    ),
]
PictureText: TypeAlias = Annotated[
    str,
    Meta(
        description="Base64 of a JPEG, PNG or WebP file of at most 1 MiB and 4 megapixels.",
        extra_json_schema=_BASE64,
    ),
]
Settings: TypeAlias = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/$defs/ConfigFields"})]
"""An undecoded `config` object, so that its unknown keys can be named; `config.read_config` validates it."""


TraceContext: TypeAlias = Annotated[
    Any,
    Meta(
        description="The trace that the client works in, as the headers of W3C Trace Context have it. The "
        "session's spans link to it. An invalid one is ignored.",
        extra_json_schema={
            "examples": [{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}]
        },
    ),
]


# ----------------------------------------------------------------------------------------------- client


class VoiceFields(Struct, frozen=True):
    """The voice of the model, in its prompt and its speech; audio takes precedence over a voice id."""

    ref_audio_base64: VoiceAudio | None = None
    ref_audio: VoiceAudio | None = None
    """Alias of `ref_audio_base64`."""
    tts_ref_audio_base64: VoiceAudio | None = None
    """The reference voice of the speech, in the same form; by default `ref_audio_base64`."""
    tts_ref_audio: VoiceAudio | None = None
    """Alias of `tts_ref_audio_base64`."""
    ref_audio_path: str | None = None
    """Id of a voice registered with the server; a leading directory and a file extension are removed."""


class PictureObject(Struct, frozen=True):
    """The long spelling of a picture."""

    data: PictureText | None = None
    base64: PictureText | None = None
    """Alias of `data`."""

    ANY_OF: ClassVar = ("data", "base64")


Picture: TypeAlias = PictureText | PictureObject
Pictures: TypeAlias = Annotated[
    list[Annotated[PictureText, Meta(extra_json_schema={"minLength": 1})] | PictureObject],
    Meta(
        description="Pictures during the audio, oldest first. Ignored in sessions without video.",
        extra_json_schema={"maxItems": MAX_FRAMES},
    ),
]


# ----------------------------------------------------------------------------------------------- server

Count: TypeAlias = Annotated[int, Meta(ge=0)]
OutputAudio: TypeAlias = Annotated[
    bytes, Meta(description="Base64 of raw little-endian float32, mono, 24 kHz, within [-1, 1].")
]
"""Output audio, which `codec.encode` writes as base64; an event has at most one such field."""

Position: TypeAlias = Annotated[int, Meta(ge=1)]
IsGuess: TypeAlias = Annotated[
    bool,
    Meta(description="Whether the wait is only a guess, because too few sessions have ended so far."),
]


class InputTokenDetails(Struct, frozen=True):
    """Input tokens by kind."""

    text_tokens: Count
    audio_tokens: Count
    vision_tokens: Count
    cached_tokens: Count
    """Tokens whose context was found in the prefix cache instead of being computed again."""


class OutputTokenDetails(Struct, frozen=True):
    """Output tokens by kind."""

    text_tokens: Count
    audio_tokens: Count


class TokenUsage(Struct, frozen=True):
    """Tokens consumed and produced, of a unit or of the session so far."""

    total_tokens: Count
    input_tokens: Count
    output_tokens: Count
    input_token_details: InputTokenDetails
    output_token_details: OutputTokenDetails


NO_TOKENS: Final = TokenUsage(0, 0, 0, InputTokenDetails(0, 0, 0, 0), OutputTokenDetails(0, 0))


class Metrics(Struct, omit_defaults=True):
    """Figures of an event; unknown ones are absent. Times are in milliseconds, lengths in tokens."""

    kv_cache_length: Count | None = None
    """Tokens in the context now."""
    n_past_max: Count | None = None
    """The most tokens that the context can hold."""
    prompt_length: Count | None = None
    """Tokens of the settings: system prompt and voice."""
    queue_ms: float | None = None
    prefill_ms: float | None = None
    generate_ms: float | None = None
    cost_llm_ms: float | None = None
    cost_tts_ms: float | None = None
    cost_token2wav_ms: float | None = None
    wall_clock_ms: float | None = None
    """The time from the completion of the unit in the adapter until its answer was sent."""
    n_tokens: Count | None = None
    n_tts_tokens: Count | None = None
    vision_slices: Count | None = None
    vision_tokens: Count | None = None
    padded_samples: Count | None = None
    """Zeros added to complete the unit."""
    clipped_samples: Count | None = None
    """Samples that had to be clipped to [-1, 1]."""
    dropped: bool | None = None
    """The unit came too late and was not given to the model."""
    dropped_total: Count | None = None
    """Dropped units of the session so far."""
    ignored_frames: Count | None = None
    """Pictures that were ignored, because the session has no video."""
    injected_silence: bool | None = None
    """The server added this unit of silence to give the model time to answer."""


class Fault(NamedTuple):
    """An error that an event reports; `is_servers`: the server caused it, not the client."""

    code: str
    is_servers: bool


class ServerEvent(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all events of the server. Optional fields without a value are omitted.

    An event has at most one field of bytes: float32 little-endian mono at 24 kHz, base64 on the wire.
    """

    tells_trouble: ClassVar = False
    """Whether the event reports an error or an end; only such events have a `fault` or use `identify`."""

    tells_time: ClassVar = False
    """Whether the event has a field `server_send_ts`, the time of sending in Unix seconds."""

    figures: ClassVar[str | None] = None
    """The field that contains `wall_clock_ms`; empty if the event itself contains it, None without it."""

    pauses: ClassVar[bool | None] = None
    """True if a pause of the client begins with the event, False if one ends."""

    offers_resume: ClassVar = False
    """Whether the event opens a session, and has a field `resume`."""

    @property
    def fault(self) -> Fault | None:
        """The error that the event reports, if any."""
        return None

    def offer(self, resume: "ResumeOffer") -> None:
        """Set the field `resume`, in events with `offers_resume`."""
        given: Any = self
        given.resume = resume

    def identify(self, trace_id: str) -> None:
        """Set the trace id of the session, by which the operator of the server finds it."""


class ResumeOffer(Struct, frozen=True):
    """The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the
    number of the last event that came, within `window_s` seconds of the loss."""

    token: str
    """Valid once; `session.resumed` has the next token."""
    window_s: float


ResumeField: TypeAlias = Annotated[
    ResumeOffer | None,
    Meta(description="The offer to resume the session after a lost connection; absent if resuming is off."),
]


class SessionResumed(ServerEvent, kw_only=True, tag="session.resumed"):
    """The first event of a resumed connection, before all missed events. It has no number itself."""

    resume: ResumeOffer
    last_event: Count
    """The `last_event` that the client sent; the next event has the number after it."""
    received: Count
    """The number of messages of the client that the session received; later ones were lost."""


class SessionMoved(ServerEvent, kw_only=True, tag="session.moved"):
    """Another worker continues the session of a lost or draining worker. No input or output is lost."""

    pause_s: float
    """Seconds in which no unit was answered."""


class SessionQueued(ServerEvent, kw_only=True, tag="session.queued"):
    """No slot was free at once. `position` counts from 1 over all kinds of session."""

    position: Position
    estimated_wait_s: float
    estimate_is_guess: IsGuess
    ticket_id: str
    queue_length: Count


class SessionQueueUpdate(SessionQueued, kw_only=True, tag="session.queue_update"):
    """The session is still waiting; sent every 3 s."""


class SessionQueueDone(ServerEvent, kw_only=True, tag="session.queue_done"):
    """A slot is assigned: the session may be configured."""


class ErrorBody(Struct, omit_defaults=True):
    """An error."""

    code: ErrorCode
    message: str
    """For people: names the field, the expected and the actual value."""
    type: Literal["client_error", "server_error"]
    """The side that caused the error."""
    param: str | None = None
    """Path of the field at fault, from the root of the event."""
    input_id: str | None = None
    """The append at fault."""
    trace_id: str | None = None
    """The id by which the operator of the server finds the session."""


class ErrorEvent(ServerEvent, kw_only=True, tag="error"):
    """An event was refused, a unit failed, or the session ends."""

    error: ErrorBody

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        return Fault(self.error.code, self.error.code.is_servers)

    def identify(self, trace_id: str) -> None:
        self.error.trace_id = trace_id
