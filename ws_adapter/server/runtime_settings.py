"""Settings that are reloaded while the adapter runs."""

import dataclasses
import logging
from collections.abc import Callable

from ws_adapter.access.http.access import Access
from ws_adapter.dispatch.revisions import read_weights
from ws_adapter.dispatch.rules import QueueRules
from ws_adapter.options import RELOADED, AdapterOptions
from ws_adapter.session.services import Services

logger = logging.getLogger(__name__)


class RuntimeSettings:
    """The reloadable options of a running adapter, and the objects that use them."""

    def __init__(self, services: Services, access: Access, read: Callable[[], AdapterOptions]) -> None:
        """`read` returns the options as they are now, or raises `ConfigurationError`."""
        self._services = services
        self._access = access
        self._read = read

    def reload(self) -> None:
        """Apply the changed settings that can change at runtime; log those that need a restart.

        Raises `ConfigurationError`; then nothing has changed.
        """
        new, old = self._read(), self._services.options
        changed = [
            field.name
            for field in dataclasses.fields(AdapterOptions)
            if getattr(new, field.name) != getattr(old, field.name)
        ]
        values = {name: getattr(new, name) for name in changed if name in RELOADED}
        if values:
            self._use(dataclasses.replace(old, **values))
            logger.info("settings applied: %s", ", ".join(values))
        waiting = [name for name in changed if name not in RELOADED]
        if waiting:
            logger.warning("settings need a restart: %s", ", ".join(waiting))

    def _use(self, options: AdapterOptions) -> None:
        services = self._services
        services.options = options
        self._access.use(options)
        services.load.use(options.load_limits)
        services.dispatcher.rules = queue_rules(options)


def queue_rules(options: AdapterOptions) -> QueueRules:
    """Return the rules of the queue."""
    return QueueRules(
        capacity=options.queue_capacity,
        update_s=options.queue_update_s,
        no_worker_grace_s=options.no_worker_grace_s,
        session_limits_s=options.session_limits_s,
        revisions=read_weights(options.revisions),
    )
