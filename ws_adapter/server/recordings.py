"""Recordings over HTTP: a caller lists, fetches and deletes its own."""

import re
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from websockets.http11 import Response

from ws_adapter.access.keys import Key
from ws_adapter.access.rate_limit import Caller
from ws_adapter.pages import responses
from ws_adapter.process.errors import RecorderBusy
from ws_adapter.recording.library import LARGEST_PART, Library, NoRecording, Part, Sees, StillRunning
from ws_adapter.web.http1 import HttpRequest

MOST_LISTED: Final = 1000
_USUAL_LIMIT: Final = 100
_RANGE: Final = re.compile(r"bytes=([0-9]{1,15})-([0-9]{0,15})")
_TYPES: Final = {
    "json": responses.JSON,
    "jsonl": "application/x-ndjson",
    "wav": "audio/wav",
    "jpg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "txt": "text/plain; charset=utf-8",
}


def visible_to(key: Key | None, caller: Caller) -> Sees | None:
    """Return a filter of the recordings that a caller may see; None if it may see none.

    An admin sees all recordings, and the holder of another key its own. Callers without a key see all if
    they are on this machine, else none.
    """
    if key is None:
        return (lambda of: True) if caller.is_local else None
    if key.is_admin:
        return lambda of: True
    return lambda of: of == f"key {key.name}"


async def answer(request: HttpRequest, rest: str, library: Library | None, sees: Sees | None) -> Response:
    """Answer a request below `/api/sessions`; `rest` is the path after that."""
    if library is None:
        return responses.not_found()
    if sees is None:
        return responses.forbidden("recordings need a key, or a caller on this machine: pass --auth keys")
    try:
        return await _answer(request, rest, library, sees)
    except NoRecording:
        return responses.not_found()
    except StillRunning:
        message = "the session is still running; delete its recording when it is over"
        return responses.problem(HTTPStatus.CONFLICT, "session_running", message)
    except RecorderBusy:
        message = "too many requests for recordings; try again later"
        return responses.problem(HTTPStatus.SERVICE_UNAVAILABLE, "service_unavailable", message)


async def _answer(request: HttpRequest, rest: str, library: Library, sees: Sees) -> Response:
    name, _, path = rest.partition("/")
    if not name:
        return await _list(request, library, sees)
    if request.method == "DELETE":
        if path:
            return responses.method_not_allowed("GET", "HEAD")
        await library.remove(name, sees)
        return responses.answer(HTTPStatus.OK, {"success": True, "recording_id": name})
    if not path:
        return responses.answer(HTTPStatus.OK, await library.summary(name, sees))
    bounds = _bounds(request)
    if bounds is None:
        message = "expected Range: bytes=START-END, or none"
        return responses.problem(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "invalid_range", message)
    start, size, is_asked = bounds
    if path == "recording":
        part = await library.stream(name, sees, start, size)
        return _part(part, _TYPES["jsonl"], is_asked=is_asked)
    asset = path.removeprefix("assets/")
    if asset == path:
        raise NoRecording
    part = await library.file(name, asset, sees, start, size)
    content_type = _TYPES.get(asset.rpartition(".")[2], "application/octet-stream")
    return _part(part, content_type, is_asked=is_asked)


async def _list(request: HttpRequest, library: Library, sees: Sees) -> Response:
    query = parse_qs(request.path.partition("?")[2])
    limit, offset = (_number(query, name, usual) for name, usual in (("limit", _USUAL_LIMIT), ("offset", 0)))
    if limit is None or offset is None or not 1 <= limit <= MOST_LISTED:
        message = f"expected limit from 1 to {MOST_LISTED} and offset from 0 on"
        return responses.problem(HTTPStatus.BAD_REQUEST, "invalid_request", message)
    total, sessions = await library.page(sees, limit, offset)
    return responses.answer(HTTPStatus.OK, {"total": total, "sessions": sessions})


def _number(query: dict[str, list[str]], name: str, usual: int) -> int | None:
    given = query.get(name, [str(usual)])[0]
    return int(given) if given.isascii() and given.isdecimal() and len(given) <= 9 else None


def _bounds(request: HttpRequest) -> tuple[int, int, bool] | None:
    """Return offset, size and whether they were requested; None for a bad range."""
    given = request.headers.get_all("Range")
    if not given:
        return 0, LARGEST_PART, False
    found = _RANGE.fullmatch(given[0].strip())
    if found is None or len(given) > 1:
        return None
    start = int(found[1])
    size = int(found[2]) - start + 1 if found[2] else LARGEST_PART
    return (start, min(size, LARGEST_PART), True) if size > 0 else None


def _part(part: Part, content_type: str, *, is_asked: bool) -> Response:
    headers: dict[str, Any] = {"Accept_Ranges": "bytes"}
    end = part.start + len(part.data)
    if is_asked:
        if part.start >= part.total:
            message = f"the file has {part.total} bytes"
            status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            return responses.problem(status, "invalid_range", message, Content_Range=f"bytes */{part.total}")
        headers["Content_Range"] = f"bytes {part.start}-{end - 1}/{part.total}"
        return responses.text(HTTPStatus.PARTIAL_CONTENT, part.data, content_type, **headers)
    if end < part.total:
        message = f"the file has {part.total} bytes: ask for at most {LARGEST_PART} at once by Range"
        return responses.problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", message, **headers)
    return responses.text(HTTPStatus.OK, part.data, content_type, **headers)
