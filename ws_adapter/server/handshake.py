"""The WebSocket handshake: it accepts or refuses clients, counts and traces them."""

import logging
from contextlib import suppress
from dataclasses import replace
from typing import Final

from opentelemetry.util.types import AttributeValue
from websockets.http11 import Request

from antiphon import contract
from antiphon_service import semconv
from antiphon_service.semconv import Rejection
from antiphon_service.telemetry.context import parse_traceparent
from antiphon_service.telemetry.providers import Telemetry
from ws_adapter.access.http.access import Access, Denied
from ws_adapter.access.keys import Key
from ws_adapter.access.rate_limit import Caller
from ws_adapter.observability.metrics import Metrics
from ws_adapter.observability.snapshot import Snapshot
from ws_adapter.observability.tracing import Upgrade
from ws_adapter.options import AdapterOptions
from ws_adapter.protocol.chat import ws_chat_events
from ws_adapter.protocol.completions import refusals as completions
from ws_adapter.protocol.core import render
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.duplex import ws_duplex_events
from ws_adapter.protocol.live import events as live_events
from ws_adapter.protocol.live.refusals import CODES
from ws_adapter.protocol.realtime_ga.wire import events as ga_events
from ws_adapter.protocol.realtime_ga.wire.refusals import CODES as GA_CODES
from ws_adapter.protocol.realtime_ga.wire.refusals import end_of
from ws_adapter.protocol.transcription import events
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import encode
from ws_adapter.protocol.wire.events import ServerEvent
from ws_adapter.resume.request import resume_request
from ws_adapter.resume.sessions import ResumableSessions
from ws_adapter.web.http_socket import HttpSocket
from ws_adapter.web.message import Disconnected
from ws_adapter.web.routes import Dialect, RefusedSession, Selection, describe
from ws_adapter.web.websocket import PublicConnection

logger = logging.getLogger(__name__)

KEY_HASH_DIGITS: Final = 12

_BETA: Final = "realtime=v1"


