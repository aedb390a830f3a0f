"""An adapter from its start to its end."""

import asyncio
import errno
import logging
import signal
import sys
from collections.abc import Callable
from typing import Final

from ws_adapter.clock import Clock, LoopClock
from ws_adapter.dispatch.inprocess import InProcessDispatcher, QueueRules
from ws_adapter.errors import ConfigurationError
from ws_adapter.fleet import Fleet
from ws_adapter.options import AdapterOptions
from ws_adapter.server import PublicServer

logger = logging.getLogger(__name__)

EXIT_DRAINED: Final = 0
EXIT_FAULT: Final = 1
EXIT_CONFIGURATION: Final = 2


def announce(address: str) -> None:
    """Tells whoever started the adapter that it listens."""
    print(f"adapter ready on {address}", flush=True)


async def serve(options: AdapterOptions, on_ready: Callable[[str], None] = announce) -> int:
    """Runs an adapter until SIGTERM or SIGINT; a second signal ends it at once.

    `on_ready` is called once with the address for clients, `http://host:port`. Returns the exit code: 0
    drained, 1 fault, 2 configuration.
    """
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    adapter = Adapter(options, LoopClock())
    for number in signals:
        loop.add_signal_handler(number, adapter.interrupt)
    try:
        return await adapter.run(on_ready)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    except Exception:
        logger.exception("the adapter failed")
        return EXIT_FAULT
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


class Adapter:
    """One adapter: its workers, its queue and its public server."""

    def __init__(self, options: AdapterOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._interrupted = asyncio.Event()
        self._hurried = asyncio.Event()

    def interrupt(self) -> None:
        """The first time: drain. The second time: end at once."""
        (self._hurried if self._interrupted.is_set() else self._interrupted).set()

    async def run(self, on_ready: Callable[[str], None]) -> int:
        """Serves until interrupted. Raises `ConfigurationError` if it cannot listen."""
        options = self._options
        fleet = Fleet(options.workers)
        rules = QueueRules(
            capacity=options.queue_capacity,
            update_s=options.queue_update_s,
            no_worker_grace_s=options.no_worker_grace_s,
            session_limit_s=options.session_limit_audio_s,
        )
        dispatcher = InProcessDispatcher(fleet, self._clock, rules)
        server = PublicServer(options, dispatcher, fleet, self._clock)
        fleet.start()
        try:
            try:
                address = await server.start()
            except OSError as error:
                raise ConfigurationError(_cannot_listen(options, error)) from error
            on_ready(address)
            await self._interrupted.wait()
            await self._drain(server)
            return EXIT_DRAINED
        finally:
            await server.close()
            dispatcher.close()
            await fleet.stop()

    async def _drain(self, server: PublicServer) -> None:
        drained = asyncio.create_task(server.drain())
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            drained.cancel()
            hurried.cancel()
            await asyncio.gather(drained, hurried, return_exceptions=True)


def _cannot_listen(options: AdapterOptions, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {options.port} is in use by another process. Choose another with --port, or stop it."
    return f"Cannot listen on {options.host} port {options.port}: {error.strerror}."
