"""Settings of a session: a change is merged into them whole or not at all."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Struct

from ws_adapter.protocol.core.config import (
    DEFAULT_PROMPT,
    USUAL_UNIT_MS,
    Catalogue,
    ChatSetup,
    Mode,
    capabilities_of,
)
from ws_adapter.protocol.live.settings import BUILT_IN_VOICES
from ws_adapter.protocol.live.sound import PCM_24K, Format
from ws_adapter.protocol.media.reference_voice import NO_VOICE, Voice
from ws_adapter.protocol.realtime_ga.saved.session import SavedAbilities, SavedSettings
from ws_adapter.protocol.realtime_ga.wire import resources
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.fields import (
    AudioFields,
    AudioFormat,
    InputFields,
    OutputFields,
    PcmFormat,
    PcmuFormat,
    RetentionRatio,
    SemanticVad,
    ServerVad,
    SessionFields,
    TranscriptionConfig,
    TurnDetection,
    VoiceId,
)
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.realtime_ga.wire.resources import Modality
from ws_adapter.protocol.realtime_ga.wire.tools import read_choice, read_tools
from ws_adapter.protocol.wire.errors import invalid
from ws_adapter.protocol.wire.faults import shown

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SavedSettings)

OWN_VOICE: Final = "alloy"
"""The name of the model's own voice for a client that names none."""

BUILT_IN_TRANSCRIBERS: Final = ("gpt-", "whisper")
"""Prefixes of OpenAI's models, which stand for any transcribing model here."""

_DEFAULT_RETENTION: Final = 0.5
"""The default share of the conversation that remains when it is too long for the model."""

_SERVER_VAD: Final = ServerVad(0.5, 300, 500, True, True, None)
_SEMANTIC_VAD: Final = SemanticVad("auto", True, True)
_DETECTION: Final = "audio.input.turn_detection"

_INITIAL: Final = SessionFields(
    type="realtime",
    output_modalities=["audio"],
    instructions=DEFAULT_PROMPT,
    audio=AudioFields(
        InputFields(PcmFormat(24000), None, None, _SERVER_VAD), OutputFields(PcmFormat(24000), OWN_VOICE, 1.0)
    ),
    include=None,
    tools=[],
    tool_choice="auto",
    parallel_tool_calls=True,
    max_output_tokens="inf",
    truncation="auto",
    tracing=None,
)

S = TypeVar("S", bound=Struct)


def merged(old: S, new: S) -> S:
    """Return `old` with the values of `new`, merged field by field; an object of another type is replaced."""
    changes = {}
    for name, default in zip(new.__struct_fields__, _defaults(new), strict=True):
        given, kept = getattr(new, name), getattr(old, name)
        if given is UNSET or (given is None and default is None):
            continue
        is_same = isinstance(given, Struct) and type(given) is type(kept)
        changes[name] = merged(kept, given) if is_same else given
    return msgspec.structs.replace(old, **changes)


def _defaults(value: Struct) -> Sequence[Any]:
    return [field.default for field in msgspec.structs.fields(value)]


@dataclass(frozen=True)
class Abilities:
    """Abilities of a session's model."""

    speaks: bool = True
    hears: bool = True
    calls_tools: bool = False
    takes_turns: bool = True
    """Whether it is full duplex, and so can decide by itself when to speak."""
    chats: bool = True
    """Whether it answers on request; a model that does not do so takes all its turns by itself."""
    unit_ms: int = USUAL_UNIT_MS
    """The length of its units in ms, if it takes turns by itself."""
    yields: bool = False
    """Whether it supports barge-in by itself."""
    reads_prompts: bool = True
    """Whether instructions have an effect if it takes turns by itself."""

    @classmethod
    def of(cls, model: str, catalogue: Catalogue | None) -> "Abilities":
        """Return the abilities of a model; without a catalogue, the defaults."""
        if catalogue is None:
            return cls()
        known = catalogue.of(model)
        return cls(
            known.speaks,
            known.hears,
            known.calls_tools,
            Mode.AUDIO in known.modes,
            Mode.CHAT in known.modes,
            known.unit_ms,
            known.yields,
            known.reads_prompts,
        )


