"""HTTP responses, most of them JSON."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Response

from ws_adapter.dispatch.base import PoolStatus, QueueView, Running, Waiting
from ws_adapter.options import AdapterOptions
from ws_adapter.pages.default_voice import DefaultVoice
from ws_adapter.pages.files import POLICY, PageFile
from ws_adapter.pages.slot_rows import BUSY, Slots
from ws_adapter.protocol.core.config import Catalogue, Mode
from ws_adapter.protocol.core.signals import OUTPUT_RATE_HZ
from ws_adapter.protocol.media.reference_voice import RATE_HZ
from ws_adapter.worker.registry import Condition

PROTOCOL: Final = "antiphon.v1"
OWNER: Final = "antiphon"
JSON: Final = "application/json"
OWN: Final = "X-Content-Type-Options"
"""A header of all responses made here; responses of the websockets library lack it."""

Json = dict[str, Any]


def answer(status: HTTPStatus, body: Any, **headers: str) -> Response:
    """Return a JSON response; underscores in names of headers stand for hyphens."""
    return text(status, msgspec.json.encode(body), JSON, **headers)


def text(status: HTTPStatus, data: bytes, content_type: str, **headers: str) -> Response:
    """Return a response of any type; underscores in names of headers stand for hyphens."""
    fields = {
        "Content-Type": content_type,
        "Content-Length": str(len(data)),
        "Connection": "close",
        "Cache-Control": "no-store",
        OWN: "nosniff",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return Response(status.value, status.phrase, Headers(fields), data)


def problem(status: HTTPStatus, code: str, message: str, **headers: str) -> Response:
    """Return an error in the form of the adapter's own routes."""
    return answer(status, {"error": {"code": code, "message": message}, "detail": message}, **headers)


def health() -> Response:
    """Return the answer to the liveness probe."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    return answer(HTTPStatus.OK, {"status": "healthy", "timestamp": now})


def service_status(
    status: PoolStatus, queue: QueueView, slots: Slots, conditions: Mapping[Condition, int]
) -> Response:
    """Return the status in the form of the reference server, whose workers are the slots of this server.

    `conditions` counts the workers in each condition. A worker that is not ready counts as one slot, since
    its number of slots is unknown.
    """
    # A slot is in use until its worker has cleaned it, even if the worker is no longer ready.
    running = [(one, slots.activity(one.worker_id, one.slot)) for one in queue.running]
    busy = sum(activity in BUSY for _, activity in running)
    loading, broken = conditions[Condition.LOADING], conditions[Condition.UNFIT]
    offline = conditions[Condition.OFFLINE]
    body = {
        "gateway_healthy": True,
        "total_workers": status.free_slots + len(running) + loading + broken + offline,
        "idle_workers": status.free_slots,
        "busy_workers": busy,
        "duplex_workers": len(running) - busy,
        "loading_workers": loading,
        "error_workers": broken,
        "offline_workers": offline,
        "queue_length": len(queue.waiting),
        "max_queue_size": queue.capacity,
        "running_tasks": [_task(one) | {"status": activity} for one, activity in running],
    }
    return answer(HTTPStatus.OK, body)


def workers(rows: Iterable[Json]) -> Response:
    """Return a row for each slot, in the form of the reference server's workers."""
    listed = list(rows)
    return answer(HTTPStatus.OK, {"total": len(listed), "workers": listed})


def models(catalogue: Catalogue | None, since: float) -> Response:
    """Return the served models with their capabilities, in the form of OpenAI's API with further fields.

    `since` is the start of this adapter in Unix seconds. A model in several pools has the modes of all of
    them, and the other capabilities only if every pool has them.
    """
    names = sorted(catalogue.models) if catalogue is not None else ()
    data = [
        {
            "id": name,
            "object": "model",
            "created": int(since),
            "owned_by": OWNER,
            **_abilities(catalogue, name),
        }
        for name in names
    ]
    return answer(HTTPStatus.OK, {"object": "list", "data": data})


def _abilities(catalogue: Catalogue | None, model: str) -> Json:
    if catalogue is None:
        return {}
    able = catalogue.of(model)
    return {
        "modes": modes_of(catalogue, model),
        "voices": sorted(able.voices or ()),
        "tools": able.calls_tools,
        "semantic_vad": Mode.AUDIO in able.modes,
        "input_sample_rate": RATE_HZ if able.hears else None,
        "output_sample_rate": OUTPUT_RATE_HZ if able.speaks else None,
    }


