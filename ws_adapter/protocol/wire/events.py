"""Event structs that several dialects share: fields, figures, the queue, errors.

Structs are the single definition of each event: decoding, validation, its messages and the published schemas
(`ws_adapter.schemas`, for which docstrings are descriptions) come from them. `null` for an optional field of
the client equals its absence; unknown fields are ignored.

What a type cannot say stands beside the fields, as names of fields that are to be given, which is: neither
null, nor false, nor empty, unless its type says how short a text may be. `REQUIRED`: all of them; a client's
are optional in Python so that a missing one can be told in our words. `ANY_OF`: at least one of them; `a.b`
is field `b` of the object in `a`, which counts where there is no `b` beside `a`.
"""

from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct

from ws_adapter.protocol.wire.errors import ErrorCode

MAX_EVENT_ID_CHARACTERS: Final = 512
"""Of what a client calls an event."""

MAX_PROMPT_CHARACTERS = 32_768
MAX_INPUT_ID_CHARACTERS = 128

MAX_FRAMES: Final = 4
"""Pictures in one append, and in one unit."""

Prompt: TypeAlias = Annotated[str, Meta(max_length=MAX_PROMPT_CHARACTERS, description="The system prompt.")]
Slices: TypeAlias = Annotated[
    int, Meta(ge=1, le=9, description="Into how many slices a picture may be cut; 1 by default.")
]
InputId: TypeAlias = Annotated[
    str,
    Meta(
        max_length=MAX_INPUT_ID_CHARACTERS,
        description="The client's name for this append, on every answer to it. One is made up without it.",
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
"""A `config` object as it came, so that its unknown keys can be named; `config.read_config` checks it."""


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
    """The voice that the model hears as its own and speaks with; audio wins over the id of a voice."""

    ref_audio_base64: VoiceAudio | None = None
    ref_audio: VoiceAudio | None = None
    """Alias of `ref_audio_base64`."""
    tts_ref_audio_base64: VoiceAudio | None = None
    """The reference voice of the speech, in the same form; by default `ref_audio_base64`."""
    tts_ref_audio: VoiceAudio | None = None
    """Alias of `tts_ref_audio_base64`."""
    ref_audio_path: str | None = None
    """Id of a voice registered with the server; a directory before it and an ending are cut off."""


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
"""The encoder writes it behind everything else: it stays the last field of its event."""

Position: TypeAlias = Annotated[int, Meta(ge=1)]
IsGuess: TypeAlias = Annotated[
    bool,
    Meta(description="Whether too few sessions have ended for more than a guess at the wait."),
]


class InputTokenDetails(Struct, frozen=True):
    """Input tokens by kind."""

    text_tokens: Count
    audio_tokens: Count
    vision_tokens: Count
    cached_tokens: Count
    """Context that was found in the cache instead of being computed again."""


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
    """Figures beside an event; what is not known is absent. Times in milliseconds, lengths in tokens."""

    kv_cache_length: Count | None = None
    """Tokens of context now held."""
    n_past_max: Count | None = None
    """The most that the model can hold."""
    prompt_length: Count | None = None
    """Tokens of the settings: system prompt and voice."""
    queue_ms: float | None = None
    prefill_ms: float | None = None
    generate_ms: float | None = None
    cost_llm_ms: float | None = None
    cost_tts_ms: float | None = None
    cost_token2wav_ms: float | None = None
    wall_clock_ms: float | None = None
    """From the complete unit in the adapter until its answer was sent."""
    n_tokens: Count | None = None
    n_tts_tokens: Count | None = None
    vision_slices: Count | None = None
    vision_tokens: Count | None = None
    padded_samples: Count | None = None
    """Zeros added to complete the unit."""
    clipped_samples: Count | None = None
    """Samples that had to be clipped to [-1, 1]."""
    dropped: bool | None = None
    """The unit came too late and was never heard."""
    dropped_total: Count | None = None
    """Such units so far."""
    ignored_frames: Count | None = None
    """Pictures not looked at: a session without video."""
    injected_silence: bool | None = None
    """The server made up this unit to give the model time to answer."""


class Fault(NamedTuple):
    """An error that an event tells; `is_servers`: the client is not to blame."""

    code: str
    is_servers: bool


class ServerEvent(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of everything the server sends. Optional fields without a value are omitted.

    An event has at most one field of bytes: float32 little-endian mono at 24 kHz, base64 on the wire.
    """

    tells_trouble: ClassVar = False
    """Whether it tells an error or an end: then there may be a `fault`, and `identify` may have a place."""

    tells_time: ClassVar = False
    """Whether it has the moment of sending, `server_send_ts` in Unix seconds."""

    figures: ClassVar[str | None] = None
    """The field that has the time its answer took, `wall_clock_ms`; empty for the event itself."""

    pauses: ClassVar[bool | None] = None
    """Whether a break of the client begins with it, or ends."""

    offers_resume: ClassVar = False
    """Whether it opens a session, and has a field `resume`."""

    @property
    def fault(self) -> Fault | None:
        """The error that it tells."""
        return None

    def offer(self, resume: "ResumeOffer") -> None:
        """Tell how to get the session back, where `offers_resume`."""
        given: Any = self
        given.resume = resume

    def identify(self, trace_id: str) -> None:
        """Name the trace of the session, by which its operator finds it."""


class ResumeOffer(Struct, frozen=True):
    """The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the
    number of the last event that came, within `window_s` seconds of the loss."""

    token: str
    """Good for one time; `session.resumed` brings the next one."""
    window_s: float


ResumeField: TypeAlias = Annotated[
    ResumeOffer | None,
    Meta(description="How to get the session back after a lost connection; absent where that is off."),
]


class SessionResumed(ServerEvent, kw_only=True, tag="session.resumed"):
    """The first event of a connection that goes on with a session, before all events that were missed. It has
    no number itself."""

    resume: ResumeOffer
    last_event: Count
    """The number of the event before the next one: what the client said it got last."""
    received: Count
    """Messages of the client that the session took; those after them were lost."""


class SessionMoved(ServerEvent, kw_only=True, tag="session.moved"):
    """The worker of the session was lost or leaves, and another one goes on. No input and no word is lost."""

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
    """Still waiting; sent every 3 s."""


class SessionQueueDone(ServerEvent, kw_only=True, tag="session.queue_done"):
    """A slot is assigned: the session may be configured."""


class ErrorBody(Struct, omit_defaults=True):
    """An error."""

    code: ErrorCode
    message: str
    """For people: names the field, what was expected and what came."""
    type: Literal["client_error", "server_error"]
    """The side that caused the error."""
    param: str | None = None
    """Path of the field at fault, from the root of the event."""
    input_id: str | None = None
    """The append at fault."""
    trace_id: str | None = None
    """By which the operator of the server finds the session."""


class ErrorEvent(ServerEvent, kw_only=True, tag="error"):
    """An event was refused, a unit failed, or the session ends."""

    error: ErrorBody

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        return Fault(self.error.code, self.error.code.is_servers)

    def identify(self, trace_id: str) -> None:
        self.error.trace_id = trace_id
