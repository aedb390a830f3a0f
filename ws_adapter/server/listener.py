"""The public server: WebSockets and HTTP on one port."""

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http import HTTPMethod, HTTPStatus
from typing import Any, Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import InvalidHandshake
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from antiphon_service import semconv
from antiphon_service.listening import bind_all
from antiphon_service.semconv import Rejection
from antiphon_service.telemetry.logs import SessionFields, session_log
from antiphon_service.telemetry.port import stop_listening
from ws_adapter.access.http.access import Access, Denied
from ws_adapter.dispatch.base import Priority
from ws_adapter.forwarding.acceptor import PeerAcceptor
from ws_adapter.forwarding.forwarder import Forwarder
from ws_adapter.observability.metrics import Metrics, known_reason
from ws_adapter.observability.session_telemetry import SessionTelemetry
from ws_adapter.options import AdapterOptions
from ws_adapter.pages import openai_errors, responses
from ws_adapter.process.call_queue import CallQueue
from ws_adapter.process.clock import Clock, sleep
from ws_adapter.process.errors import CannotListen
from ws_adapter.process.handshake_queue import HandshakeQueue
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import CloseCode, Verdict
from ws_adapter.recording.folder import Client
from ws_adapter.recording.recorder import Recorder
from ws_adapter.resume.connection import ResumableConnection
from ws_adapter.resume.request import ResumeRequest, resume_request
from ws_adapter.resume.sessions import ResumableSessions
from ws_adapter.server.handshake import Handshake
from ws_adapter.server.pages import READING, Pages
from ws_adapter.server.protocols import MachineFactory
from ws_adapter.server.takeover import Takeovers
from ws_adapter.session.catalogue import SessionCatalogue
from ws_adapter.session.journal_writer import TakenSession
from ws_adapter.session.pausable_clock import PausableClock
from ws_adapter.session.pending_sessions import PendingSessions
from ws_adapter.session.services import Services
from ws_adapter.session.session import CLOSE_TIMEOUT_S, Session
from ws_adapter.session.slot import Identity
from ws_adapter.usage.accounts import About
from ws_adapter.usage.tenant import NOBODY
from ws_adapter.web.http1 import HttpRequest
from ws_adapter.web.http_socket import HttpSocket, TooLarge
from ws_adapter.web.message import Arriving, Disconnected
from ws_adapter.web.routes import (
    COMPLETING,
    SUBPROTOCOL,
    Dialect,
    RefusedSession,
    Selection,
    describe,
    offered_subprotocols,
    select,
)
from ws_adapter.web.session_ids import new_session_id
from ws_adapter.web.tls import Certificate
from ws_adapter.web.websocket import WRITE_LIMIT, PublicConnection

logger = logging.getLogger(__name__)

_quiet = logging.getLogger(f"{__name__}.websockets")
_quiet.setLevel(logging.WARNING)  # each session logs its own beginning and end
_quiet.addFilter(lambda record: not _is_of_a_client(record))

OPEN_TIMEOUT_S: Final = 5.0
PING_S: Final = 20.0
BODY_TIMEOUT_S: Final = 60.0
"""The seconds within which the body of a request for a session must arrive."""

BACKLOG: Final = 1024
"""The connections that the kernel queues until they are accepted. Beyond them a Unix socket refuses, and a
TCP client retries after a second."""

ACCEPTED_AT_ONCE: Final = 4
"""The connections that one pass of the event loop accepts: each takes 0.6 ms, and delays the units of all
sessions."""

RECEIVE_QUEUE: Final = 4
SEND_BUFFER_BYTES: Final = 128 * 1024
"""The size of the kernel's send buffer: data in it cannot be withdrawn."""

SPREAD_S: Final = 30.0
"""The seconds over which the last sessions of a drain end one by one, so that clients return one by one."""

_PASSES: Final = 8 + BACKLOG // ACCEPTED_AT_ONCE
"""Passes of the event loop that suffice to accept the whole backlog."""

_LOOK_S: Final = 0.01
"""The seconds between two checks whether a handshake or a waiting session is left."""

TRACE_ID_HEADER: Final = "antiphon-trace-id"
LONGEST_USER_AGENT: Final = 256
_UPGRADED: Final = HTTPStatus.SWITCHING_PROTOCOLS


