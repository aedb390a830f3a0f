"""The adapter process, from start to graceful shutdown."""

import asyncio
import errno
import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from antiphon_service.listening import failed_address
from antiphon_service.redis import (
    RedisTls,
    RedisUnusable,
    connect,
    read_password,
    read_tls,
)
from antiphon_service.semconv import (
    HANDSHAKES_WAITING,
    JOURNAL_BYTES,
    JOURNAL_GAPS,
    JOURNALS_BEHIND,
    SERVICE_ADAPTER,
)
from antiphon_service.telemetry.errors import TelemetryError
from antiphon_service.telemetry.instruments import observed_counter
from antiphon_service.telemetry.lag import measure_lag
from antiphon_service.telemetry.providers import Telemetry, start
from ws_adapter.access.http.access import Access
from ws_adapter.access.http.key_expiry import KeyExpiry
from ws_adapter.detection.detector import Detector
from ws_adapter.detection.scorer import best_scorer
from ws_adapter.dispatch.base import Dispatcher
from ws_adapter.dispatch.inprocess import InProcessDispatcher
from ws_adapter.dispatch.rules import QueueRules
from ws_adapter.forwarding.acceptor import PeerAcceptor
from ws_adapter.forwarding.forwarder import Forwarder
from ws_adapter.forwarding.owners import SessionOwners
from ws_adapter.forwarding.tls import PeerTls
from ws_adapter.observability.metrics import Metrics, observe
from ws_adapter.observability.snapshot import Snapshot
from ws_adapter.options import AdapterOptions
from ws_adapter.pages.default_voice import read_default_voice
from ws_adapter.pages.files import read_files
from ws_adapter.peers.base import NoPeers, Peer, Peers
from ws_adapter.process import descriptors
from ws_adapter.process.clock import Clock, LoopClock
from ws_adapter.process.errors import CannotListen, ConfigurationError
from ws_adapter.process.load import Load
from ws_adapter.recording.library import Library
from ws_adapter.recording.recorder import Recorder
from ws_adapter.resume.sessions import ResumableSessions
from ws_adapter.server.admin import Administration
from ws_adapter.server.handshake import Handshake
from ws_adapter.server.listener import PublicServer
from ws_adapter.server.pages import Pages
from ws_adapter.server.runtime_settings import RuntimeSettings, queue_rules
from ws_adapter.server.takeover import Takeovers
from ws_adapter.session.readers import Readers
from ws_adapter.session.services import Services
from ws_adapter.shared_journal.journals import SharedJournals
from ws_adapter.usage.accounts import Accounts
from ws_adapter.usage.log import UsageLog
from ws_adapter.web.tls import Certificate
from ws_adapter.worker.journal import Journals
from ws_adapter.worker.registry import Registry
from ws_adapter.worker.targets import read_targets
from ws_adapter.worker.transport.dialler import dialler
from ws_adapter.worker.transport.tls import WorkerTls

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from redis.asyncio import Redis

    from ws_adapter.direct.server import DirectServer
    from ws_adapter.usage.shared_keys import SharedKeys

logger = logging.getLogger(__name__)

EXIT_DRAINED: Final = 0
EXIT_FAULT: Final = 1
EXIT_CONFIGURATION: Final = 2

GC_THRESHOLDS: Final = (100_000, 20, 10)
"""Garbage collection thresholds. Reference counting frees units and ended sessions; a connection leaves seven
objects in cycles. A collection among 1,000 sessions traverses some 30,000 young objects and pauses all
sessions for 30 ms, however little it finds, so collections are rare."""

_DAY_S: Final = 86_400.0


def announce(address: str) -> None:
    """Print that the adapter listens on `address`."""
    print(f"adapter ready on {address}", flush=True)


