"""Settings of a transcription session: a change is merged into them whole or not at all."""

from typing import Final

import msgspec
from msgspec import UNSET, Struct

from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.realtime_ga.settings import BUILT_IN_TRANSCRIBERS, format_of, merged, told_format
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.fields import (
    InputFields,
    PcmFormat,
    SemanticVad,
    ServerVad,
    TranscriptionConfig,
)
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.transcription_ga.events import (
    AudioResource,
    InputResource,
    SessionFields,
    SessionResource,
    VadResource,
)
from ws_adapter.protocol.wire.errors import invalid
from ws_adapter.protocol.wire.faults import shown

_SERVER_VAD: Final = ServerVad(0.5, 300, 500, True, True, None)
_INITIAL: Final = InputFields(PcmFormat(24000), None, None, _SERVER_VAD)


class SavedSettings(Struct, frozen=True):
    """The state of `Settings`."""

    fields: InputFields
    include: list[str] | None
    worker_model: str


class Settings:
    """The settings of a session at one moment; `worker_model` is the model for its worker, empty for any."""

    def __init__(
        self, fields: InputFields = _INITIAL, include: list[str] | None = None, worker_model: str = ""
    ) -> None:
        self._fields = fields
        self._include = include
        self.worker_model = worker_model
        self.format = format_of(fields.format)

    def save(self) -> SavedSettings:
        """Return the state."""
        return SavedSettings(self._fields, self._include, self.worker_model)

    @classmethod
    def restored(cls, saved: SavedSettings) -> "Settings":
        """Return settings from a saved state."""
        return cls(saved.fields, saved.include, saved.worker_model)

    @classmethod
    def initial(cls, given: SessionFields | None, catalogue: Catalogue | None) -> "Settings":
        """Return the initial settings; `given` are those that differ from the defaults. Raises `Refusal`
        if they are invalid."""
        return cls().changed(given, catalogue, has_input=False) if given is not None else cls()

    @property
    def vad(self) -> ServerVad | None:
        """The VAD settings; None if the client commits turns."""
        detection = self._fields.turn_detection
        return detection if isinstance(detection, ServerVad) else None

    @property
    def transcribes(self) -> bool:
        """Whether speech is transcribed."""
        return isinstance(self._fields.transcription, TranscriptionConfig)

    def changed(self, new: SessionFields, catalogue: Catalogue | None, *, has_input: bool) -> "Settings":
        """Return the settings with a change. Raises `Refusal` if any part of it is invalid."""
        if new.type != "transcription":
            message = "session.type: the type of a session cannot change; connect again with ?model="
            raise Denied(Code.INVALID_SESSION_TYPE, message, "session.type")
        given = new.audio.input if new.audio is not None and new.audio.input is not None else InputFields()
        if isinstance(given.turn_detection, SemanticVad):
            message = "expected server_vad or null: no model detects the end of speech here"
            raise invalid("session.audio.input.turn_detection.type", message)
        if isinstance(given.turn_detection, ServerVad) and self.vad is None:
            given = msgspec.structs.replace(given, turn_detection=merged(_SERVER_VAD, given.turn_detection))
        fields = merged(self._fields, given)
        if has_input and format_of(fields.format) != self.format:
            raise invalid("session.audio.input.format", "the format cannot change after the first audio")
        include = self._include
        if not isinstance(new.include, msgspec.UnsetType):
            include = list(new.include) if new.include is not None else None
        return Settings(fields, include, _worker_model(fields, catalogue))

    def resource(self, session_id: str, expires_at: int) -> SessionResource:
        """Return the session as its client sees it."""
        fields, vad = self._fields, self.vad
        told_vad = None
        if vad is not None:
            assert vad.threshold is not None
            assert vad.prefix_padding_ms is not None
            assert vad.silence_duration_ms is not None
            told_vad = VadResource(
                threshold=vad.threshold,
                prefix_padding_ms=vad.prefix_padding_ms,
                silence_duration_ms=vad.silence_duration_ms,
            )
        return SessionResource(
            id=session_id,
            expires_at=expires_at,
            audio=AudioResource(
                input=InputResource(
                    format=told_format(self.format),
                    transcription=_as_given(fields.transcription),
                    noise_reduction=_as_given(fields.noise_reduction),
                    turn_detection=told_vad,
                )
            ),
            include=self._include,
            unsupported_fields=self._unsupported or UNSET,
        )

    @property
    def _unsupported(self) -> list[str]:
        """Paths of accepted fields without effect: no model here gets them."""
        told = _as_given(self._fields.transcription) or {}
        paths = [f"audio.input.transcription.{name}" for name in told if name != "model"]
        if _as_given(self._fields.noise_reduction) is not None:
            paths.append("audio.input.noise_reduction")
        if self.vad is not None and isinstance(self.vad.idle_timeout_ms, int):
            paths.append("audio.input.turn_detection.idle_timeout_ms")
        return [*paths, "include"] if self._include else paths


def _worker_model(fields: InputFields, catalogue: Catalogue | None) -> str:
    config = fields.transcription
    name = (config.model or "") if isinstance(config, TranscriptionConfig) else ""
    if not name or name.startswith(BUILT_IN_TRANSCRIBERS):
        return ""
    if catalogue is not None and name not in catalogue.models:
        served = " or ".join([*sorted(catalogue.models), "one of OpenAI's names"])
        raise invalid("session.audio.input.transcription.model", f"expected {served}, got {shown(name)}")
    return name


def _as_given(value: object) -> dict[str, object] | None:
    """Return the given fields of a struct; None for any other value."""
    if not isinstance(value, Struct):
        return None
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    return {name: given for name, given in fields.items() if given is not None and given is not UNSET}
