"""HTTP answers. No route takes a body."""

import datetime
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Response

from ws_adapter.dispatch.base import PoolStatus

PROTOCOL: Final = "antiphon.v1"


def answer(status: HTTPStatus, body: Any, **headers: str) -> Response:
    """A JSON response; underscores in names of headers stand for hyphens."""
    data = msgspec.json.encode(body)
    fields = Headers(
        {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            "Connection": "close",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
    )
    for name, value in headers.items():
        fields[name.replace("_", "-")] = value
    return Response(status.value, status.phrase, fields, data)


def problem(status: HTTPStatus, code: str, message: str, **headers: str) -> Response:
    """An error as every route answers it."""
    return answer(status, {"error": {"code": code, "message": message}, "detail": message}, **headers)


def health() -> Response:
    """The process is alive."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    return answer(HTTPStatus.OK, {"status": "healthy", "timestamp": now})


def readiness(status: PoolStatus, draining: bool) -> Response:
    """Whether a session could start here."""
    ready = status.workers > 0 and not draining
    body = {
        "ready": ready,
        "workers": status.workers,
        "slots": status.slots,
        "free_slots": status.free_slots,
        "draining": draining,
    }
    return answer(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, body)


def versions() -> Response:
    """What runs here."""
    return answer(HTTPStatus.OK, {"version": version("antiphon"), "protocol": PROTOCOL})


def not_found() -> Response:
    """No such route."""
    return problem(HTTPStatus.NOT_FOUND, "not_found", "there is nothing at this path")


def upgrade_required() -> Response:
    """A plain request where a WebSocket is spoken."""
    message = "this path speaks WebSocket: connect with a WebSocket client"
    return problem(HTTPStatus.UPGRADE_REQUIRED, "upgrade_required", message, Upgrade="websocket")


def method_not_allowed() -> Response:
    """Anything but GET."""
    message = "only GET is served here"
    return problem(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", message, Allow="GET")