async def serve(
    options: AdapterOptions,
    on_ready: Callable[[str], None] = announce,
    reread: Callable[[], AdapterOptions] | None = None,
) -> int:
    """Run an adapter until SIGTERM or SIGINT; a second signal ends it at once.

    SIGHUP reads all files of the configuration again: settings (by `reread`), keys, signing keys,
    certificates and workers; it also reopens the usage log. An adapter without any of these ends on SIGHUP,
    the default of the system. `on_ready` is called for each address for clients, `http://host:port` first.
    Returns the exit code: 0 drained, 1 fault, 2 configuration.
    """
    loop = asyncio.get_running_loop()
    try:
        telemetry = start(SERVICE_ADAPTER)
    except TelemetryError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    adapter = Adapter(options, LoopClock(), telemetry, reread)
    gc.set_threshold(*GC_THRESHOLDS)
    gc.collect()
    gc.freeze()  # so that full collections skip modules and settings, which take 20 ms
    handlers = {signal.SIGTERM: adapter.interrupt, signal.SIGINT: adapter.interrupt}
    if options.is_reloadable or reread is not None:
        handlers[signal.SIGHUP] = adapter.reload
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        return await adapter.run(on_ready)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    except Exception:
        logger.exception("the adapter failed")
        return EXIT_FAULT
    finally:
        await asyncio.to_thread(telemetry.shutdown)
        for number in handlers:
            loop.remove_signal_handler(number)


class Adapter:
    """One adapter: its workers, its queue and its public server."""

    def __init__(
        self,
        options: AdapterOptions,
        clock: Clock,
        telemetry: Telemetry,
        reread: Callable[[], AdapterOptions] | None = None,
    ) -> None:
        """`reread` reads the file of settings and returns the new options; None without such a file."""
        self._reread = reread
        self.admin_port: int | None = None
        """The administration port, once it listens."""
        self.grpc_port: int | None = None
        """The port for direct gRPC callers, once it listens."""
        self.accounts: Accounts | None = None
        """The accounts of its sessions, once it runs."""
        self._options = options
        self._clock = clock
        self._telemetry = telemetry
        self._interrupted = asyncio.Event()
        self._hurried = asyncio.Event()
        self._reload: Callable[[], None] = lambda: None

    def interrupt(self) -> None:
        """Drain at the first call, end at once at the second."""
        (self._hurried if self._interrupted.is_set() else self._interrupted).set()

    def reload(self) -> None:
        """Read all files of the configuration again, reopen the usage log, and end sessions of withdrawn
        keys.

        An unusable file is logged, and the old settings stay.
        """
        self._reload()

    async def run(self, on_ready: Callable[[str], None]) -> int:
        """Serve until interrupted. Raises `ConfigurationError` if the options cannot work."""
        descriptors.reserve(self._options.queue_capacity)
        # A repeated drain request must not end the adapter at once; only a second signal does.
        parts = _assemble(self._options, self._clock, self._telemetry, self._interrupted.set, self._reread)
        self._reload = parts.reload
        if parts.acceptor is not None:
            parts.acceptor.bind()
        self.accounts = parts.services.accounts
        if parts.recorder is not None:
            parts.recorder.start()
        parts.services.registry.start()
        parts.services.dispatcher.start()
        parts.peers.start()
        if parts.services.shared_journals is not None:
            parts.services.shared_journals.start()
        parts.services.accounts.start()
        parts.services.load.start()
        watching = [
            asyncio.create_task(parts.snapshot.keep_fresh()),
            asyncio.create_task(measure_lag(parts.snapshot.metrics.loop_lag)),
        ]
        try:
            if parts.shared_keys is not None:
                await parts.shared_keys.start()
            addresses = await self._listen(parts)
            parts.expiry.check()
            logger.info("voice activity detection by %s", parts.services.detector.name)
            for address in addresses:
                on_ready(address)
            if self.admin_port is not None:
                address = f"http://{self._options.admin_host}:{self.admin_port}"
                print(f"adapter administration on {address}", flush=True)
            await self._interrupted.wait()
            logger.info("adapter draining")
            if self._options.reuse_port:
                parts.administration.leave()
            if parts.direct is not None:
                parts.direct.servicer.drain()
            await self._drain(parts.server)
            return EXIT_DRAINED
        finally:
            parts.expiry.stop()
            if parts.direct is not None:
                await parts.direct.close()
            await parts.server.close()
            await parts.administration.close()
            parts.services.readers.close()
            parts.services.detector.close()
            parts.services.load.stop()
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            if parts.shared_keys is not None:
                await parts.shared_keys.close()
            await parts.services.accounts.close()
            if parts.services.shared_journals is not None:
                await parts.services.shared_journals.close()
            await parts.peers.close()
            await parts.services.dispatcher.close()
            await parts.services.registry.stop()
            if parts.recorder is not None:
                await parts.recorder.close()

    async def _listen(self, parts: "_Parts") -> list[str]:
        options = self._options
        try:
            if options.admin_port is not None:
                self.admin_port = await parts.administration.start(
                    options.admin_host, options.admin_port, reuse=options.reuse_port
                )
                logger.info("administration on %s port %d", options.admin_host, self.admin_port)
            if parts.direct is not None:
                self.grpc_port = await parts.direct.start()
                logger.info("slots for direct callers on %s port %d", options.grpc_host, self.grpc_port)
            return await parts.server.start()
        except CannotListen as error:
            raise ConfigurationError(_cannot_listen(error)) from error

    async def _drain(self, server: PublicServer) -> None:
        drained = asyncio.create_task(server.drain())
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            drained.cancel()
            hurried.cancel()
            await asyncio.gather(drained, hurried, return_exceptions=True)