class PublicServer:
    """The public server, until it is drained and closed."""

    def __init__(
        self,
        services: Services,
        access: Access,
        handshake: Handshake,
        pages: Pages,
        metrics: Metrics,
        resumables: ResumableSessions,
        certificate: Certificate | None = None,
        recorder: Recorder | None = None,
        forwarder: Forwarder | None = None,
        acceptor: PeerAcceptor | None = None,
        takeovers: Takeovers | None = None,
    ) -> None:
        """With a `certificate` the server listens with TLS too; a `recorder` records every session.

        The `forwarder` forwards connections whose session another adapter has, the `acceptor` accepts those
        that other adapters forward, and `takeovers` continue sessions of dead adapters.
        """
        self._services = services
        options = services.options
        self._access = access
        self._handshake = handshake
        self._pages = pages
        self._metrics = metrics
        self._resumables = resumables
        self._certificate = certificate
        self._recorder = recorder
        self._forwarder = forwarder
        self._acceptor = acceptor
        self._takeovers = takeovers
        self._peer_servers: list[Server] = []
        """Servers for connections that other adapters forward, which stay open while sessions run."""
        self._mode = Mode(options.default_realtime_mode)
        self._machines = MachineFactory(services.clock)
        self.handshakes = HandshakeQueue(options.handshakes_per_s, services.clock, self._reject)
        self._arriving = Arriving(options.max_inflight_bytes)
        self._sessions: dict[Session, PublicConnection | HttpSocket] = {}
        self._pending = PendingSessions()
        self._empty = asyncio.Event()
        self._empty.set()
        self._servers: list[Server] = []
        self._requests: dict[asyncio.Task[None], HttpSocket] = {}
        """Requests that sessions answer."""
        self._losses = CallQueue()
        self._coming: set[PublicConnection] = set()
        """Connections whose handshake is not over."""

    @property
    def _options(self) -> AdapterOptions:
        return self._services.options

    async def start(self) -> list[str]:
        """Listen; return the addresses for clients: `http://host:port`, and with TLS `https://host:port`.

        Raises `CannotListen`.
        """
        options = self._options
        if self._acceptor is not None:
            for sock in self._acceptor.take_sockets():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                self._peer_servers.append(
                    await self._serve_on(
                        sock, self._acceptor.context, introduction=self._acceptor.introduction
                    )
                )
        addresses = [f"http://{await self._listen(options.host, options.port, None)}"]
        if self._certificate is not None:
            host = options.tls_host or options.host
            address = await self._listen(host, options.tls_port, self._certificate)
            self._pages.tls_port = int(address.rpartition(":")[2])
            addresses.append(f"https://{address}")
        return addresses

    async def _listen(self, host: str, port: int, certificate: Certificate | None) -> str:
        """Listen on all addresses of a host; return one of them with the port. Raises `CannotListen`."""
        try:
            sockets = bind_all(host, port, reuse_port=self._options.reuse_port)
            for sock in sockets:
                # Accepted connections inherit the buffer size.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                context = certificate.context if certificate is not None else None
                self._servers.append(await self._serve_on(sock, context, forward=self._forward))
        except OSError as error:
            raise CannotListen("--tls-port" if certificate else "--port", host, port, error) from error
        host, port = sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _enter(self, connection: PublicConnection) -> bool:
        """Return whether a handshake may begin now; else the connection waits for its turn."""
        assert connection.http_request is not None
        address = self._access.caller(connection.http_request, connection.peer).name
        return self.handshakes.enter(connection, address)

    def _reject(self, connection: PublicConnection) -> None:
        self._metrics.rejected[Rejection.FULL] += 1  # no log line: there would be too many
        connection.reject(responses.unavailable("too many clients connect at once; try again in a moment"))

    def _forward(self, connection: PublicConnection) -> bool:
        return self._forwarder is not None and self._forwarder.take(connection)

    async def _serve_on(self, sock: socket.socket, context: ssl.SSLContext | None, **how: Any) -> Server:
        """Start a server on a socket; see `PublicConnection` for connections that are forwarded or
        introduced."""
        tls: dict[str, Any] = {}
        if context is not None:
            tls = {
                "ssl": context,
                "ssl_handshake_timeout": OPEN_TIMEOUT_S,
                "ssl_shutdown_timeout": CLOSE_TIMEOUT_S,
            }
        server = await serve(
            self._serve,
            sock=sock,
            backlog=ACCEPTED_AT_ONCE,  # asyncio accepts this many in each pass
            process_request=self._open,
            process_response=_finish_response,
            select_subprotocol=_select_subprotocol,
            compression=None,
            server_header=None,
            open_timeout=OPEN_TIMEOUT_S,
            ping_interval=None,  # `PublicConnection.keep_alive` pings instead
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=min(map(self._options.message_bytes_of, Kind)),  # until the kind of session is known
            max_queue=RECEIVE_QUEUE,
            write_limit=WRITE_LIMIT,
            logger=_quiet,
            create_connection=partial(  # type: ignore[arg-type]
                PublicConnection,
                arriving=self._arriving,
                byte_count=self._metrics.public_bytes,
                answer=self._answer,
                coming=self._coming,
                losses=self._losses,
                open_session=self._take_request,
                enter=self._enter,
                **how,
            ),
            **tls,
        )
        sock.listen(BACKLOG)
        return server

    async def drain(self) -> None:
        """Reject new and waiting clients; let sessions run for `drain_timeout_s` seconds, then end them.

        Returns when the last session is over. The adapter first leaves a shared port, so that other processes
        get the new connections.
        """
        if self._options.reuse_port:
            await self._leave_port()
        self._stop_admitting()
        for session in [session for session in self._sessions if session.is_waiting]:
            session.shut_down()
        spread = min(SPREAD_S, self._options.drain_timeout_s / 2)
        await self._until_empty(self._options.drain_timeout_s - spread)
        left = list(self._sessions)
        for session in left:
            await self._until_empty(spread / len(left))
            if not session.hand_over():
                session.shut_down()
        await self._empty.wait()

    async def _leave_port(self) -> None:
        """Accept the backlog and stop listening, then wait a while for handshakes and slots."""
        await _accept_backlog()
        for server in self._servers:
            stop_listening(server)
        await _accept_backlog()
        for _ in range(round(OPEN_TIMEOUT_S / _LOOK_S)):
            if not self._has_waiting_clients():
                break
            await asyncio.sleep(_LOOK_S)

    def _has_waiting_clients(self) -> bool:
        """Return whether any connection is in the handshake, or any session waits for a slot."""
        return bool(self._coming) or any(session.is_waiting for session in self._sessions)

    async def close(self) -> None:
        """End all sessions at once and stop listening."""
        self._stop_admitting()
        for session in list(self._sessions):
            if not session.hand_over():
                session.shut_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._empty.wait()
        if self._forwarder is not None:
            await self._forwarder.close()
        servers = [*self._servers, *self._peer_servers]
        self.handshakes.close()
        for server in servers:
            server.close()
        if self._acceptor is not None:
            self._acceptor.close()
        for request in self._requests.values():
            request.abort()
        if self._requests:
            await asyncio.wait(list(self._requests))
        for server in servers:
            await server.wait_closed()

    def _stop_admitting(self) -> None:
        self._services.load.is_draining = True

    def end_withdrawn(self) -> None:
        """End the sessions of revoked and expired keys."""
        for session, connection in list(self._sessions.items()):
            if (verdict := self._access.end_of(connection.key)) is not None:
                session.end(verdict)

    async def _until_empty(self, seconds: float) -> None:
        over = asyncio.create_task(sleep(self._services.clock, seconds))
        empty = asyncio.create_task(self._empty.wait())
        try:
            await asyncio.wait({over, empty}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            empty.cancel()

    # -------------------------------------------------------------------------------------- HTTP

    async def _answer(self, connection: PublicConnection, request: HttpRequest) -> Response:
        """Answer a request that opens no WebSocket."""
        try:
            response = await self._respond(connection, request)
        except Exception:
            logger.exception("request failed")
            response = None
        response = response or responses.refused(HTTPStatus.INTERNAL_SERVER_ERROR)
        _log(request, HTTPStatus(response.status_code))
        return response

    async def _open(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return None to open a WebSocket, else an HTTP answer."""
        assert isinstance(connection, PublicConnection)
        assert connection.http_request is not None
        return await self._respond(connection, connection.http_request)

    async def _respond(self, connection: PublicConnection, request: HttpRequest) -> Response | None:
        """Return an HTTP answer, or None to upgrade to a WebSocket."""
        caller = self._access.caller(request, connection.peer)
        found = self._select(request)
        try:
            if found is None or not request.wants_websocket:
                connection.allowance = self._access.allowance(caller)
                self._access.count_page(caller)
            if request.fault is not None:
                response = responses.unreadable(request.fault)
            elif found is None:
                response = await self._pages.answer(request, caller)
            elif request.method not in READING:
                response = responses.method_not_allowed("GET")
            elif request.refused_body is not None:
                response = responses.body_refused(request.refused_body, "GET")
            elif not request.wants_websocket:
                response = responses.upgrade_required()
            else:
                await self._handshake.enter(connection, request, caller, found)
                return None
        except Denied as denied:
            response = denied.response
            self._handshake.rejected(denied.reason)
        return responses.without_body(response) if request.method == "HEAD" else response

    # ----------------------------------------------------------------- requests for sessions

    def _take_request(self, connection: HttpSocket) -> None:
        task = asyncio.create_task(self._serve_request(connection))
        self._requests[task] = connection
        task.add_done_callback(self._requests.pop)

    async def _serve_request(self, connection: HttpSocket) -> None:
        """Answer an HTTP request with a session of its own, or refuse it."""
        request = connection.http_request
        try:
            refusal = await self._refusal_of(connection)
            if refusal is not None:
                connection.refuse(refusal)
                await connection.wait_closed()
            else:
                await self._run(connection, COMPLETING)
        except Disconnected:
            pass
        except Exception:
            logger.exception("request failed: connection aborted")
            connection.abort()
        if connection.status:
            _log(request, HTTPStatus(connection.status))

    async def _refusal_of(self, connection: HttpSocket) -> Response | None:
        """Admit a request and read its body; return the answer if it is refused, else None.

        Raises `Disconnected`.
        """
        request = connection.http_request
        caller = self._access.caller(request, connection.peer)
        try:
            await self._handshake.enter(connection, request, caller, COMPLETING)
        except Denied as denied:
            self._handshake.rejected(denied.reason)
            return openai_errors.in_openai_form(denied.response)
        response, reason = None, Rejection.SIZE
        most = self._options.message_bytes_of(Kind.CHAT)
        if self._services.load.is_draining:
            response, reason = openai_errors.unavailable(errors.SHUTTING_DOWN), Rejection.SHUTDOWN
        elif "Transfer-Encoding" in request.headers or len(request.headers.get_all("Content-Length")) != 1:
            response = openai_errors.error(
                HTTPStatus.LENGTH_REQUIRED, "length_required", openai_errors.NO_LENGTH
            )
        elif request.size > most:
            response = openai_errors.too_large(most)
        elif not connection.may_send():
            message = errors.ADDRESS_FLOOD.message
            response = openai_errors.error(
                HTTPStatus.TOO_MANY_REQUESTS, "rate_limit_exceeded", message, Retry_After="10"
            )
            reason = Rejection.RATE
        else:
            try:
                await connection.read_body(BODY_TIMEOUT_S)
            except TimeoutError:
                message = f"the body did not arrive within {BODY_TIMEOUT_S:g} s: send it again"
                response = openai_errors.error(HTTPStatus.REQUEST_TIMEOUT, "body_timeout", message)
            except TooLarge:
                response, reason = openai_errors.unavailable(errors.OVERLOADED), Rejection.FULL
            else:
                if (verdict := self._verdict_on_new_session()) is not None:
                    response, reason = openai_errors.unavailable(verdict), Rejection.FULL
        if response is not None:
            self._handshake.rejected(reason)
        return response

    def _verdict_on_new_session(self) -> Verdict | None:
        """Return the reason why no new session is admitted; None if a session may begin."""
        if self._services.load.is_draining:
            return errors.SHUTTING_DOWN
        return None if self._services.load.admit() else errors.OVERLOADED

    # --------------------------------------------------------------------------------- WebSocket

    def _select(self, request: Request) -> Selection | RefusedSession | None:
        offered = offered_subprotocols(request.headers.get_all("Sec-WebSocket-Protocol"))
        catalogue = self._services.registry.catalogue()
        served = catalogue.modes if catalogue is not None else None
        resumes = resume_request(request.path) is not None
        if resumes:
            served = frozenset(Mode)  # a resumed session may have a mode that no ready worker serves
        opened = self._access.opened_by(request, resumes=resumes)
        holds_chats = catalogue.holds_chats if catalogue is not None else lambda model: True
        return select(request.path, offered, self._mode, served, opened, holds_chats)

    async def _serve(self, connection: ServerConnection) -> None:
        assert isinstance(connection, PublicConnection)
        self._coming.discard(connection)
        pinging = asyncio.create_task(connection.keep_alive(PING_S, PING_S))
        try:
            await self._serve_opened(connection)
        finally:
            pinging.cancel()

    async def _serve_opened(self, connection: PublicConnection) -> None:
        selection = connection.selection
        assert selection is not None
        assert connection.request is not None
        asked = resume_request(connection.request.path)
        taken: TakenSession | None = None
        if isinstance(selection, Selection):
            if (verdict := self._access.end_of(connection.key)) is not None:
                selection = RefusedSession(selection.dialect, verdict)
            elif connection.verdict not in (None, errors.OWNER_UNREACHABLE):
                assert connection.verdict is not None
                selection = RefusedSession(selection.dialect, connection.verdict)
            elif asked is not None:
                refused = connection.verdict or self._resume(connection, asked)
                if refused is None:
                    await connection.wait_closed()
                    return
                if self._takeovers is not None and refused is not errors.RESUMES_FLOOD:
                    found = await self._take_over(self._takeovers, connection, asked, selection)
                    taken, refused = (None, found) if isinstance(found, Verdict) else (found, refused)
                if taken is None:
                    if refused is errors.RESUME_FAILED:
                        self._resumables.refused()
                    selection = RefusedSession(selection.dialect, refused)
            elif (verdict := self._verdict_on_new_session()) is not None:
                selection = RefusedSession(selection.dialect, verdict)
        if isinstance(selection, RefusedSession):
            await self._handshake.refuse(connection, selection)
        else:
            await self._run(connection, selection, taken)

    async def _take_over(
        self,
        takeovers: Takeovers,
        connection: PublicConnection,
        asked: ResumeRequest,
        selection: Selection,
    ) -> TakenSession | Verdict:
        """Take over the session of a dead adapter; return the reason if that is impossible."""
        if self._verdict_on_new_session() is not None:
            return errors.OWNER_UNREACHABLE  # another adapter may have capacity
        found = await takeovers.take(connection, asked, selection)
        if isinstance(found, TakenSession):
            self._resumables.taken_over()
        return found

    def _resume(self, connection: PublicConnection, asked: ResumeRequest) -> Verdict | None:
        """Attach a connection to its session; return None on success, else the reason."""
        session, nonce = self._resumables.find(asked.token) or (None, b"")
        if session is None or not session.is_for(connection):
            return errors.RESUME_FAILED
        if not session.may_resume():
            return errors.RESUMES_FLOOD
        return None if session.resume(connection, asked.last_event, nonce) else errors.RESUME_FAILED

    async def _run(
        self,
        connection: PublicConnection | HttpSocket,
        selection: Selection,
        taken: TakenSession | None = None,
    ) -> None:
        session_id = taken.session_id if taken is not None else new_session_id(selection.dialect)
        label = taken.label if taken is not None else selection.label or session_id
        clock = PausableClock(self._services.clock)
        telemetry = self._telemetry_of(connection, selection, session_id, clock)
        recording = None
        if self._recorder is not None:
            recording = self._recorder.begin(label, selection.mode, self._describe(connection))
        catalogue = SessionCatalogue(self._services.registry, selection.mode, connection.rights)
        machine = self._machines.make(
            selection,
            session_id,
            self._options.limits(selection.kind),
            catalogue,
            clock,
            recording.recording_id if recording is not None else None,
        )
        upgrade = connection.upgrade
        assert upgrade is not None
        tenant = connection.tenant or f"session:{secrets.token_hex(16)}"
        key = connection.key
        via = "http" if isinstance(connection, HttpSocket) else "websocket"
        about = About(session_id, selection.kind.value, selection.dialect.value, via)
        meter = self._services.accounts.meter(key.tenant if key is not None else NOBODY, about)
        priority = key.priority if key is not None else Priority.NORMAL
        identity = Identity(session_id, selection.kind, label, upgrade.trace_id, tenant, meter, priority)
        socket = self._socket_of(connection, selection, session_id)
        session = Session(
            identity, socket, machine, self._services, telemetry, catalogue, clock, recording, taken
        )
        self._sessions[session] = connection
        self._empty.clear()
        if selection.dialect is Dialect.LIVE:
            self._pending.enter(session, connection.tenant)
        try:
            await session.run()
        finally:
            del self._sessions[session]
            self._pending.leave(session)
            if isinstance(socket, ResumableConnection):
                socket.end()
                connection = socket.connection
            if connection.was_too_large or connection.closed_with == CloseCode.MESSAGE_TOO_BIG:
                self._handshake.rejected(Rejection.SIZE)
            telemetry.ended(session.end_reason, connection.closed_with)
            meter.end(known_reason(session.end_reason))
            if not self._sessions:
                self._empty.set()

    def _socket_of(
        self, connection: PublicConnection | HttpSocket, selection: Selection, session_id: str
    ) -> PublicConnection | HttpSocket | ResumableConnection:
        window_s = self._options.resume_window_s
        if not window_s or isinstance(connection, HttpSocket):
            return connection
        clock = self._services.clock
        return ResumableConnection(connection, session_id, selection, self._resumables, clock, window_s)

    def _telemetry_of(
        self,
        connection: PublicConnection | HttpSocket,
        selection: Selection,
        session_id: str,
        clock: Clock,
    ) -> SessionTelemetry:
        """Return the telemetry of a session, and add its id to all log lines of its tasks from now on."""
        upgrade = connection.upgrade
        assert upgrade is not None
        fields = SessionFields(session_id, trace_id=upgrade.trace_id, span_id=upgrade.span_id)
        session_log.set(fields)
        trace = upgrade.session(
            {
                semconv.ATTR_SESSION_ID: session_id,
                semconv.ATTR_MODE: selection.kind.value,
                semconv.ATTR_DIALECT: selection.dialect.value,
            }
        )
        kind, dialect = selection.kind, selection.dialect.value
        assert connection.allowance is not None
        return SessionTelemetry(
            self._metrics,
            trace,
            fields,
            kind,
            dialect,
            clock,
            connection.allowance.lines.take,
        )

    def _describe(self, connection: PublicConnection | HttpSocket) -> Client:
        assert connection.request is not None
        address = self._access.caller(connection.request, connection.peer).address
        agents = connection.request.headers.get_all("User-Agent")
        return Client(
            str(address),
            connection.key.name if connection.key is not None else None,
            agents[0][:LONGEST_USER_AGENT].encode("ascii", "replace").decode() if agents else None,
        )


async def _accept_backlog() -> None:
    """Let the event loop accept the backlog and begin the handshakes."""
    for _ in range(_PASSES):
        await asyncio.sleep(0)


def _finish_response(connection: ServerConnection, request: Request, response: Response) -> Response | None:
    """Replace an answer of the library itself by one in the common form, else add the trace id to it."""
    assert isinstance(connection, PublicConnection)
    assert connection.http_request is not None
    status = HTTPStatus(response.status_code)
    _log(connection.http_request, status)
    if responses.OWN not in response.headers and status is not _UPGRADED:
        return responses.refused(status)
    if connection.upgrade is not None:
        connection.upgrade.answered(status)
        response.headers[TRACE_ID_HEADER] = connection.upgrade.trace_id
    return None


def _is_of_a_client(record: logging.LogRecord) -> bool:
    """Return whether a log record, which `websockets` before 17 makes, is about an invalid handshake."""
    return record.exc_info is not None and isinstance(record.exc_info[1], InvalidHandshake)


def _log(request: HttpRequest, status: HTTPStatus) -> None:
    """Log a request that was not served as intended."""
    if status is _UPGRADED or status < HTTPStatus.BAD_REQUEST or status is HTTPStatus.SERVICE_UNAVAILABLE:
        return
    # Equal warnings are collapsed, so the text of the warning must not hold what a client chooses.
    method = request.method if request.method in set(HTTPMethod) else "a request"
    path = describe(request.path)
    logger.warning(f"{method} was answered {status.value}", extra={"path": path, "status": status.value})


def _select_subprotocol(
    connection: ServerConnection, subprotocols: Sequence[Subprotocol]
) -> Subprotocol | None:
    """Return `realtime` if it is offered, else None."""
    return Subprotocol(SUBPROTOCOL) if SUBPROTOCOL in subprotocols else None
