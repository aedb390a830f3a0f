"""One chat completion: a chat turn whose client speaks HTTP."""

import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import ClassVar, Final

import numpy as np
import pybase64
from msgspec import UNSET

from antiphon.contract import Reason
from ws_adapter.protocol.chat.content import Request
from ws_adapter.protocol.chat.reply import done_reason
from ws_adapter.protocol.chat.tools import CallPiece
from ws_adapter.protocol.chat.ws_chat import Chat
from ws_adapter.protocol.completions import refusals
from ws_adapter.protocol.completions.events import (
    Audio,
    AudioDelta,
    CallDelta,
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChoiceDelta,
    CompletionDetails,
    Delta,
    FinishReason,
    FunctionDelta,
    Message,
    PromptDetails,
    Usage,
)
from ws_adapter.protocol.completions.refusals import RETRY_S, answered
from ws_adapter.protocol.completions.request import Completion, UnknownModel, in_public, read_completion
from ws_adapter.protocol.core.actions import Respond, Send
from ws_adapter.protocol.core.config import Catalogue, ChatSetup
from ws_adapter.protocol.core.machine import Action, Place
from ws_adapter.protocol.core.signals import OUTPUT_RATE_HZ, Piece, Ready, UnitDone
from ws_adapter.protocol.media.reference_voice import NO_VOICE
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import FLOAT32
from ws_adapter.protocol.wire.errors import VERDICTS, ErrorCode, InvalidUtf8, Refusal, Verdict, invalid
from ws_adapter.protocol.wire.limits import Limits

_RETRYABLE: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_KEPT_S: Final = 0
"""Seconds in which a later request can refer to the audio of an answer."""