@dataclass(frozen=True)
class _Parts:
    """The parts of an adapter."""

    services: Services
    peers: Peers
    snapshot: Snapshot
    server: PublicServer
    acceptor: PeerAcceptor | None
    administration: Administration
    recorder: Recorder | None
    direct: "DirectServer | None"
    expiry: KeyExpiry
    shared_keys: "SharedKeys | None"
    reload: Callable[[], None]


def _assemble(
    options: AdapterOptions,
    clock: Clock,
    telemetry: Telemetry,
    drain: Callable[[], None],
    reread: Callable[[], AdapterOptions] | None,
) -> _Parts:
    """Build the parts of an adapter without starting any. Raises `ConfigurationError`."""
    for network in options.broad_proxies:
        logger.warning(
            "trusted proxies: %s has %d addresses, and a client at any of them can pose as any other client "
            "by X-Forwarded-For; name the exact addresses of the proxies with --trusted-proxies",
            network,
            network.num_addresses,
        )
    metrics = Metrics(telemetry.meter)
    load = Load(options.load_limits, clock)
    redis_tls = _redis_tls(options)
    peers = _peers(
        options,
        redis_tls,
        metrics,
        load,
        clock.unix(),
        lambda: snapshot.is_ready,
        lambda: acceptor.target if acceptor is not None else "",
    )
    accounts = _accounts(options, redis_tls, metrics, clock)
    access = Access(options, clock, peers, accounts)
    peer_tls = _peer_tls(options)
    acceptor = forwarder = None
    if options.peer_listen is not None:
        acceptor = PeerAcceptor(options.peer_listen, options.peer_advertise, access.introductions, peer_tls)
        owners = SessionOwners(access.resume_tokens, peers, clock, socket.gethostname())
        forwarder = Forwarder(access.resume_tokens, access.introductions, owners, metrics, peer_tls)
    certificate = None
    if options.tls_cert is not None and options.tls_key is not None:
        certificate = Certificate(options.tls_cert, options.tls_key)
    voice = read_default_voice(options.voices)
    recorder = _recorder(options, clock)
    worker_tls = None
    if options.worker_ca is not None:
        worker_tls = WorkerTls(
            options.worker_ca, options.worker_cert, options.worker_cert_key, options.worker_name
        )
    named = options.workers if options.workers_file is None else read_targets(options.workers_file)
    registry = Registry(named, dial=dialler(worker_tls, metrics.worker_bytes))
    dispatcher = _dispatcher(options, redis_tls, registry, clock, queue_rules(options))
    journals = Journals(options.journal_s, round(options.journal_mib * 2**20))
    observe(telemetry.meter, JOURNAL_BYTES, lambda: journals.held_bytes)
    detector = Detector(best_scorer())
    shared_journals = _shared_journals(options, redis_tls, telemetry.meter, peers.adapter_id)
    services = Services(
        options,
        dispatcher,
        registry,
        clock,
        load,
        Readers(),
        detector,
        journals,
        accounts,
        shared_journals,
    )
    snapshot = Snapshot(
        telemetry.meter,
        dispatcher,
        registry,
        load,
        metrics,
        clock,
        services.detector.name,
        peers,
        options.processes_file,
    )
    resumables = ResumableSessions(access.resume_tokens, metrics, options.resume_window_s)
    handshake = Handshake(options, access, telemetry, metrics, snapshot, resumables)
    library = None
    if recorder is not None and options.recordings is not None:
        library = Library(options.recordings, recorder)
    pages = Pages(services, access, voice, {} if options.no_page else read_files(), metrics.leases, library)
    server = PublicServer(
        services,
        access,
        handshake,
        pages,
        metrics,
        resumables,
        certificate,
        recorder,
        forwarder,
        acceptor,
        Takeovers(access.resume_tokens, shared_journals) if shared_journals is not None else None,
    )
    observe(telemetry.meter, HANDSHAKES_WAITING, lambda: len(server.handshakes))
    direct = _direct_server(services, access, metrics, handshake, certificate)
    expiry = KeyExpiry(access, clock, lambda: _end_withdrawn(server, direct))
    readable: dict[str, Callable[[], None]] = {}
    if reread is not None:
        readable["file of settings"] = RuntimeSettings(services, access, reread).reload
    if options.keys is not None:
        readable["file of keys"] = access.reload
    if accounts.log is not None:
        readable["usage log"] = accounts.log.reopen
    if options.client_secret_key_file is not None:
        readable["keys of client secrets"] = access.reload_signing_keys
    if certificate is not None:
        readable["certificate"] = certificate.reload
    if worker_tls is not None:
        readable["TLS to the workers"] = worker_tls.reload
    if peer_tls is not None:
        readable["TLS to other adapters"] = peer_tls.reload
    if redis_tls is not None:
        readable["TLS to Redis"] = lambda: _reload_redis(redis_tls)
    if options.workers_file is not None:
        file = options.workers_file
        readable["file of workers"] = lambda: registry.set_targets(read_targets(file))
    return _Parts(
        services,
        peers,
        snapshot,
        server,
        acceptor,
        Administration(access, snapshot, telemetry, drain),
        recorder,
        direct,
        expiry,
        _shared_keys(options, redis_tls, access, expiry),
        reload=lambda: _reload(readable, expiry),
    )