class Settings:
    """The settings of a session at one moment, for its client and for the worker."""

    def __init__(
        self,
        model: str,
        abilities: Abilities,
        fields: SessionFields = _INITIAL,
        unmet: frozenset[str] = frozenset(),
    ) -> None:
        """`unmet` are paths of requested values that were replaced, because the model lacks an ability."""
        self.model, self.abilities, self.fields, self.unmet = model, abilities, fields, unmet
        assert fields.audio is not None
        assert fields.audio.input is not None
        assert fields.audio.output is not None
        self.input, self.output = fields.audio.input, fields.audio.output
        self.input_format = format_of(self.input.format)
        self._saved = b""

    def save(self) -> bytes:
        """Return the state, serialised once."""
        if not self._saved:
            abilities = SavedAbilities(**asdict(self.abilities))
            saved = SavedSettings(self.model, abilities, self.fields, self.unmet)
            self._saved = _ENCODER.encode(saved)
        return self._saved

    @classmethod
    def restored(cls, state: bytes) -> "Settings":
        """Return settings from a saved state. Raises `ValueError`."""
        saved = _DECODER.decode(state)
        abilities = Abilities(**msgspec.structs.asdict(saved.abilities))
        if saved.fields.audio is None or not (saved.fields.audio.input and saved.fields.audio.output):
            raise ValueError("settings lack their audio")
        made = cls(saved.model, abilities, saved.fields, saved.unmet)
        made._saved = state
        return made

    @property
    def turn_detection(self) -> TurnDetection | None:
        """The turn detection; None if the client commits turns."""
        detection = self.input.turn_detection
        return detection if isinstance(detection, Struct) else None

    @property
    def modality(self) -> Modality:
        """The modality of answers; a model without a voice writes."""
        assert self.fields.output_modalities is not None
        return self.fields.output_modalities[0] if self.abilities.speaks else "text"

    @property
    def instructions(self) -> str:
        """The system prompt of the model."""
        return self.fields.instructions or ""

    @property
    def max_output_tokens(self) -> int | str:
        """The token limit of an answer, or `inf`."""
        assert self.fields.max_output_tokens is not None
        return self.fields.max_output_tokens

    @property
    def retention_ratio(self) -> float | None:
        """The share of the conversation that remains when it is too long for the model; None: all of
        it remains."""
        match self.fields.truncation:
            case RetentionRatio(retention_ratio=ratio):
                return ratio
            case "disabled":
                return None
        return _DEFAULT_RETENTION

    @property
    def transcribes(self) -> bool:
        """Whether the user's speech is transcribed."""
        return isinstance(self.input.transcription, TranscriptionConfig)

    @property
    def transcription_model(self) -> str:
        """The transcribing model, empty for any."""
        given = self.input.transcription
        name = (given.model or "") if isinstance(given, TranscriptionConfig) else ""
        return "" if name.startswith(BUILT_IN_TRANSCRIBERS) else name

    @property
    def voice_name(self) -> str:
        """The voice as the client knows it."""
        return name_of(self.output.voice) or OWN_VOICE

    @cached_property
    def setup(self) -> ChatSetup:
        """Return the setup of the session for a worker."""
        return ChatSetup(voice=voice_of(self.voice_name), model=self.model)

    def changed(
        self,
        new: SessionFields,
        catalogue: Catalogue | None,
        *,
        has_spoken: bool,
        has_input: bool,
        can_take_turns: bool = True,
    ) -> "Settings":
        """Return the settings with a change. Raises `Refusal` if any part of it is invalid.

        `has_spoken`: the model's voice was used. `has_input`: audio or items have come. `can_take_turns`: the
        conversation so far lets the model take its turns by itself.
        """
        if new.type != "realtime":
            message = (
                "session.type: the type of a session cannot change; connect again with ?intent=transcription"
            )
            raise Denied(Code.INVALID_SESSION_TYPE, message, "session.type")
        if new.model is not None and new.model != self.model:
            message = f"expected {shown(self.model)}, the model of the URL, got {shown(new.model)}"
            raise invalid("session.model", message)
        made = self._merged(msgspec.structs.replace(new, model=None), can_take_turns)
        made._check(new, catalogue)
        if has_spoken and made.voice_name != self.voice_name:
            message = "session.audio.output.voice: the model has spoken: it keeps its voice"
            raise Denied(Code.CANNOT_UPDATE_VOICE, message, "session.audio.output.voice")
        if has_input and made.input_format != self.input_format:
            raise invalid(
                "session.audio.input.format", "the format cannot change after the first audio or item"
            )
        return made

    def _merged(self, new: SessionFields, can_take_turns: bool) -> "Settings":
        """Return the settings with a change, limited to the model's abilities.

        A model that calls no tools gets none. The server detects turns for a model that cannot take them by
        itself. A model that holds no chats always takes them by itself.
        """
        fields = merged(self.fields, _completed(new, self))
        unmet = set(self.unmet)
        if new.tools is not None:
            unmet.discard("tools")
        if not self.abilities.calls_tools:
            unmet |= {"tools"} if fields.tools else set()
            fields = msgspec.structs.replace(fields, tools=[])
        if _gives_detection(new):
            unmet.discard(_DETECTION)
        made = Settings(self.model, self.abilities, fields, frozenset(unmet))
        wanted = made.turn_detection
        if not self.abilities.chats:
            own = own_turns(wanted)
            unmet |= {_DETECTION} if _gives_detection(new) and own != wanted else set()
            return Settings(self.model, self.abilities, fields, frozenset(unmet))._with_detection(own)
        if not isinstance(wanted, SemanticVad):
            return made
        is_possible = self.abilities.takes_turns and can_take_turns
        if is_possible and wanted.create_response and not fields.tools:
            return made
        return made._with_detection(vad_of(wanted))

    def _with_detection(self, detection: TurnDetection) -> "Settings":
        replace = msgspec.structs.replace
        input = replace(self.input, turn_detection=detection)
        assert self.fields.audio is not None
        audio = replace(self.fields.audio, input=input)
        return Settings(self.model, self.abilities, replace(self.fields, audio=audio), self.unmet)

    def _check(self, new: SessionFields, catalogue: Catalogue | None) -> None:
        if new.prompt is not None:
            raise invalid("session.prompt", "expected null: no prompts are stored here")
        if self.output.speed != 1.0:
            raise invalid("session.audio.output.speed", f"expected 1, got {self.output.speed:g}")
        check_voice(self.output.voice, self.model, catalogue, "session.audio.output.voice")
        calls_tools = self.abilities.calls_tools
        given = self.fields.tools if calls_tools else new.tools
        tools = read_tools(given or (), "session.tools", calls_tools=calls_tools)
        if new.tool_choice is not None:
            read_choice(new.tool_choice, tools, "session.tool_choice", calls_tools=calls_tools)

    def resource(self, session_id: str, expires_at: int) -> resources.SessionResource:
        """Return the session as its client sees it."""
        fields = self.fields
        assert fields.parallel_tool_calls is not None
        return resources.SessionResource(
            id=session_id,
            model=self.model,
            expires_at=expires_at,
            output_modalities=[self.modality],
            instructions=self.instructions,
            audio=resources.AudioResource(
                input=resources.InputResource(
                    format=told_format(self.input_format),
                    transcription=_as_given(self.input.transcription),
                    noise_reduction=_as_given(self.input.noise_reduction),
                    turn_detection=_told_detection(self.turn_detection),
                ),
                output=resources.OutputResource(
                    format=told_format(format_of(self.output.format)), voice=self.voice_name, speed=1.0
                ),
            ),
            include=_as_given(fields.include),
            tools=_as_given(fields.tools),
            tool_choice=_as_given(fields.tool_choice),
            parallel_tool_calls=fields.parallel_tool_calls,
            max_output_tokens=_as_given(fields.max_output_tokens),
            truncation=_as_given(fields.truncation),
            tracing=_as_given(fields.tracing),
            reasoning=_as_given(fields.reasoning),
            unsupported_fields=self._unsupported or UNSET,
        )

    @property
    def _unsupported(self) -> list[str]:
        """Paths of accepted fields without effect."""
        told = _as_given(self.input.transcription) or {}
        paths = [f"audio.input.transcription.{name}" for name in told if name != "model"]
        if isinstance(self.input.noise_reduction, Struct):
            paths.append("audio.input.noise_reduction")
        given = ("include", "tracing", "reasoning")
        paths += [name for name in given if _as_given(getattr(self.fields, name))]
        if not self.abilities.reads_prompts and self.instructions not in ("", DEFAULT_PROMPT):
            paths.append("instructions")
        return [*paths, *sorted(self.unmet)]


