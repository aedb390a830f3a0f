"""The current dialect of `/v1/realtime`, in full-duplex modes."""

import re
from collections.abc import Callable
from typing import Any, Final

from ws_adapter.protocol.core import render
from ws_adapter.protocol.core.answer import Answer, Outcome
from ws_adapter.protocol.core.config import (
    Catalogue,
    Mode,
    SessionSetup,
    capabilities_of,
    check_model,
    duplex_settings,
    first_text,
    listed,
    read_config,
    session_slices,
    unknown_keys,
)
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.core.signals import Ready
from ws_adapter.protocol.duplex.input import (
    Append,
    GivenInput,
    InputRules,
    first_given,
    read_append,
)
from ws_adapter.protocol.duplex.realtime_events import (
    AppendInput,
    AudioDelta,
    AudioObject,
    ClientEvent,
    Diagnostic,
    InitPayload,
    InputAppend,
    ListenDelta,
    OutputDelta,
    SessionClose,
    SessionClosed,
    SessionCreated,
    SessionInit,
    TextDelta,
)
from ws_adapter.protocol.duplex.vocabulary import Begin, Command, End, Input, Vocabulary
from ws_adapter.protocol.media.reference_voice import Voice, read_voice
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import EventDecoder
from ws_adapter.protocol.wire.errors import Refusal, Verdict, missing
from ws_adapter.protocol.wire.events import Metrics, ServerEvent, SessionQueueDone, TokenUsage

_OWN_REASON: Final = re.compile(r"[a-z0-9_]{1,64}")
_DECODER: Final[EventDecoder[ClientEvent]] = EventDecoder(SessionInit | InputAppend | SessionClose)

_AUDIO: Final = ("audio", "audio_base64", "audio_data")
_IN_OBJECT: Final = ("data", "base64", "audio_base64")
_FRAME_LISTS: Final = ("video_frames", "frame_base64_list", "frames")

BRIEF_SILENCE: Final = bytes(480 * 4)
"""20 ms of silence, for a speaking unit without samples if every unit has to be answered by audio."""

_PUBLIC_PATHS: Final = {
    "voice.llm_reference": "voice.ref_audio_base64",
    "voice.speech_reference": "voice.tts_ref_audio_base64",
    "voice.voice_id": "voice.ref_audio_path",
}
"""Fields of `antiphon.v1.SessionConfig` and their names in `payload`; others are equal."""


class RealtimePath:
    """The base of both full-duplex dialects of `/v1/realtime`: rules for input, queue events and errors.

    `recording_id` is that of the session's recording, if one is made.
    """

    ignores_second_opener = False

    def __init__(
        self,
        session_id: str,
        mode: Mode,
        max_append_s: float,
        new_token: Callable[[], str],
        recording_id: str | None = None,
    ) -> None:
        self._session_id = session_id
        self._mode = mode
        self._rules = InputRules(max_append_s, mode is Mode.VIDEO, new_token)
        self._recording_id = recording_id

    def queued(self, place: Place, *, is_update: bool) -> ServerEvent:
        return render.queued(place, is_update=is_update)

    def slot_assigned(self, *, has_waited: bool) -> list[ServerEvent]:
        return [SessionQueueDone()]

    def refused(self, refusal: Refusal, input_id: str | None) -> ServerEvent:
        return render.error(refusal.code, refusal.message, refusal.param, input_id)


