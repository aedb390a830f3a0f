"""The administration port: what only an operator may see."""

import logging
from http import HTTPStatus
from importlib.metadata import version
from typing import Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from ws_adapter import pages
from ws_adapter.access import Access, Denied
from ws_adapter.dispatch.base import POOL, Dispatcher, Kind
from ws_adapter.errors import CannotListen
from ws_adapter.fleet import Condition, Fleet
from ws_adapter.load import Load
from ws_adapter.metrics import CONTENT_TYPE, Family, Tally, exposition, gauge
from ws_adapter.site import READING

_quiet = logging.getLogger(f"{__name__}.websockets")
_quiet.setLevel(logging.WARNING)  # a scrape is no event

OPEN_TIMEOUT_S: Final = 5.0


class Administration:
    """Serves `/metrics` on a port of its own; with keys only to admins."""

    def __init__(
        self, access: Access, dispatcher: Dispatcher, fleet: Fleet, load: Load, tally: Tally
    ) -> None:
        self._access = access
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._load = load
        self._tally = tally
        self._server: Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises `CannotListen`."""
        try:
            self._server = await serve(
                _no_websocket,
                host,
                port,
                process_request=self._respond,
                open_timeout=OPEN_TIMEOUT_S,
                server_header=None,
                logger=_quiet,
            )
        except OSError as error:
            raise CannotListen("--admin-port", host, port, error) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _respond(self, connection: ServerConnection, request: Request) -> Response:
        try:
            response = await self._answer(request)
        except Denied as denied:
            response = denied.response
        return pages.without_body(response) if request.method == "HEAD" else response

    async def _answer(self, request: Request) -> Response:
        if request.path.partition("?")[0] != "/metrics":
            return pages.not_found()
        self._access.check_origin(request)
        self._access.identify(request, admin=True)
        if request.method not in READING:
            return pages.method_not_allowed(*READING)
        return pages.text(HTTPStatus.OK, exposition(await self._families()), CONTENT_TYPE)

    async def _families(self) -> list[Family]:
        status = await self._dispatcher.status(POOL)
        workers, tally, load = self._fleet.conditions(), self._tally, self._load
        return [
            Family("build_info", "What runs here.", {(version("antiphon"),): 1}, ("version",)),
            Family(
                "workers",
                "Workers by their condition.",
                {(condition,): workers[condition] for condition in Condition},
                ("state",),
            ),
            Family(
                "slots",
                "Slots of the workers that are ready.",
                {("free",): status.free_slots, ("held",): status.slots - status.free_slots},
                ("state",),
            ),
            gauge("queue_length", "Sessions that wait for a slot.", status.queue_length),
            Family(
                "sessions_active",
                "Sessions that wait or talk.",
                {(kind,): tally.active[kind] for kind in Kind},
                ("kind",),
            ),
            Family(
                "sessions_total",
                "Sessions that are over.",
                {(kind, reason): count for (kind, reason), count in tally.ended.items()},
                ("kind", "reason"),
                "counter",
            ),
            Family(
                "rejected_total",
                "Clients that were not let in.",
                {(code,): count for code, count in tally.rejected.items()},
                ("reason",),
                "counter",
            ),
            gauge("inflight_bytes", "Input and output of all sessions.", load.inflight_bytes),
            gauge("cpu_cores", "Cores in use, mean of 3 s.", load.cpu),
            gauge("event_loop_lag_mean_seconds", "Lateness of timers, mean of 3 s.", load.loop_lag_s),
        ]


async def _no_websocket(connection: ServerConnection) -> None:
    """Never called: every request is answered."""
