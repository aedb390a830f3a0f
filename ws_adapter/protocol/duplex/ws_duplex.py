"""The dialect of `/ws/duplex`: one flat `result` for every unit, and pauses."""

from collections.abc import Callable
from typing import Final, Literal

from msgspec.structs import replace

from ws_adapter.protocol.core import render
from ws_adapter.protocol.core.answer import Answer, Outcome
from ws_adapter.protocol.core.config import (
    Catalogue,
    Mode,
    SessionSetup,
    capabilities_of,
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
from ws_adapter.protocol.duplex.vocabulary import Begin, Command, Diagnose, End, HoldFrame, Input, Vocabulary
from ws_adapter.protocol.duplex.vocabulary import Interrupt as InterruptCommand
from ws_adapter.protocol.duplex.vocabulary import Pause as PauseCommand
from ws_adapter.protocol.duplex.vocabulary import Resume as ResumeCommand
from ws_adapter.protocol.duplex.ws_duplex_events import (
    AudioChunk,
    ClientDiagnostic,
    ClientEvent,
    Error,
    Interrupt,
    Interrupted,
    Pause,
    Paused,
    Prepare,
    Prepared,
    Queued,
    QueueDone,
    QueueUpdate,
    Result,
    Resume,
    Resumed,
    Stop,
    Stopped,
    Timeout,
    VideoFrame,
)
from ws_adapter.protocol.media.images import read_frame
from ws_adapter.protocol.media.reference_voice import read_voice
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import EventDecoder
from ws_adapter.protocol.wire.errors import ErrorCode, Refusal, Verdict, invalid, missing
from ws_adapter.protocol.wire.events import ServerEvent, TokenUsage
from ws_adapter.protocol.wire.limits import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, Limits

MAX_DIAGNOSTIC_BYTES: Final = 64 * 1024

_DECODER: Final[EventDecoder[ClientEvent]] = EventDecoder(ClientEvent)

_PUBLIC_PATHS: Final = {
    "voice.llm_reference": "ref_audio_base64",
    "voice.speech_reference": "tts_ref_audio_base64",
    "voice.voice_id": "ref_audio_path",
    "duplex.": "config.",
}
"""Fields of `antiphon.v1.SessionConfig` and their names in `prepare`; others are equal."""

_AUDIO: Final = ("audio_base64", "audio", "audio_data")
_FRAME_LISTS: Final = ("frame_base64_list", "video_frames", "frames")
_SINGLE_FRAMES: Final = ("video_frame", "frame_base64")

_REASONS: Final[dict[str, Literal["user_stop", "context_full", "server_shutdown", "error"]]] = {
    errors.USER_STOP: "user_stop",
    errors.CONTEXT_FULL: "context_full",
    errors.SHUTDOWN: "server_shutdown",
}


class Duplex:
    """The events of `/ws/duplex`.

    With `announces_slot`, `queue_done` is sent even without a wait. `recording_id` is that of the session's
    recording, if one is made.
    """

    opener = "prepare"
    ignores_second_opener = True

    def __init__(
        self,
        session_id: str,
        mode: Mode,
        limits: Limits,
        new_token: Callable[[], str],
        *,
        announces_slot: bool,
        recording_id: str | None = None,
    ) -> None:
        self._session_id = session_id
        self._mode = mode
        self._default_pause_s = limits.pause_timeout_s
        self._rules = InputRules(limits.max_append_s, mode is Mode.VIDEO, new_token)
        self._announces_slot = announces_slot
        self._recording_id = recording_id

    @property
    def saved(self) -> str:
        return ""

    def restored(self, saved: str) -> Vocabulary:
        return self

    # ------------------------------------------------------------------------------------- client

    def decode(self, frame: bytes, *, drops_input: bool = False) -> Command:
        event = _DECODER.decode(frame, sized_only=drops_input)
        match event:
            case Prepare():
                return Begin(self.opener, lambda catalogue: self._setup(event, catalogue), lambda: self)
            case AudioChunk():
                return Input("audio_chunk", self.opener, lambda slices: self._append(event, slices))
            case VideoFrame():
                return HoldFrame("video_frame", self.opener, lambda: self._frame(event))
            case Pause():
                seconds = self._default_pause_s if event.timeout is None else event.timeout
                seconds = min(max(seconds, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)
                return PauseCommand("pause", seconds, Paused(timeout=seconds))
            case Resume():
                return ResumeCommand("resume", Resumed())
            case Interrupt():
                return InterruptCommand("interrupt", Interrupted())
            case Stop():
                return End(errors.USER_STOP)
            case ClientDiagnostic():
                return _diagnosis(frame)

    def _setup(self, event: Prepare, catalogue: Catalogue | None) -> SessionSetup:
        given = event.config or {}
        config = read_config(given, "config")
        slices, slices_field = session_slices(event.max_slice_nums, config, "config")
        # Units are always finalised after their answer.
        not_final = ["deferred_finalize"] if event.deferred_finalize is False else []
        return SessionSetup(
            mode=self._mode,
            system_prompt=first_text(event.system_prompt, event.prefix_system_prompt, event.instructions),
            duplex=duplex_settings(config),
            voice=read_voice((("", event),), capabilities_of("", catalogue).voices),
            max_slice_nums=slices,
            unsupported=listed([*unknown_keys(given, "config"), *not_final]),
            slices_field=slices_field,
        )

    def _append(self, event: AudioChunk, max_slice_nums: int | None) -> Append:
        audio, audio_path = first_given(event, _AUDIO)
        frames, frames_path = first_given(event, _FRAME_LISTS)
        given = GivenInput(
            audio or "",
            audio_path,
            frames or (),
            frames_path,
            force_listen=bool(event.force_listen),
            max_slice_nums=event.max_slice_nums,
        )
        append = read_append(given, self._rules, max_slice_nums)
        frame, name = (None, "") if frames else first_given(event, _SINGLE_FRAMES)
        if frame is None:
            return append
        if not self._rules.takes_frames:
            return replace(append, ignored_frames=1)
        return replace(append, frames=(read_frame(frame, name),))

    def _frame(self, event: VideoFrame) -> bytes | None:
        name = next((name for name in VideoFrame.__struct_fields__ if getattr(event, name)), None)
        if name is None:
            raise missing("frame_base64", "base64 of a picture")
        return read_frame(getattr(event, name), name) if self._rules.takes_frames else None

    # ------------------------------------------------------------------------------------- server

    def queued(self, place: Place, *, is_update: bool) -> ServerEvent:
        shape = QueueUpdate if is_update else Queued
        wait = round(place.estimated_wait_s, 1)
        return shape(
            position=place.position,
            estimated_wait_s=wait,
            eta_seconds=wait,
            estimate_is_guess=place.estimate_is_guess,
            ticket_id=place.ticket_id,
            queue_length=place.queue_length,
        )

    def slot_assigned(self, *, has_waited: bool) -> list[ServerEvent]:
        return [QueueDone()] if self._announces_slot or has_waited else []

    def created(self, ready: Ready, setup: SessionSetup) -> ServerEvent:
        return Prepared(
            prompt_length=ready.prompt_tokens,
            session_id=self._session_id,
            recording_session_id=self._recording_id,
            unsupported_fields=setup.unsupported_by(ready, _public_path),
        )

    def moved(self, pause_s: float) -> list[ServerEvent]:
        return [render.moved(pause_s)]

    def answer(self, answer: Answer) -> list[ServerEvent]:
        """Return one `result` for a unit, preceded by an error if the unit failed."""
        result = _result(answer)
        if answer.failure is None:
            return [result]
        code, message = answer.failure
        return [_error(code, message), result]

    def refused(self, refusal: Refusal, input_id: str | None) -> ServerEvent:
        message = refusal.message
        if refusal.code is ErrorCode.MISSING_FIELD:
            message = f"Missing {refusal.param}"
        elif refusal.unknown_event is not None:
            message = f"Unknown message type: {refusal.unknown_event}"
        return _error(refusal.code, message)

    def concluded(self, verdict: Verdict, tokens: TokenUsage | None) -> list[ServerEvent]:
        if verdict.clock:
            return [Timeout(reason=verdict.clock)]
        reason = _REASONS.get(verdict.closed or "", "error")
        return [Stopped(session_id=self._session_id, reason=reason)]


def _diagnosis(frame: bytes) -> Diagnose:
    if len(frame) > MAX_DIAGNOSTIC_BYTES:
        expected = f"expected at most {MAX_DIAGNOSTIC_BYTES} bytes, got {len(frame)}"
        raise invalid("client_diagnostic", expected)
    return Diagnose(frame)


def _error(code: ErrorCode, message: str) -> Error:
    return Error(error=message, code=code, message=message)


def _result(answer: Answer) -> Result:
    times, tokens = answer.timings, answer.own
    speaks = answer.outcome is Outcome.SPEECH
    costs = (times.decode or 0.0, times.speech or 0.0, times.vocoder or 0.0)
    is_dropped = answer.outcome is Outcome.DROPPED
    return Result(
        is_listen=not speaks,
        text=answer.text,
        audio_data=answer.audio or None,
        end_of_turn=answer.ends_turn,
        current_time=answer.index + 1,
        kv_cache_length=answer.context_tokens,
        cost_llm_ms=costs[0],
        cost_tts_prep_ms=0.0,
        cost_tts_ms=costs[1],
        cost_token2wav_ms=costs[2],
        cost_all_ms=round(sum(costs), 3),
        prefill_ms=times.prefill or 0.0,
        wall_clock_ms=0.0,
        n_tokens=tokens.output_token_details.text_tokens,
        n_tts_tokens=tokens.output_token_details.audio_tokens,
        vision_slices=answer.vision_slices,
        vision_tokens=tokens.input_token_details.vision_tokens,
        server_send_ts=0.0,
        dropped=True if is_dropped else None,
        dropped_total=answer.dropped_total or None,
        ignored_frames=answer.unit.ignored_frames or None,
    )


def _public_path(worker_path: str) -> str:
    """Return the path in `prepare` of a field that the worker calls `worker_path`."""
    for internal, public in _PUBLIC_PATHS.items():
        if worker_path.startswith(internal):
            return public + worker_path.removeprefix(internal) if internal.endswith(".") else public
    return worker_path
