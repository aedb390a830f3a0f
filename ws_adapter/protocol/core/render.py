"""Parts of public events of `/v1/realtime`: errors and the queue."""

from typing import Literal

from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.wire.errors import ErrorCode
from ws_adapter.protocol.wire.events import (
    ErrorBody,
    ErrorEvent,
    SessionMoved,
    SessionQueued,
    SessionQueueUpdate,
)


def error(code: ErrorCode, message: str, param: str | None = None, input_id: str | None = None) -> ErrorEvent:
    """Return an `error` event of `/v1/realtime`."""
    side: Literal["client_error", "server_error"] = "server_error" if code.is_servers else "client_error"
    return ErrorEvent(error=ErrorBody(code, message, side, param, input_id))


def moved(pause_s: float) -> SessionMoved:
    """Return the event for a session that another worker continues."""
    return SessionMoved(pause_s=round(pause_s, 3))


def queued(place: Place, *, is_update: bool) -> SessionQueued:
    """Return a queue event of `/v1/realtime`."""
    shape = SessionQueueUpdate if is_update else SessionQueued
    return shape(
        position=place.position,
        estimated_wait_s=round(place.estimated_wait_s, 1),
        estimate_is_guess=place.estimate_is_guess,
        ticket_id=place.ticket_id,
        queue_length=place.queue_length,
    )