def _direct_server(
    services: Services,
    access: Access,
    metrics: Metrics,
    handshake: Handshake,
    certificate: Certificate | None,
) -> "DirectServer | None":
    if services.options.grpc_port is None:
        return None
    # Imported only here, because gRPC starts threads of its own.
    from ws_adapter.direct.server import DirectServer
    from ws_adapter.direct.service import DispatchServicer

    servicer = DispatchServicer(services, access, metrics, handshake.rejected)
    return DirectServer(services.options, servicer, certificate)


def _dispatcher(
    options: AdapterOptions, tls: RedisTls | None, registry: Registry, clock: Clock, rules: QueueRules
) -> Dispatcher:
    """Return the dispatcher that the options name. Raises `ConfigurationError`."""
    if options.dispatcher is None:
        return InProcessDispatcher(registry, clock, rules, options.worker_key)
    from ws_adapter.dispatch.redis import RedisDispatcher

    client = _redis(options.dispatcher, options, tls)
    return RedisDispatcher(client, registry, clock, rules, options.worker_key)


def _shared_keys(
    options: AdapterOptions, tls: RedisTls | None, access: Access, expiry: KeyExpiry
) -> "SharedKeys | None":
    """Return the reader of the keys in Redis; None unless `auth` is `redis`. Raises `ConfigurationError`."""
    if options.auth != "redis" or options.dispatcher is None:
        return None
    from ws_adapter.usage.shared_keys import SharedKeys

    def take(text: str) -> None:
        access.use_keys(text)
        expiry.check()

    return SharedKeys(_redis(options.dispatcher, options, tls), take)


def _shared_journals(
    options: AdapterOptions, tls: RedisTls | None, meter: "Meter", adapter_id: str
) -> SharedJournals | None:
    """Return the journals in Redis; None unless `journal` is `redis`. Raises `ConfigurationError`."""
    if options.journal != "redis":
        return None
    if options.dispatcher is None:
        raise ConfigurationError("--journal redis means nothing without --dispatcher URL.")
    if options.client_secret_key is None and options.client_secret_key_file is None:
        raise ConfigurationError(
            "With --journal redis adapters verify each other's tokens. Set ANTIPHON_CLIENT_SECRET_KEY or "
            "pass --client-secret-key-file."
        )
    from ws_adapter.shared_journal.link import JournalLink

    link = JournalLink(_redis(options.dispatcher, options, tls, is_text=False))
    journals = SharedJournals(link, adapter_id, options.resume_window_s)
    observe(meter, JOURNALS_BEHIND, lambda: journals.behind)
    observed_counter(meter, JOURNAL_GAPS, lambda: [((), journals.gaps)])
    return journals