def initial(model: str, given: SessionFields | None, catalogue: Catalogue | None) -> Settings:
    """Return the initial settings of a session with this model; `given` are those that differ from the
    defaults; their `model` is ignored.

    Raises `Refusal` if any of them is invalid.
    """
    abilities = Abilities.of(model, catalogue)
    usual = Settings(model, abilities)
    if not abilities.chats:
        usual = usual._with_detection(own_turns(usual.turn_detection))
    if given is None:
        return usual
    fields = msgspec.structs.replace(given, model=None)
    return usual.changed(fields, catalogue, has_spoken=False, has_input=False)


def _completed(new: SessionFields, old: Settings) -> SessionFields:
    """Return a change; a turn detection that is switched on or changes its type gets its defaults."""
    if new.audio is None or new.audio.input is None:
        return new
    given = new.audio.input.turn_detection
    if not isinstance(given, Struct) or type(given) is type(old.turn_detection):
        return new
    whole = merged(_SERVER_VAD, given) if isinstance(given, ServerVad) else merged(_SEMANTIC_VAD, given)
    replace = msgspec.structs.replace
    return replace(new, audio=replace(new.audio, input=replace(new.audio.input, turn_detection=whole)))


def _gives_detection(new: SessionFields) -> bool:
    """Return whether a change sets the turn detection, or switches it off."""
    given = new.audio.input.turn_detection if new.audio is not None and new.audio.input is not None else UNSET
    return given is not UNSET