class Handshake:
    """The handshake of every WebSocket."""

    def __init__(
        self,
        options: AdapterOptions,
        access: Access,
        telemetry: Telemetry,
        metrics: Metrics,
        snapshot: Snapshot,
        resumables: ResumableSessions,
    ) -> None:
        self._options = options
        self._access = access
        self._telemetry = telemetry
        self._metrics = metrics
        self._snapshot = snapshot
        self._resumables = resumables

    async def enter(
        self,
        connection: PublicConnection | HttpSocket,
        request: Request,
        caller: Caller,
        found: Selection | RefusedSession,
    ) -> None:
        """Admit a WebSocket or an HTTP request for a session, and fill in its rights. Raises `Denied`."""
        try:
            is_websocket = isinstance(connection, PublicConnection)
            asked = resume_request(request.path) if is_websocket else None
            resumes = asked is not None and self._resumables.find(asked.token) is not None
            entry = await self._access.enter(request, caller, found, resumes=resumes)
        except Denied as denied:
            connection.upgrade = self._upgrade(request, found, None)
            connection.upgrade.answered(denied.response.status_code)
            connection.upgrade.end(denied.reason)
            raise
        connection.key = entry.key
        connection.tenant = entry.tenant
        connection.allowance = entry.allowance
        if isinstance(connection, PublicConnection):
            connection.leave = entry.leave
            connection.when_lost(lambda: connection.take_leave()())
        else:
            connection.when_lost(entry.leave)
        connection.rights = entry.rights
        if entry.key_rejection is not None:
            found = RefusedSession(found.dialect, errors.KEY_UNKNOWN, entry.key_rejection)
        elif found.dialect.is_ga and _is_beta(request):
            found = RefusedSession(found.dialect, errors.BETA)
        elif isinstance(found, Selection) and entry.session:
            found = replace(found, session=entry.session)
        connection.selection = found
        kind = found.kind if isinstance(found, Selection) else Kind.OMNI_DUPLEX
        connection.limit_messages(self._options.message_bytes_of(kind))
        connection.upgrade = self._upgrade(request, found, entry.key)
        connection.when_lost(connection.upgrade.end)

    def _upgrade(self, request: Request, found: Selection | RefusedSession, key: Key | None) -> Upgrade:
        """Return the trace of a request: a child of the client's for trusted keys, else linked to it."""
        context = None
        if traceparents := request.headers.get_all(contract.METADATA_TRACEPARENT):
            state = ",".join(request.headers.get_all(contract.METADATA_TRACESTATE))
            context = parse_traceparent(traceparents[0], state)
            self._metrics.invalid_trace_contexts += context is None
        attributes: dict[str, AttributeValue] = {
            semconv.ATTR_HTTP_METHOD: request.method,
            semconv.ATTR_URL_PATH: describe(request.path),
            semconv.ATTR_PROTOCOL: "http" if found.dialect is Dialect.COMPLETIONS else "websocket",
            semconv.ATTR_DIALECT: found.dialect.value,
            semconv.ATTR_QUEUE_LENGTH: self._snapshot.status.queue_length,
        }
        if key is not None:
            attributes[semconv.ATTR_KEY_HASH] = key.hash[:KEY_HASH_DIGITS]
        if key is not None and key.is_trusted:
            return Upgrade(self._telemetry, attributes, parent=context)
        return Upgrade(self._telemetry, attributes, linked=context)

    def rejected(self, reason: Rejection) -> None:
        """Count a rejected client."""
        self._metrics.rejected[reason] += 1
        logger.warning("client rejected", extra={"reason": reason})

    async def refuse(self, connection: PublicConnection, refusal: RefusedSession) -> None:
        """Send a connected client the reason of the refusal, and close."""
        upgrade, code, close = connection.upgrade, refusal.verdict.code, refusal.verdict.close
        assert upgrade is not None
        assert code is not None
        assert close is not None
        upgrade.end(code, is_ours=code.is_servers)
        self.rejected(refusal.reason or _REJECTIONS.get(refusal.verdict, Rejection.MODE))
        self._metrics.failed(code, is_servers=code.is_servers)
        event, reason = _refusal(refusal), str(code)
        if refusal.dialect.is_ga:
            end = end_of(refusal.verdict)
            close, reason = end.close, end.reason
        event.identify(upgrade.trace_id)
        with suppress(Disconnected):
            await connection.send_text(encode(event))
            await connection.close(close, reason)


_REJECTIONS: Final = {
    errors.KEY_WITHDRAWN: Rejection.AUTH,
    errors.KEY_EXPIRED: Rejection.EXPIRED,
    errors.SHUTTING_DOWN: Rejection.SHUTDOWN,
    errors.OVERLOADED: Rejection.FULL,
    errors.NO_WORKER: Rejection.FULL,
    errors.RESUME_FAILED: Rejection.RESUME,
    errors.RESUMES_FLOOD: Rejection.RATE,
    errors.OWNER_UNREACHABLE: Rejection.RESUME,
}
"""Rejection labels of clients that are refused after the upgrade."""


def _is_beta(request: Request) -> bool:
    """Return whether a client uses the beta protocol, from before general availability."""
    betas = ",".join(request.headers.get_all("OpenAI-Beta"))
    return any(beta.strip().lower() == _BETA for beta in betas.split(","))


def _refusal(refusal: RefusedSession) -> ServerEvent:
    code, message = refusal.verdict.code, refusal.verdict.message
    assert code is not None
    match refusal.dialect:
        case Dialect.REALTIME:
            return render.error(code, message)
        case Dialect.DUPLEX:
            return ws_duplex_events.Error(error=message, code=code, message=message)
        case Dialect.CHAT:
            return ws_chat_events.Error(error=message, code=code)
        case Dialect.TRANSCRIPTION:
            return events.Error(error=message, code=events.Code(code))
        case Dialect.LIVE:
            return live_events.error(CODES[code], message, "event_refused", None, None)
        case Dialect.REALTIME_GA | Dialect.TRANSCRIPTION_GA:
            return ga_events.error("event_refused", GA_CODES[code], message)
        case Dialect.COMPLETIONS:
            return completions.error(code, message, None)