def _accounts(options: AdapterOptions, tls: RedisTls | None, metrics: Metrics, clock: Clock) -> Accounts:
    """Return the accounts of all sessions. Raises `ConfigurationError`."""
    log = UsageLog(options.usage_log) if options.usage_log is not None else None
    metrics.usage_log = log
    usage_store = None
    if options.dispatcher is not None:
        from ws_adapter.usage.shared import RedisUsageStore

        usage_store = RedisUsageStore(_redis(options.dispatcher, options, tls), secrets.token_hex(6))
    return Accounts(clock, metrics.tenants, usage_store, log)


def _peers(
    options: AdapterOptions,
    tls: RedisTls | None,
    metrics: Metrics,
    load: Load,
    since: float,
    is_ready: Callable[[], bool],
    forward: Callable[[], str],
) -> Peers:
    """Return the adapters of the same Redis, which forward connections to this one at the address `forward`.

    `since` is the start of this adapter in Unix seconds. Raises `ConfigurationError`.
    """
    if options.dispatcher is None:
        return NoPeers()
    from ws_adapter.peers.shared import RedisPeers

    identity = Peer(secrets.token_hex(6), version("antiphon"), socket.gethostname(), os.getpid(), since)

    def about() -> Peer:
        return replace(
            identity,
            sessions=sum(metrics.active.values()),
            cpu_cores=round(load.cpu, 3),
            is_ready=is_ready(),
            is_draining=load.is_draining,
            forward=forward(),
        )

    client = _redis(options.dispatcher, options, tls)
    return RedisPeers(client, identity.adapter_id, about, metrics.counted_alone)


def _peer_tls(options: AdapterOptions) -> PeerTls | None:
    """Return the TLS settings between adapters, None without TLS. Raises `ConfigurationError`."""
    if options.peer_ca is None or options.peer_cert is None or options.peer_cert_key is None:
        return None
    return PeerTls(options.peer_ca, options.peer_cert, options.peer_cert_key)


def _redis_tls(options: AdapterOptions) -> RedisTls | None:
    """Return the TLS settings of the shared queue, None without TLS. Raises `ConfigurationError`."""
    if options.dispatcher is None:
        return None
    try:
        return read_tls(
            options.dispatcher, options.dispatcher_ca, options.dispatcher_cert, options.dispatcher_cert_key
        )
    except RedisUnusable as error:
        raise ConfigurationError(str(error)) from None


def _reload_redis(tls: RedisTls) -> None:
    try:
        tls.reload()
    except RedisUnusable as error:
        raise ConfigurationError(str(error)) from None


def _redis(url: str, options: AdapterOptions, tls: RedisTls | None, *, is_text: bool = True) -> "Redis":
    try:
        password = read_password(options.dispatcher_password_file)
        return connect(url, tls=tls, password=password, is_text=is_text)
    except RedisUnusable as error:
        raise ConfigurationError(str(error)) from None


def _recorder(options: AdapterOptions, clock: Clock) -> Recorder | None:
    if options.recordings is None:
        return None
    max_age_s = options.recordings_max_days * _DAY_S
    return Recorder(options.recordings, clock, max_age_s=max_age_s, max_bytes=options.recordings_max_bytes)


def _end_withdrawn(server: PublicServer, direct: "DirectServer | None") -> None:
    server.end_withdrawn()
    if direct is not None:
        direct.servicer.end_withdrawn()


def _reload(readable: Mapping[str, Callable[[], None]], expiry: KeyExpiry) -> None:
    for what, read in readable.items():
        try:
            read()
        except ConfigurationError as error:
            logger.error("the %s could not be read again, nothing changes: %s", what, error)
        else:
            logger.info("the %s was read again", what)
    expiry.check()


def _cannot_listen(error: CannotListen) -> str:
    if error.reason.errno == errno.EADDRINUSE:
        return (
            f"Port {error.port} is in use by another process{failed_address(error.reason)}. "
            f"Choose another with {error.option}, or stop it."
        )
    at = failed_address(error.reason) or f" on {error.host}"
    return f"Cannot listen{at} port {error.port}: {error.reason.strerror}."