class Realtime(RealtimePath):
    """The events of the current dialect."""

    opener = "session.init"

    @property
    def saved(self) -> str:
        return ""

    def restored(self, saved: str) -> Vocabulary:
        return self

    # ------------------------------------------------------------------------------------- client

    def decode(self, frame: bytes, *, drops_input: bool = False) -> Command:
        return self.command(_DECODER.decode(frame, sized_only=drops_input))

    def command(self, event: ClientEvent) -> Command:
        """Return the command of a decoded event."""
        match event:
            case SessionInit():
                return Begin(
                    self.opener,
                    lambda catalogue: self._setup(event, catalogue),
                    lambda: self,
                    event.trace_context,
                )
            case InputAppend():
                input_id = event.input.input_id if event.input is not None else None
                return Input(
                    "input.append",
                    self.opener,
                    lambda slices: self._append(event, slices),
                    input_id,
                    event.trace_context,
                )
            case SessionClose():
                return End(close_reason(event))

    def _setup(self, event: SessionInit, catalogue: Catalogue | None) -> SessionSetup:
        payload = event.payload
        if payload is None:
            raise missing("payload", "an object, which may be empty,")
        name = "config" if payload.config is not None else "duplex"
        given = payload.config if payload.config is not None else payload.duplex or {}
        config = read_config(given, f"payload.{name}")
        slices, slices_field = session_slices(payload.max_slice_nums, config, name)
        return SessionSetup(
            mode=self._mode,
            system_prompt=first_text(payload.system_prompt, payload.instructions),
            duplex=duplex_settings(config, payload.use_tts),
            model=check_model(payload.model, catalogue, "payload.model"),
            voice=init_voice(payload, catalogue),
            seed=payload.seed,
            max_slice_nums=slices,
            unsupported=listed([*unknown_keys(given, name), *unhonoured(payload, self._mode)]),
            slices_field=slices_field,
            speech_field="use_tts" if payload.use_tts else "",
        )

    def _append(self, event: InputAppend, max_slice_nums: int | None) -> Append:
        fields = event.input
        if fields is None:
            raise missing("input", "an object")
        hints = fields.hints
        force_listen, slices = fields.force_listen, fields.max_slice_nums
        if hints is not None:
            force_listen = hints.force_listen if force_listen is None else force_listen
            slices = hints.max_slice_nums if slices is None else slices
        audio, audio_path = _audio(fields)
        frames, frames_name = first_given(fields, _FRAME_LISTS)
        given = GivenInput(
            audio,
            audio_path,
            frames or (),
            f"input.{frames_name}",
            encoding=fields.format or "f32",
            force_listen=bool(force_listen),
            max_slice_nums=slices,
            input_id=fields.input_id,
        )
        return read_append(given, self._rules, max_slice_nums)

    # ------------------------------------------------------------------------------------- server

    def created(self, ready: Ready, setup: SessionSetup) -> ServerEvent:
        return SessionCreated(
            session_id=self._session_id,
            mode="full_duplex",
            metrics=Metrics(prompt_length=ready.prompt_tokens, n_past_max=ready.context_limit or None),
            usage=ready.tokens,
            unsupported_fields=setup.unsupported_by(ready, public_path),
            recording_session_id=self._recording_id,
        )

    def moved(self, pause_s: float) -> list[ServerEvent]:
        return [render.moved(pause_s)]

    def answer(self, answer: Answer) -> list[ServerEvent]:
        """Return the events of a unit, one for each kind of output; the first has its number and tokens."""
        told = _Frames(self._session_id, answer)
        match answer.outcome:
            case Outcome.SPEECH:
                if answer.text or not answer.has_audio_output:
                    told.add(TextDelta, kind="text", response_id=answer.response_id, text=answer.text)
                if answer.has_audio_output:
                    audio = answer.audio or BRIEF_SILENCE
                    told.add(AudioDelta, kind="audio", response_id=answer.response_id, audio=audio)
                if answer.ends_turn:
                    told.add(ListenDelta, kind="listen", response_id=answer.response_id, reason="turn_end")
            case Outcome.FAILED if answer.failure is not None:
                code, message = answer.failure
                told.events.append(render.error(code, message, input_id=answer.unit.input_id))
                told.add(ListenDelta, kind="listen", response_id=answer.response_id)
            case _:
                told.add(ListenDelta, kind="listen", response_id=answer.response_id)
        return told.events

    def concluded(self, verdict: Verdict, tokens: TokenUsage | None) -> list[ServerEvent]:
        closed = SessionClosed(
            reason=verdict.closed or "",
            session_id=self._session_id if tokens is not None else None,
            usage=tokens,
            diagnostic=Diagnostic(verdict.message) if verdict.message else None,
        )
        return [closed]