def modes_of(catalogue: Catalogue, model: str) -> list[Mode]:
    """Return the modes in which a model is served."""
    return sorted(
        {mode for pool in catalogue.pools if pool.model == model for mode in pool.capabilities.modes}
    )


def default_voice(voice: DefaultVoice) -> Response:
    """Return the default reference voice."""
    return text(HTTPStatus.OK, voice.description, JSON)


def queue(view: QueueView, *, names_tickets: bool) -> Response:
    """Return the waiting tickets and running sessions.

    `names_tickets` is whether the caller may see the sessions of others. If not, ticket ids and labels are
    null: a ticket id is enough to cancel the ticket, and the label belongs to the client.
    """
    hidden = {} if names_tickets else {"ticket_id": None, "session_id": None}
    body = {
        "queue_length": len(view.waiting),
        "max_queue_size": view.capacity,
        "items": [_item(waiting) | hidden for waiting in view.waiting],
        "running_tasks": [_task(running) for running in view.running],
    }
    return answer(HTTPStatus.OK, body)


def ticket(waiting: Waiting | None) -> Response:
    """Return the queue place of a ticket; None if it does not wait."""
    if waiting is None:
        return answer(HTTPStatus.OK, {"found": False, "message": NOT_WAITING})
    return answer(HTTPStatus.OK, {"found": True, "ticket": _item(waiting)})


def cancelled(ticket_id: str, was_waiting: bool) -> Response:
    """Return whether a waiting ticket was cancelled."""
    if not was_waiting:
        return answer(HTTPStatus.NOT_FOUND, {"success": False, "message": NOT_WAITING})
    return answer(HTTPStatus.OK, {"success": True, "ticket_id": ticket_id})


NOT_WAITING: Final = "no such ticket waits: it has a slot, was cancelled or never existed"


def _item(waiting: Waiting) -> Json:
    return {
        "ticket_id": waiting.place.ticket_id,
        "request_type": waiting.kind,
        "session_id": waiting.label,
        "position": waiting.place.position,
        "estimated_wait_s": round(waiting.place.estimated_wait_s, 1),
        "estimate_is_guess": waiting.place.estimate_is_guess,
        "enqueued_at": _iso(waiting.enqueued_at),
        "wait_elapsed_s": round(waiting.waited_s, 1),
    }


def _task(running: Running) -> Json:
    return {
        "worker_id": f"{running.worker_id}/{running.slot}",
        "request_type": running.kind,
        "started_at": _iso(running.started_at),
        "elapsed_s": round(running.elapsed_s, 1),
        "estimated_remaining_s": round(running.remaining_s, 1),
        "estimate_is_guess": running.remaining_is_guess,
    }


def _iso(unix: float) -> str:
    return datetime.datetime.fromtimestamp(unix, datetime.UTC).isoformat(timespec="milliseconds")


def readiness(status: PoolStatus, has_workers: bool, draining: bool) -> Response:
    """Return whether a session can start here; `degraded` means that the shared queue is unavailable.

    `has_workers` is whether this adapter knows the model of a worker. A shared queue may know it earlier.
    """
    ready = status.workers > 0 and has_workers and not draining
    body = {
        "ready": ready,
        "workers": status.workers,
        "slots": status.slots,
        "free_slots": status.free_slots,
        "draining": draining,
        "degraded": status.is_degraded,
    }
    return answer(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, body)


def versions() -> Response:
    """Return the versions of the adapter and its parts."""
    return answer(HTTPStatus.OK, {"version": version("antiphon"), "protocol": PROTOCOL})


def about(
    status: PoolStatus, catalogue: Catalogue | None, options: AdapterOptions, tls_port: int | None
) -> Response:
    """Return the data that the web page needs before it connects; names of models only if no key is
    needed."""
    is_open = options.auth == "off"
    body = {
        "version": version("antiphon"),
        "needs_key": not is_open,
        "modes": sorted(catalogue.modes) if catalogue is not None else None,
        "models": _named(catalogue) if catalogue is not None and is_open else [],
        "slots": status.slots,
        "limits_s": {"audio": options.session_limit_audio_s, "video": options.session_limit_video_s},
        "tls_port": tls_port,
    }
    return answer(HTTPStatus.OK, body)


def _named(catalogue: Catalogue) -> list[Json]:
    return [{"id": name, "modes": modes_of(catalogue, name)} for name in sorted(catalogue.models)]


