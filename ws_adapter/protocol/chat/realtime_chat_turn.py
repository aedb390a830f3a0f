"""One turn of `/v1/realtime` in mode chat, with the events for its client."""

from typing import Any

from ws_adapter.protocol.chat.content import Request
from ws_adapter.protocol.chat.realtime_chat_events import (
    ReplyAudio,
    ReplyCall,
    ReplyText,
    ReplyThinking,
    ResponseDone,
)
from ws_adapter.protocol.chat.reply import Reply, done_reason
from ws_adapter.protocol.chat.saved import SavedChatTurn
from ws_adapter.protocol.core import render
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.config import listed
from ws_adapter.protocol.core.signals import Piece, Prefilled, Ready, UnitDone
from ws_adapter.protocol.core.turn import Turn
from ws_adapter.protocol.wire.errors import Refusal
from ws_adapter.protocol.wire.events import ErrorEvent, Metrics, ServerEvent


class ChatTurn:
    """A turn that is running or waits. `asked_at` is the time at which it was accepted."""

    def __init__(
        self, request: Request, session_id: str, input_id: str, response_id: str, asked_at: float
    ) -> None:
        self.request = request
        self.input_id = input_id
        self._ids: dict[str, Any] = {
            "session_id": session_id,
            "input_id": input_id,
            "response_id": response_id,
        }
        self._reply = Reply(asked_at, streaming=request.streaming)
        self._context_limit = 0
        self._unsupported: tuple[str, ...] = ()

    def save(self, now: float, blobs: Blobs) -> SavedChatTurn:
        """Return the state."""
        return SavedChatTurn(
            self.request.save(blobs),
            self.input_id,
            self._ids["response_id"],
            self._reply.save(now, blobs),
            self._context_limit,
            tuple(self._unsupported),
        )

    @classmethod
    def restored(cls, saved: SavedChatTurn, session_id: str, blobs: Saved, now: float) -> "ChatTurn":
        """Return a turn from a saved state. Raises `KeyError`."""
        request = Request.restored(saved.request, blobs)
        made = cls(request, session_id, saved.input_id, saved.response_id, now)
        made._reply = Reply.restored(saved.reply, blobs, now)
        made._context_limit, made._unsupported = saved.context_limit, saved.unsupported
        return made

    @property
    def has_begun(self) -> bool:
        """Whether the worker has sent any part of the answer."""
        reply = self._reply
        return bool(reply.text or reply.thinking or reply.audio_bytes or reply.calls.have_begun)

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return self.request.size + self._reply.audio_bytes

    def begin(self, ready: Ready, *, has_own_session: bool) -> Turn:
        """Return the turn for the worker that will answer it, with the settings that the worker supports."""
        turn, unsupported = self.request.for_worker(ready, has_own_session=has_own_session)
        self._unsupported = listed(unsupported)
        self._context_limit = ready.context_limit
        return turn

    def prefilled(self, signal: Prefilled) -> None:
        """Note that the model has read the turn."""
        self._reply.prefilled = signal
        self._unsupported = listed([*self._unsupported, *self.request.ignored_by(signal)])

    def said(self, piece: Piece) -> list[ServerEvent]:
        """Return the events for a piece of the answer. Raises `Refusal` if it becomes too long."""
        called = self._reply.add(piece)
        if not self._reply.streaming:
            return []
        events: list[ServerEvent] = []
        if piece.thinking:
            thought = ReplyThinking(kind="thinking", text=piece.thinking, metrics=Metrics(), **self._ids)
            events.append(thought)
        if piece.text:
            events.append(ReplyText(kind="text", text=piece.text, metrics=Metrics(), **self._ids))
        if piece.audio:
            events.append(ReplyAudio(kind="audio", audio=piece.audio, metrics=Metrics(), **self._ids))
        if called is not None:
            events.append(ReplyCall(kind="tool_call", tool_call=called, metrics=Metrics(), **self._ids))
        return events

    def failed(self, refusal: Refusal) -> ErrorEvent:
        """Return the error of a turn without an answer; a `param` is a path in the fields of its input."""
        where = "input." if refusal.param else ""
        param = f"{where}{refusal.param}" if refusal.param else None
        return render.error(refusal.code, f"{where}{refusal.message}", param, self.input_id)

    def done(self, done: UnitDone, now: float, *, has_failed: bool) -> ResponseDone:
        """Return the end of the answer."""
        figures = self._reply.metrics(
            done, now, context_limit=self._context_limit, clipped_samples=self.request.clipped_samples
        )
        return ResponseDone(
            text=self._reply.text,
            audio=self._reply.audio or None,
            reason="error" if has_failed else done_reason(done),
            metrics=figures,
            usage=done.tokens,
            unsupported_fields=list(self._unsupported),
            thinking=self._reply.thinking,
            tool_calls=self._reply.calls.complete,
            **self._ids,
        )