def close_reason(event: SessionClose) -> str:
    """Return the reason in `session.closed` for a session that its client ends."""
    reason = event.reason or errors.USER_STOP
    return reason if _OWN_REASON.fullmatch(reason) else "client_closed"


def unhonoured(payload: InitPayload, mode: Mode) -> list[str]:
    """Return the paths in a `session.init` that have no effect in any session; `mode` is that of the URL."""
    given = {"tools": bool(payload.tools), "mode": payload.mode not in (None, mode)}
    return [name for name, is_given in given.items() if is_given]


def init_voice(payload: InitPayload, catalogue: Catalogue | None) -> Voice:
    """Return the voice that a `session.init` requests; raises `Refusal`."""
    places = (
        ("payload.voice", payload.voice),
        ("payload.defaults", payload.defaults),
        ("payload", payload),
    )
    return read_voice(places, capabilities_of(payload.model or "", catalogue).voices)


class _Frames:
    """The events of one unit: each with its figures, the first one with its number and its tokens."""

    def __init__(self, session_id: str, answer: Answer) -> None:
        self.events: list[ServerEvent] = []
        self._always: dict[str, Any] = {
            "session_id": session_id,
            "input_id": answer.unit.input_id,
            "metrics": metrics(answer),
        }
        self._first: dict[str, Any] = {}
        if answer.is_continued:
            return
        self._first = {"chunk_index": answer.index}
        if answer.outcome is not Outcome.DROPPED:
            self._first |= {"usage": answer.total, "chunk_usage": answer.own}

    def add(self, shape: type[OutputDelta], **fields: Any) -> None:
        self.events.append(shape(**self._always, **self._first, **fields))
        self._first = {}


def _audio(fields: AppendInput) -> tuple[str, str]:
    """Return the audio in an append, and its path."""
    if isinstance(fields.audio, AudioObject):
        audio, name = first_given(fields.audio, _IN_OBJECT)
        if audio:
            return audio, f"input.audio.{name}"
        audio, name = first_given(fields, _AUDIO[1:])
        return audio or "", f"input.{name}" if audio else "input.audio"
    audio, name = first_given(fields, _AUDIO)
    return audio or "", f"input.{name}"


def public_path(worker_path: str) -> str:
    """Return the path in `payload` of a field that the worker calls `worker_path`."""
    for internal, public in _PUBLIC_PATHS.items():
        if worker_path.startswith(internal):
            return public
    return worker_path.replace("duplex.", "config.", 1) if worker_path.startswith("duplex.") else worker_path


def metrics(answer: Answer) -> Metrics:
    """Return the figures of a unit; those of the adapter itself are left out where they are 0."""
    unit = answer.unit
    figures = Metrics(
        padded_samples=unit.padded_samples or None,
        clipped_samples=unit.clipped_samples or None,
        ignored_frames=unit.ignored_frames or None,
        injected_silence=unit.injected_silence or None,
        dropped_total=answer.dropped_total or None,
    )
    if answer.outcome is Outcome.DROPPED:
        figures.dropped = True
        return figures
    times = answer.timings
    figures.kv_cache_length = answer.context_tokens
    figures.n_past_max = answer.context_limit or None
    figures.queue_ms = times.queue
    figures.prefill_ms = times.prefill
    figures.generate_ms = times.total
    figures.cost_llm_ms = times.decode
    figures.cost_tts_ms = times.speech
    figures.cost_token2wav_ms = times.vocoder
    figures.n_tokens = answer.own.output_token_details.text_tokens
    figures.n_tts_tokens = answer.own.output_token_details.audio_tokens
    figures.vision_slices = answer.vision_slices or None
    figures.vision_tokens = answer.own.input_token_details.vision_tokens or None
    return figures
