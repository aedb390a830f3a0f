"""The settings of a `session.start`, checked whole."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from ws_adapter.protocol.core.config import (
    DEFAULT_PROMPT,
    Catalogue,
    DuplexConfig,
    Mode,
    SessionSetup,
    capabilities_of,
)
from ws_adapter.protocol.live.events import (
    AssistantMessage,
    AudioConfig,
    DelegationConfig,
    DeveloperMessage,
    HistoryMessage,
    InputText,
    OutputText,
    PcmFormat,
    PcmuFormat,
    ResolvedAudio,
    ResolvedDelegation,
    ResolvedFormat,
    ResolvedOutput,
    SessionConfig,
    SessionResource,
    VoiceId,
)
from ws_adapter.protocol.live.sound import PCM_24K, Format
from ws_adapter.protocol.media.reference_voice import NO_VOICE, Voice
from ws_adapter.protocol.wire.errors import ErrorCode, Refusal, invalid, missing
from ws_adapter.protocol.wire.events import MAX_PROMPT_CHARACTERS
from ws_adapter.protocol.wire.faults import shown

BUILT_IN_VOICES: Final = frozenset(
    "alloy ash ballad beacon bossa cedar cinder coral delta echo gleam marin meridian quartz ripple sage "
    "shida shimmer stone tempo verse vesper willow".split()
)
"""OpenAI's voices, which no worker has; clients name one by default."""


class UnknownModel(Refusal):
    """A model that is not served."""


class Unsupported(Refusal):
    """An unsupported feature of the protocol; `reason` is for the client."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_PAYLOAD, f"{param}: not supported here: {reason}", param)


@dataclass(frozen=True)
class Settings:
    """The settings of a session, for the worker and for its client."""

    setup: SessionSetup
    format: Format
    delegation: ResolvedDelegation | None
    safety_identifier: str | None
    replaced_voice: str = ""
    """The requested voice of OpenAI that the model's own voice replaces."""
    is_instructed: bool = False
    """Whether the client gave instructions or earlier messages."""

    def resource(self, session_id: str, expires_at: int) -> SessionResource:
        """Return the session as its client sees it."""
        voice = self.setup.voice.voice_id
        return SessionResource(
            id=session_id,
            expires_at=expires_at,
            status="active",
            model=self.setup.model,
            instructions=self.setup.system_prompt,
            audio=ResolvedAudio(
                ResolvedFormat(self.format.encoding, self.format.rate_hz), ResolvedOutput(voice)
            ),
            delegation=self.delegation,
            safety_identifier=self.safety_identifier,
        )


def read_settings(session: SessionConfig | None, catalogue: Catalogue | None) -> Settings:
    """Return the settings of a session. Raises `Refusal` if any of them is invalid.

    Without a catalogue (while no worker is known), the worker validates model and voice.
    """
    if session is None:
        raise missing("session", "an object")
    model = _model(session.model, catalogue)
    _refuse_unserved(session)
    audio = session.audio or AudioConfig()
    voice, replaced = _voice(audio, capabilities_of(model, catalogue).voices)
    setup = SessionSetup(
        mode=Mode.AUDIO, system_prompt=_prompt(session), duplex=DuplexConfig(), voice=voice, model=model
    )
    return Settings(
        setup,
        _format(audio),
        delegation(session.delegation),
        session.safety_identifier,
        replaced,
        is_instructed=bool((session.instructions or "").strip() or session.input),
    )


def delegation(given: DelegationConfig | None) -> ResolvedDelegation | None:
    """Return the delegation settings for the client; no model here delegates. Raises `Refusal`."""
    if given is None:
        return None
    if given.type is None:
        raise missing("session.delegation.type", '"client" or "responses"')
    return ResolvedDelegation(given.type, given.acknowledgement_delay_ms, given.responses)


def refuse_triggers(triggers: Sequence[object] | None) -> None:
    """Raise `Refusal` if there are any triggers."""
    if triggers:
        raise Unsupported("session.triggers", "no service makes decisions for the model")


def _model(model: str | None, catalogue: Catalogue | None) -> str:
    if not model:
        raise missing("session.model", "a model of /v1/models")
    if catalogue is not None and model not in catalogue.models:
        text = f"session.model: expected {catalogue.choices}, got {shown(model)}"
        raise UnknownModel(ErrorCode.INVALID_PAYLOAD, text, "session.model")
    return model


def _refuse_unserved(session: SessionConfig) -> None:
    refuse_triggers(session.triggers)
    if session.store:
        raise Unsupported("session.store", "sessions cannot be forked; leave it out")
    if session.client is not None:
        raise Unsupported("session.client", "it belongs to WebRTC; leave it out")


def _format(audio: AudioConfig) -> Format:
    given = audio.format
    if given is None:
        return PCM_24K
    if given.rate is None:
        raise missing("session.audio.format.rate", "the sample rate")
    match given:
        case PcmFormat():
            return Format("audio/pcm", given.rate)
        case PcmuFormat():
            return Format("audio/pcmu", given.rate)
    return Format("audio/pcma", given.rate)


def _voice(audio: AudioConfig, registered: Set[str] | None) -> tuple[Voice, str]:
    """Return the voice, and the name of an OpenAI voice that it replaces, empty if it replaces none."""
    given = audio.output.voice if audio.output is not None else None
    name, param = given, "session.audio.output.voice"
    if isinstance(given, VoiceId):
        name, param = given.id, f"{param}.id"
        if not name:
            raise missing(param, "the id of a voice")
    if not isinstance(name, str) or not name:
        return NO_VOICE, ""
    if registered is not None and name in registered:
        return Voice(voice_id=name), ""
    if name in BUILT_IN_VOICES and not isinstance(given, VoiceId):
        return NO_VOICE, name
    if registered is None:
        return Voice(voice_id=name), ""
    served = " or ".join(sorted(registered)) or "no voice by name"
    raise invalid(param, f"expected {served}, got {shown(name)}")


def _prompt(session: SessionConfig) -> str:
    """Return the prompt: instructions, then earlier messages as text, since a duplex session has no turns."""
    prompt = session.instructions if session.instructions and session.instructions.strip() else DEFAULT_PROMPT
    said = [_line(message, i) for i, message in enumerate(session.input or ())]
    if said:
        prompt = "\n".join([prompt, "", "What was said before:", *said])
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        what = f"expected at most {MAX_PROMPT_CHARACTERS} characters together with the instructions"
        raise invalid("session.input", f"{what}, got {len(prompt)}")
    return prompt


def _line(message: HistoryMessage, index: int) -> str:
    path = f"session.input[{index}].content"
    content: Sequence[InputText | OutputText] = message.content or ()
    if len(content) != 1:
        raise invalid(path, f"expected exactly one part, got {len(content)}")
    part = content[0]
    if part.text is None:
        raise missing(f"{path}[0].text", "a text")
    match message:
        case DeveloperMessage():
            return part.text
        case AssistantMessage():
            return f"Assistant: {part.text}"
    return f"User: {part.text}"