class CompletionMachine(Chat):
    """The machine of one chat completion over HTTP. The body of the request is its only text frame; `token`
    makes its ids unique."""

    can_be_saved: ClassVar[bool] = False
    """An HTTP response cannot be resumed."""

    def __init__(
        self, limits: Limits, catalogue: Callable[[], Catalogue | None], token: str, created: int
    ) -> None:
        """`created` is the Unix time of the request."""
        super().__init__(limits, catalogue)
        self._id = f"chatcmpl-{token}"
        self._audio_id = f"audio_{token}"
        self._created = created
        self._model = ""
        self._called: set[int] = set()
        """The calls of which a piece was sent."""
        self._has_begun = False
        """Whether a stream has begun, so that an error must be one of its events."""

    def queued(self, place: Place) -> list[Action]:
        """Do nothing: the client gets no event before the answer begins."""
        return []

    @property
    def _completion(self) -> Completion:
        assert isinstance(self._request, Completion)
        return self._request

    # ----------------------------------------------------------------------------- the request

    def read(self, frame: bytes, catalogue: Catalogue | None) -> Request | Refusal | InvalidUtf8:
        try:
            return read_completion(frame, catalogue)
        except (Refusal, InvalidUtf8) as fault:
            return fault

    def setup_of(self, request: Request) -> ChatSetup:
        assert isinstance(request, Completion)
        self._model = request.model
        return ChatSetup(voice=request.voice or NO_VOICE, model=request.model, seed=request.seed)

    def run(self, request: Request, ready: Ready) -> list[Action]:
        if request.turn.speaks and not ready.speaks:
            return self.refuse(invalid("modalities", 'expected ["text"]: the model does not speak'))
        if request.voice is not None and any(field.startswith("voice.") for field in ready.ignored_fields):
            return self.refuse(invalid("audio.voice", 'expected "alloy": the model has one voice'))
        return super().run(request, ready)

    # ------------------------------------------------------------------------------ the answer

    def was_read(self) -> list[Action]:
        if not self.reply.streaming:
            return []
        self._has_begun = True
        content = "" if self._completion.audio_format is None else None
        delta = Delta(role="assistant", content=content, refusal=None)
        return [Respond(HTTPStatus.OK, streams=True), self._chunk(delta)]

    def said(self, piece: Piece, called: CallPiece | None) -> list[Action]:
        actions = [] if self._has_begun else self.was_read()
        if piece.thinking:
            actions.append(self._chunk(Delta(reasoning_content=piece.thinking)))
        if piece.text or piece.audio:
            if self._completion.audio_format is None:
                actions.append(self._chunk(Delta(content=piece.text)))
            else:
                data = pybase64.b64encode_as_string(_pcm16(piece.audio)) if piece.audio else UNSET
                audio = AudioDelta(self._audio_id, data, piece.text or UNSET)
                seconds = len(piece.audio) / FLOAT32.itemsize / OUTPUT_RATE_HZ
                actions.append(self._chunk(Delta(audio=audio), seconds))
        if called is not None:
            actions.append(self._chunk(Delta(tool_calls=[self._call(called)])))
        return actions

    def _call(self, called: CallPiece) -> CallDelta:
        if called.index in self._called:
            return CallDelta(called.index, FunctionDelta(called.arguments))
        self._called.add(called.index)
        return CallDelta(called.index, FunctionDelta(called.arguments, called.name), called.id, "function")

    def answered(self, done: UnitDone) -> list[Action]:
        finish, usage = self._finish(done), self._usage(done)
        if not self.reply.streaming:
            event = ChatCompletion(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=[Choice(0, self._message(), finish)],
                usage=usage,
            )
            return [Respond(HTTPStatus.OK), Send(event)]
        last = [] if self._has_begun else self.was_read()
        if self._is_spoken:
            last.append(self._chunk(Delta(audio=AudioDelta(self._audio_id, expires_at=self._expires_at))))
        last.append(self._chunk(Delta(), finish=finish))
        if self._completion.include_usage:
            last.append(Send(self._piece([], usage)))
        return last

    @property
    def _is_spoken(self) -> bool:
        """Whether the answer has audio; one that consists of calls has none."""
        return self._completion.audio_format is not None and bool(
            self.reply.text or not self.reply.calls.complete
        )

    @property
    def _expires_at(self) -> int:
        return self._created + _KEPT_S

    def _message(self) -> Message:
        text, calls, thinking = self.reply.text, self.reply.calls.complete, self.reply.thinking
        audio: Audio | None = None
        if self._is_spoken:
            sound = _pcm16(self.reply.audio)
            if self._completion.audio_format == "wav":
                sound = _wav_head(len(sound)) + sound
            audio = Audio(self._audio_id, pybase64.b64encode_as_string(sound), self._expires_at, text)
        return Message(
            "assistant",
            None if audio is not None or (calls and not text) else text,
            tool_calls=calls or UNSET,
            audio=audio or UNSET,
            reasoning_content=thinking or UNSET,
        )

    def _finish(self, done: UnitDone) -> FinishReason:
        if done_reason(done) == "length":
            return "length"
        return "tool_calls" if self.reply.calls.complete else "stop"

    def _usage(self, done: UnitDone) -> Usage:
        read = self.reply.prefilled
        details = (read.tokens if read is not None else done.tokens).input_token_details
        given, made = self.reply.input_tokens, done.tokens.output_tokens
        return Usage(
            given,
            made,
            given + made,
            PromptDetails(details.audio_tokens, details.cached_tokens),
            CompletionDetails(done.tokens.output_token_details.audio_tokens),
        )

    def _chunk(self, delta: Delta, audio_s: float = 0.0, finish: FinishReason | None = None) -> Send:
        return Send(self._piece([ChoiceDelta(0, delta, finish)]), audio_s=audio_s)

    def _piece(self, choices: list[ChoiceDelta], usage: Usage | None = None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage if self._completion.include_usage else UNSET,
        )

    # -------------------------------------------------------------------------------- the error

    def failed(self, verdict: Verdict, code: ErrorCode, refusal: Refusal | None) -> list[Action]:
        message, param = verdict.message, None
        if refusal is not None:
            places = self._request.places if isinstance(self._request, Completion) else ()
            refusal = in_public(refusal, places)
            message, param = refusal.message, refusal.param
        is_model = isinstance(refusal, UnknownModel) or verdict is VERDICTS[Reason.MODEL_NOT_FOUND]
        error = refusals.error(code, message, param, is_model=is_model)
        if self._has_begun:
            return [Send(error)]
        status = HTTPStatus.NOT_FOUND if is_model else answered(code).status
        return [Respond(status, retry_s=RETRY_S if status in _RETRYABLE else None), Send(error)]

    def not_text(self) -> list[Action]:
        error = refusals.error(ErrorCode.INVALID_JSON, errors.NOT_UTF8.message, None)
        return [Respond(HTTPStatus.BAD_REQUEST), Send(error)]


def _pcm16(audio: bytes) -> bytes:
    """Return float32 within [-1, 1] as little-endian int16."""
    samples = np.frombuffer(audio, FLOAT32) * np.float32(32767)
    pcm: bytes = np.rint(samples).astype("<i2").tobytes()
    return pcm


def _wav_head(size: int) -> bytes:
    """Return the header of a WAV file of so many bytes of mono int16."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, OUTPUT_RATE_HZ, 2 * OUTPUT_RATE_HZ, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", 36 + size, b"WAVE") + form + struct.pack("<4sI", b"data", size)