def page_file(file: PageFile, conditions: Sequence[str]) -> Response:
    """Return a file of the web page; `conditions` are the values of `If-None-Match`."""
    if file.is_known(conditions):
        return text(HTTPStatus.NOT_MODIFIED, b"", file.content_type, **_OF_PAGE, ETag=file.etag)
    return text(HTTPStatus.OK, file.content, file.content_type, **_OF_PAGE, ETag=file.etag)


_OF_PAGE: Final = {
    "Cache_Control": "no-cache",
    "Content_Security_Policy": POLICY,
    "Cross_Origin_Resource_Policy": "same-origin",
    "Permissions_Policy": "camera=(self), microphone=(self)",
    "Referrer_Policy": "no-referrer",
}


def not_found() -> Response:
    """Return 404."""
    return problem(HTTPStatus.NOT_FOUND, "not_found", "there is nothing at this path")


def upgrade_required() -> Response:
    """Return 426 for a request without an upgrade on a WebSocket path."""
    message = "this path speaks WebSocket: connect with a WebSocket client"
    return problem(HTTPStatus.UPGRADE_REQUIRED, "upgrade_required", message, Upgrade="websocket")


def method_not_allowed(*allowed: str) -> Response:
    """Return 405 for a method that the path does not have."""
    methods = ", ".join(allowed)
    message = f"this path takes {methods}"
    return problem(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", message, Allow=methods)


def body_refused(status: HTTPStatus, *allowed: str) -> Response:
    """Return the error for a request with a body, on a path without one."""
    code = "unsupported_encoding" if status is HTTPStatus.NOT_IMPLEMENTED else "body_not_allowed"
    message = "this path takes no body: send the request without one"
    return problem(status, code, message, Allow=", ".join(allowed))


def unreadable(status: HTTPStatus) -> Response:
    """Return the error for a request that is not HTTP/1.1, or whose head is too large."""
    return problem(status, *_UNREADABLE[status])


_UNREADABLE: Final = {
    HTTPStatus.BAD_REQUEST: ("invalid_request", "this is no valid request of HTTP/1.1"),
    HTTPStatus.REQUEST_URI_TOO_LONG: ("uri_too_long", "the first line of the request is too long"),
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: (
        "headers_too_large",
        "the request has too many headers, or one that is too long",
    ),
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: ("unsupported_version", "this port speaks HTTP/1.1"),
}


def unauthorized(message: str, *, asks: bool = False) -> Response:
    """Return 401. With `asks` a browser asks for the key, as the password of HTTP Basic."""
    response = problem(HTTPStatus.UNAUTHORIZED, "unauthorized", message, WWW_Authenticate="Bearer")
    if asks:
        # A header line of its own, since browsers ignore a second challenge in one line.
        response.headers["WWW-Authenticate"] = 'Basic realm="Antiphon: the key of an admin", charset="UTF-8"'
    return response


def forbidden(message: str) -> Response:
    """Return 403 for a known caller without the right."""
    return problem(HTTPStatus.FORBIDDEN, "forbidden", message)


def not_allowed(code: str, message: str) -> Response:
    """Return 403 for a key or client secret without this right."""
    return problem(HTTPStatus.FORBIDDEN, code, message)


def too_many(message: str, retry_s: int) -> Response:
    """Return 429 for a caller that connects too often, or too many times at once."""
    return problem(HTTPStatus.TOO_MANY_REQUESTS, "rate_limited", message, Retry_After=str(retry_s))


def quota_spent(message: str, retry_s: int) -> Response:
    """Return 429 for a key that has used up its quota of the day."""
    return problem(HTTPStatus.TOO_MANY_REQUESTS, "quota_exceeded", message, Retry_After=str(retry_s))


def unavailable(message: str) -> Response:
    """Return 503 while something that the request needs is unavailable."""
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, "service_unavailable", message, Retry_After="2")


def refused(status: HTTPStatus) -> Response:
    """Return the error for an invalid opening handshake, or for one that failed here."""
    if status is HTTPStatus.UPGRADE_REQUIRED:
        return upgrade_required()
    if status is HTTPStatus.INTERNAL_SERVER_ERROR:
        return problem(status, "internal_error", "the server could not answer; try again later")
    message = "this is no valid WebSocket handshake: connect with a WebSocket client"
    return problem(status, "invalid_handshake", message)


def without_body(response: Response) -> Response:
    """Return the response to a HEAD request, from the response to the same GET request."""
    return Response(response.status_code, response.reason_phrase, response.headers)