def own_turns(given: TurnDetection | None) -> SemanticVad:
    """Return the turn detection of a model that holds no chats: only interruptions can be configured."""
    interrupts = given is None or given.interrupt_response is not False
    kept = given if isinstance(given, SemanticVad) else _SEMANTIC_VAD
    return msgspec.structs.replace(kept, create_response=True, interrupt_response=interrupts)


def vad_of(given: SemanticVad) -> ServerVad:
    """Return `server_vad` in place of the model's own turn detection."""
    return msgspec.structs.replace(
        _SERVER_VAD, create_response=given.create_response, interrupt_response=given.interrupt_response
    )


def format_of(given: AudioFormat | None) -> Format:
    """Return the format in a client's fields."""
    match given:
        case None | PcmFormat():
            return PCM_24K
        case PcmuFormat():
            return Format("audio/pcmu", 8000)
    return Format("audio/pcma", 8000)


def told_format(format: Format) -> resources.Format:
    """Return a format as clients see it."""
    return resources.Format(format.encoding, 24000 if format == PCM_24K else None)


def name_of(voice: str | VoiceId | None) -> str:
    """Return the name of a voice, empty for none."""
    return (voice.id if isinstance(voice, VoiceId) else voice) or ""


def check_voice(voice: str | VoiceId | None, model: str, catalogue: Catalogue | None, param: str) -> None:
    """Raise `Refusal` for a voice that the model does not have. If its voices are unknown, the worker
    validates the name."""
    name = name_of(voice)
    voices = capabilities_of(model, catalogue).voices
    if not name or name in BUILT_IN_VOICES or voices is None or name in voices:
        return
    served = " or ".join(sorted(voices)) or "one of OpenAI's names"
    raise invalid(param, f"expected {served}, got {shown(name)}")


def voice_of(name: str) -> Voice:
    """Return the voice for the worker: OpenAI's names stand for the model's own voice, which needs none."""
    return NO_VOICE if not name or name in BUILT_IN_VOICES else Voice(voice_id=name)


def _told_detection(
    given: TurnDetection | None,
) -> resources.ServerVadResource | resources.SemanticVadResource | None:
    match given:
        case ServerVad():
            return msgspec.convert(msgspec.to_builtins(given), resources.ServerVadResource)
        case SemanticVad():
            return msgspec.convert(msgspec.to_builtins(given), resources.SemanticVadResource)
    return None


def _as_given(value: Any) -> Any:
    return None if value is UNSET else msgspec.to_builtins(value)
