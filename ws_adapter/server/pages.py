"""The HTTP pages about the adapter's state, its queue and its models."""

from collections.abc import Mapping
from typing import Final

from websockets.http11 import Response

from ws_adapter.access.http import client_secrets
from ws_adapter.access.http.access import Access
from ws_adapter.access.keys import Key
from ws_adapter.access.rate_limit import Caller
from ws_adapter.observability.leases import Leases
from ws_adapter.pages import openai_errors, responses
from ws_adapter.pages.default_voice import DefaultVoice
from ws_adapter.pages.files import PageFile
from ws_adapter.pages.slot_rows import Slots
from ws_adapter.recording.library import Library
from ws_adapter.server import recordings
from ws_adapter.session.catalogue import narrowed
from ws_adapter.session.services import Services
from ws_adapter.web.http1 import HttpRequest
from ws_adapter.web.routes import Page, find_page

READING: Final = ("GET", "HEAD")

_METHODS: Final = {
    Page.TICKET: (*READING, "DELETE"),
    Page.CLIENT_SECRETS: ("POST",),
    Page.RECORDINGS: (*READING, "DELETE"),
    Page.COMPLETIONS: ("POST",),
    Page.SPEECH: ("POST",),
}
"""The methods of pages that do more than reading."""

_OPEN: Final = frozenset({Page.HEALTH, Page.READY, Page.VERSION, Page.TICKET, Page.FILE, Page.ABOUT})
"""Pages that need no key. The page of a ticket is for callers that know its random id. The web page asks for
a key itself."""


class Pages:
    """The answers to requests that open no WebSocket."""

    def __init__(
        self,
        services: Services,
        access: Access,
        voice: DefaultVoice,
        files: Mapping[str, PageFile],
        leases: Leases,
        library: Library | None = None,
    ) -> None:
        """`voice` is the default reference voice. `files` are those of the web page, empty without it.

        `leases` has the slots of running sessions. `library` has the recordings; None if recording is off.
        """
        self._library = library
        self._leases = leases
        self.tls_port: int | None = None
        """The TLS port, once it listens."""
        self._services = services
        self._files = files
        self._dispatcher = services.dispatcher
        self._registry = services.registry
        self._load = services.load
        self._access = access
        self._voice = voice
        self._clock = services.clock
        self._since = services.clock.unix()

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        """Return the answer, with its body even for HEAD. Raises `Denied`."""
        found = find_page(request.path)
        if found is None:
            is_path = request.path.startswith("/") or request.method in READING
            return responses.not_found() if is_path else responses.method_not_allowed(*READING)
        page, name = found
        if (page is Page.FILE and name not in self._files) or (page is Page.ABOUT and not self._files):
            return responses.not_found()
        key = None
        if page not in _OPEN:
            self._access.check_origin(request, caller)
            key = self._access.identify(request, admin=page is Page.QUEUE)
        allowed = _METHODS.get(page, READING)
        if request.method not in allowed:
            return responses.method_not_allowed(*allowed)
        if page is Page.CLIENT_SECRETS:
            return self._make_secret(request, key)
        if page is Page.SPEECH:
            return openai_errors.no_speech()
        if request.refused_body is not None:
            return responses.body_refused(request.refused_body, *allowed)
        if page is Page.RECORDINGS:
            return await recordings.answer(request, name, self._library, recordings.visible_to(key, caller))
        if request.method in READING:
            if page is Page.FILE:
                return responses.page_file(self._files[name], request.headers.get_all("If-None-Match"))
            return await self._read_page(page, name, key)
        self._access.check_origin(request, caller)
        return responses.cancelled(name, await self._dispatcher.cancel(name))

    def _make_secret(self, request: HttpRequest, key: Key | None) -> Response:
        secrets = self._access.client_secrets
        return client_secrets.answer(request, key, secrets, self._registry.catalogue(), self._clock.unix())

    async def _read_page(self, page: Page, name: str, key: Key | None) -> Response:
        match page:
            case Page.HEALTH:
                return responses.health()
            case Page.READY:
                status = await self._dispatcher.status()
                return responses.readiness(status, bool(self._registry.ready()), self._load.is_draining)
            case Page.VERSION:
                return responses.versions()
            case Page.ABOUT:
                status, catalogue = await self._dispatcher.status(), self._registry.catalogue()
                return responses.about(status, catalogue, self._services.options, self.tls_port)
            case Page.STATUS:
                return await self._status()
            case Page.WORKERS:
                return await self._workers(key)
            case Page.MODELS:
                catalogue = self._registry.catalogue()
                if catalogue is not None and key is not None:
                    catalogue = narrowed(catalogue, None, key.rights)
                return responses.models(catalogue, self._since)
            case Page.DEFAULT_VOICE:
                return responses.default_voice(self._voice)
            case Page.QUEUE:
                return responses.queue(
                    await self._dispatcher.view(), names_tickets=key is not None and key.is_admin
                )
            case Page.TICKET:
                return responses.ticket(await self._dispatcher.find(name))
        raise AssertionError(page)

    async def _status(self) -> Response:
        view = await self._dispatcher.view()
        slots = Slots(view.running, self._leases.held())
        status = await self._dispatcher.status()
        return responses.service_status(status, view, slots, self._registry.conditions())

    async def _workers(self, key: Key | None) -> Response:
        slots = Slots((await self._dispatcher.view()).running, self._leases.held())
        names = key is not None and key.is_admin
        workers, totals = self._registry.workers(), self._leases.totals
        return responses.workers(slots.rows(workers, totals, self._clock.unix(), names=names))
