"""The earlier dialect of `/v1/realtime`."""

from typing import Final

from ws_adapter.protocol.core import render
from ws_adapter.protocol.core.answer import Answer, Outcome
from ws_adapter.protocol.core.config import (
    Catalogue,
    SessionSetup,
    capabilities_of,
    duplex_settings,
    listed,
    read_config,
    session_slices,
    unknown_keys,
)
from ws_adapter.protocol.core.signals import Ready
from ws_adapter.protocol.duplex.earlier_events import (
    AudioAppend,
    AudioDelta,
    ClientEvent,
    EndReason,
    Listen,
    SessionClosed,
    SessionCreated,
    SessionUpdate,
)
from ws_adapter.protocol.duplex.input import Append, GivenInput, read_append
from ws_adapter.protocol.duplex.realtime import RealtimePath, metrics
from ws_adapter.protocol.duplex.realtime_events import SessionClose
from ws_adapter.protocol.duplex.vocabulary import Begin, Command, End, Input, Vocabulary
from ws_adapter.protocol.media.reference_voice import read_voice
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import EventDecoder
from ws_adapter.protocol.wire.errors import Verdict, missing
from ws_adapter.protocol.wire.events import ServerEvent, TokenUsage

_DECODER: Final[EventDecoder[ClientEvent]] = EventDecoder(SessionUpdate | AudioAppend | SessionClose)

_PUBLIC_PATHS: Final = {
    "voice.llm_reference": "ref_audio",
    "voice.speech_reference": "tts_ref_audio",
    "voice.voice_id": "ref_audio_path",
}
"""Fields of `antiphon.v1.SessionConfig` and their names in `session`; others are equal."""

_REASONS: Final[dict[str | None, EndReason]] = {
    errors.TIMEOUT: "timeout",
    errors.CONTEXT_FULL: "context_full",
    errors.SHUTDOWN: "server_shutdown",
    errors.BACKEND_ERROR: "error",
    errors.SLOW_CONSUMER: "slow_consumer",
}


class Earlier(RealtimePath):
    """The events of the earlier dialect."""

    opener = "session.update"

    @property
    def saved(self) -> str:
        return self._session_id

    def restored(self, saved: str) -> Vocabulary:
        return self

    # ------------------------------------------------------------------------------------- client

    def decode(self, frame: bytes, *, drops_input: bool = False) -> Command:
        return self.command(_DECODER.decode(frame, sized_only=drops_input))

    def command(self, event: ClientEvent) -> Command:
        """Return the command of a decoded event."""
        match event:
            case SessionUpdate():
                return Begin(
                    self.opener,
                    lambda catalogue: self._setup(event, catalogue),
                    lambda: self,
                    event.trace_context,
                )
            case AudioAppend():
                name = "input_audio_buffer.append"
                return Input(
                    name,
                    self.opener,
                    lambda slices: self._append(event, slices),
                    event.input_id,
                    event.trace_context,
                )
            case SessionClose():
                return End(errors.USER_STOP)

    def _setup(self, event: SessionUpdate, catalogue: Catalogue | None) -> SessionSetup:
        session = event.session
        if session is None:
            raise missing("session", "an object")
        if session.instructions is None:
            raise missing("session.instructions", "the system prompt")
        name = "voice_config" if session.voice_config is not None else "config"
        given = session.voice_config if session.voice_config is not None else session.config or {}
        config = read_config(given, f"session.{name}")
        voices = capabilities_of("", catalogue).voices
        slices, slices_field = session_slices(session.max_slice_nums, config, name)
        return SessionSetup(
            mode=self._mode,
            system_prompt=session.instructions,
            duplex=duplex_settings(config),
            voice=read_voice((("session", session),), voices),
            max_slice_nums=slices,
            unsupported=listed(unknown_keys(given, name)),
            slices_field=slices_field,
        )

    def _append(self, event: AudioAppend, max_slice_nums: int | None) -> Append:
        given = GivenInput(
            event.audio or "",
            "audio",
            event.video_frames or (),
            "video_frames",
            encoding=event.format or "f32",
            force_listen=bool(event.force_listen),
            max_slice_nums=event.max_slice_nums,
            input_id=event.input_id,
        )
        return read_append(given, self._rules, max_slice_nums)

    # ------------------------------------------------------------------------------------- server

    def created(self, ready: Ready, setup: SessionSetup) -> ServerEvent:
        return SessionCreated(
            session_id=self._session_id,
            prompt_length=ready.prompt_tokens,
            usage=ready.tokens,
            recording_session_id=self._recording_id,
            unsupported_fields=setup.unsupported_by(ready, _public_path),
        )

    def moved(self, pause_s: float) -> list[ServerEvent]:
        """Return no event: the earlier protocol is unchanged."""
        return []

    def answer(self, answer: Answer) -> list[ServerEvent]:
        """Return the event of a unit, preceded by an error if the unit failed."""
        input_id = answer.unit.input_id
        if answer.outcome is Outcome.SPEECH and answer.response_id is not None:
            delta = AudioDelta(
                text=answer.text,
                audio=answer.audio,
                end_of_turn=answer.ends_turn,
                kv_cache_length=answer.context_tokens,
                response_id=answer.response_id,
                input_id=input_id,
                metrics=metrics(answer),
            )
            return [delta]
        listen = Listen(
            kv_cache_length=answer.context_tokens,
            input_id=input_id,
            metrics=metrics(answer),
            response_id=answer.response_id,
        )
        if answer.failure is None:
            return [listen]
        code, message = answer.failure
        return [render.error(code, message, input_id=input_id), listen]

    def concluded(self, verdict: Verdict, tokens: TokenUsage | None) -> list[ServerEvent]:
        reason = _REASONS.get(verdict.closed, "stopped")
        return [SessionClosed(reason=reason, session_id=self._session_id)]


def _public_path(worker_path: str) -> str:
    """Return the path in `session` of a field that the worker calls `worker_path`."""
    for internal, public in _PUBLIC_PATHS.items():
        if worker_path.startswith(internal):
            return public
    if worker_path.startswith("duplex."):
        return worker_path.replace("duplex.", "voice_config.", 1)
    return "instructions" if worker_path == "system_prompt" else worker_path
