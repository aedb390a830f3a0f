"""The life cycle of a worker: start of the server, loading of the model, graceful shutdown, exit code."""

import asyncio
import gc
import logging
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from antiphon_service.pools import pool_name
from antiphon_service.redis import (
    RedisTls,
    RedisUnusable,
    connect,
    read_password,
    read_tls,
)
from antiphon_service.semconv import SERVICE_WORKER
from antiphon_service.telemetry import providers
from antiphon_service.telemetry.errors import TelemetryError
from antiphon_service.telemetry.lag import measure_lag
from antiphon_service.telemetry.providers import Telemetry
from inference_service.errors import ConfigurationError, Draining, EngineFatal
from inference_service.interface.engine import (
    Deliver,
    Engine,
    ModelInfo,
    OnFatal,
)
from inference_service.interface.setups import Mode, Window, WindowMode
from inference_service.models.errors import CheckpointError
from inference_service.observability import status
from inference_service.observability.admin import Administration
from inference_service.observability.metrics import WorkerMetrics
from inference_service.observability.tracing import Tracing
from inference_service.observability.watchdog import Watchdog
from inference_service.options import MOST_SLOTS, RELOADED, WorkerOptions
from inference_service.registration import LEAVE_TIMEOUT_S, Registrar, WorkerEntry, WorkerHandle
from inference_service.rpc.address import Address
from inference_service.rpc.certificate import Certificate
from inference_service.rpc.server import WorkerServer
from inference_service.rpc.servicer import InferenceServicer, State
from inference_service.session.admission import Admission
from inference_service.session.calls.backend import Backend
from inference_service.session.calls.session_calls import deliver_on
from inference_service.session.leases import LeaseRules
from inference_service.session.machine import Limits
from inference_service.session.slots import SlotTable
from inference_service.session.usage import UsageTable

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

_MODES: Final = {
    Mode.AUDIO: "audio",
    Mode.VIDEO: "video",
    Mode.CHAT: "chat",
    Mode.TRANSCRIBE: "transcription",
}
"""The adapters' names of the modes."""

EXIT_DRAINED, EXIT_FAULT, EXIT_CONFIGURATION, EXIT_DEVICE_LOST = 0, 1, 2, 3

STOP_GRACE_S = 1.0
"""Limit in seconds for sending the last statuses."""

EngineFactory = Callable[[WorkerOptions, Deliver, OnFatal], Engine]
"""Loads and warms up an engine; called in its own thread, and may take minutes."""

T = TypeVar("T")


def load_engine(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
    """Return the engine that the options name; torch is not imported earlier."""
    if options.engine == "vllm":
        from inference_service.engine_vllm import loading as vllm_loading

        return vllm_loading.load_engine(options, deliver, on_fatal)
    from inference_service.families import loading

    return loading.load_engine(options, deliver, on_fatal)


def freeze_loaded_objects() -> None:
    """Exempt the objects of a loaded worker from garbage collection (`gc.freeze`).

    A collection that traverses the model and its libraries stops all sessions for a quarter of a second.
    """
    gc.collect()
    gc.freeze()
    # A full collection waits until new objects are a quarter of those that the last full collection kept.
    # Freezing does not change that number; a collection without the frozen objects lowers it.
    gc.collect()


def announce(address: str) -> None:
    """Print the address of the ready worker, for the process that started it."""
    print(f"worker ready on {address}", flush=True)


async def serve(
    options: WorkerOptions,
    *,
    factory: EngineFactory = load_engine,
    on_ready: Callable[[str], None] = announce,
    limits: Limits | None = None,
    reread: Callable[[], WorkerOptions] | None = None,
) -> int:
    """Run a worker until SIGTERM or SIGINT; a second signal ends it at once.

    SIGHUP reloads the certificates, and the settings with `reread`. A worker with neither has no handler, so
    that SIGHUP ends it.
    Returns the exit code: 0 drained, 1 fault, 2 configuration, 3 device lost.
    """
    loop = asyncio.get_running_loop()
    signals = [signal.SIGTERM, signal.SIGINT]
    telemetry: Telemetry | None = None
    try:
        telemetry = providers.start(SERVICE_WORKER)
        worker = Worker(options, factory, limits or Limits(), telemetry, reread)
        for number in signals:
            loop.add_signal_handler(number, worker.interrupt)
        if options.is_reloadable or reread is not None:
            signals.append(signal.SIGHUP)
            loop.add_signal_handler(signal.SIGHUP, worker.reload)
        return await worker.run(on_ready)
    except (ConfigurationError, CheckpointError, TelemetryError) as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIGURATION
    except Exception:
        logger.exception("the worker failed")
        return EXIT_FAULT
    finally:
        if telemetry is not None:
            await asyncio.to_thread(telemetry.shutdown)
        for number in signals:
            loop.remove_signal_handler(number)


class Worker:
    """One worker. Raises `ConfigurationError` for options that cannot work."""

    def __init__(
        self,
        options: WorkerOptions,
        factory: EngineFactory,
        limits: Limits,
        telemetry: Telemetry,
        reread: Callable[[], WorkerOptions] | None = None,
    ) -> None:
        """Create the worker.

        `reread` returns the options from the current settings file; None if there is no file.
        """
        self._reread = reread
        self.admin_port: int | None = None
        """The administration port, once it is bound."""
        self.admission = Admission(is_on=not options.no_admission)
        self._options = options
        self._factory = factory
        self._limits = limits
        # A restarted worker has a new id, so that leases of the previous process are not valid.
        worker_id = f"{options.worker_id or 'worker'}-{secrets.token_hex(4)}"
        self._metrics = WorkerMetrics(telemetry.meter, worker_id, options.revision)
        self._tracing = Tracing(telemetry, worker_id, time.monotonic, self._metrics.recent_ticks)
        self._rules = LeaseRules(options.worker_key, options.needs_leases, options.unleased_slots)
        self._servicer = InferenceServicer(
            worker_id, self._rules, self._metrics, self._tracing, options.revision
        )
        self._registrar: Registrar | None = None
        self._redis_tls: RedisTls | None = None
        self._redis = None
        if options.dispatcher is not None:
            self._redis_tls, self._redis = _connect(
                options.dispatcher, options, Address.parse(options.listen)
            )
        self._administration = Administration(
            telemetry.exposition,
            self._status_page,
            lambda: self._servicer.state is State.READY,
            options.admin_key,
        )
        self._engine: Engine | None = None
        self._started_at = time.monotonic()
        self._certificate = None
        if options.tls_cert is not None and options.tls_key is not None:
            self._certificate = Certificate(options.tls_cert, options.tls_key, options.tls_client_ca)
        self._server = WorkerServer(
            self._servicer.methods(),
            options.listen,
            slots=options.slots or MOST_SLOTS,
            is_keyed=options.worker_key is not None,
            insecure_grpc=options.insecure_grpc,
            certificate=self._certificate,
            compresses=options.grpc_compression == "gzip",
        )
        self._interrupted = asyncio.Event()
        self._hurried = asyncio.Event()
        self._fatal = asyncio.Event()

    def interrupt(self) -> None:
        """Drain at the first call, end at once at the second."""
        (self._hurried if self._interrupted.is_set() else self._interrupted).set()

    def reload(self) -> None:
        """Reload settings and certificates; if a file is invalid, log the error and keep its old values."""
        readable: dict[str, Callable[[], None]] = {}
        if self._reread is not None:
            readable["settings file"] = partial(self._reload_settings, self._reread)
        if self._certificate is not None:
            readable["certificate"] = self._certificate.reload
        if self._redis_tls is not None:
            readable["certificate for Redis"] = self._redis_tls.reload
        for what, read in readable.items():
            try:
                read()
            except (ConfigurationError, RedisUnusable) as error:
                logger.error("the %s could not be read again, nothing changes: %s", what, error)
            else:
                logger.info("the %s was read again", what)

    def _reload_settings(self, read: Callable[[], WorkerOptions]) -> None:
        """Apply what can change at runtime, and log what needs a restart. Raises `ConfigurationError`."""
        new, old = read(), self._options
        changed = [each.name for each in fields(old) if getattr(new, each.name) != getattr(old, each.name)]
        values = {name: getattr(new, name) for name in changed if name in RELOADED}
        if values:
            self._options = replace(old, **values)
            logger.info("settings applied: %s", ", ".join(values))
        waiting = [name for name in changed if name not in RELOADED]
        if waiting:
            logger.warning("settings need a restart: %s", ", ".join(waiting))

    async def run(self, on_ready: Callable[[str], None]) -> int:
        """Serve until interrupted and return the exit code; call `on_ready` once with the address to dial."""
        address = await self._server.start()
        tasks = [asyncio.create_task(measure_lag(self._metrics.lag))]
        try:
            await self._start_administration()
            self._engine = await self._load(address)
            if self._engine is not None:
                limit_s = self._engine.info.engine.step_s or self._limits.step_s
                watchdog = Watchdog(self._engine, time.monotonic, limit_s)
                hangs = f"one step of the engine has taken {limit_s:g} s"
                tasks.append(asyncio.create_task(watchdog.watch(lambda: self._device_lost(hangs))))
                if self._registrar is not None:
                    self._registrar.start()
                await self._server.set_serving(True)
                logger.info("worker ready", extra={"worker_id": self._servicer.worker_id})
                on_ready(address)
                await self._first_of(self._interrupted, self._fatal)
            await self._drain()
            return EXIT_DEVICE_LOST if self._fatal.is_set() else EXIT_DRAINED
        finally:
            if self._registrar is not None:
                await self._registrar.leave()
            await self._server.stop(STOP_GRACE_S)
            await self._administration.close()
            for task in tasks:
                task.cancel()
            if self._engine is not None:
                patience = STOP_GRACE_S if self._fatal.is_set() else self._limits.cleanup_s
                await asyncio.wait({_in_thread(self._engine.stop)}, timeout=patience)

    async def _start_administration(self) -> None:
        options = self._options
        if options.admin_port is not None:
            self.admin_port = await self._administration.start(options.admin_host, options.admin_port)
            logger.info("administration on %s port %d", options.admin_host, self.admin_port)

    def _status_page(self) -> str:
        engine = self._engine
        return status.render(
            status.WorkerView(
                worker_id=self._servicer.worker_id,
                state=self._servicer.state.name.lower(),
                age_s=time.monotonic() - self._started_at,
                device=(engine.info.engine.device if engine else "") or self._options.device,
                model=engine.info.name if engine else "",
                slots=self._servicer.slot_views(),
                occupancy=engine.occupancy() if engine else None,
                ticks=self._metrics.recent_ticks,
                units=self._metrics.units,
                misses=self._metrics.misses,
                slack=tuple(self._metrics.recent_slack),
                shares=self.admission.shares(),
                has_time=self.admission.has_time(),
            )
        )

    async def _load(self, address: str) -> Engine | None:
        """Return the warmed-up engine, with sessions admitted; None if the worker was interrupted
        meanwhile.
        """
        loop = asyncio.get_running_loop()

        def on_fatal(message: str) -> None:
            loop.call_soon_threadsafe(self._device_lost, message)

        loading = _in_thread(lambda: self._factory(self._options, deliver_on(loop), on_fatal))
        loaded = asyncio.Event()
        loading.add_done_callback(lambda _: loaded.set())
        await self._first_of(loaded, self._interrupted, self._fatal)
        if not loading.done():
            return None  # the loading thread is a daemon, so it does not delay the exit
        engine = loading.result()
        if self._options.unleased_slots > engine.slots:
            raise ConfigurationError(f"unleased_slots must be at most {engine.slots}, the number of slots.")
        slots = SlotTable(engine.slots, self._rules)
        self._metrics.on_named = self._servicer.ticked
        engine.watch(self.admission.ticked)
        engine.watch(self._metrics.ticked)
        self._metrics.export_model(engine, slots, engine.info.engine.device or self._options.device)
        self._servicer.start(
            Backend(
                worker_id=self._servicer.worker_id,
                engine=engine,
                info=_with_window(engine.info, self._options),
                slots=slots,
                limits=self._limits,
                clock=time.monotonic,
                draw_seed=_seeds(self._options.seed),
                metrics=self._metrics,
                tracing=self._tracing,
                admission=self.admission,
                usages=UsageTable(engine.slots),
            )
        )
        if self._redis is not None:
            self._register(self._redis, engine.info, slots, address)
        return engine

    def _register(self, redis: "Redis", info: ModelInfo, slots: SlotTable, address: str) -> None:
        """Start registering the worker in the shared queue."""
        modes = [name for mode, name in _MODES.items() if mode in info.modes]
        servicer = self._servicer
        entry = WorkerEntry(
            servicer.worker_id,
            self._options.advertise or address,
            pool_name(info.name, modes),
            self._options.revision,
        )
        handle = WorkerHandle(
            slots, servicer.takes_sessions, lambda: self.admission.shares()[0], servicer.revoke
        )
        self._registrar = registrar = Registrar(redis, entry, handle)
        self._metrics.register(lambda: bool(registrar.is_available))
        slots.freed = registrar.slot_freed
        servicer.changed = registrar.heartbeat_soon

    def _device_lost(self, message: str) -> None:
        logger.critical("the device is lost: %s", message)
        self._fatal.set()
        self._servicer.abandon_all(EngineFatal("The worker's device failed; the worker is restarting."))

    async def _drain(self) -> None:
        logger.info("worker draining", extra={"worker_id": self._servicer.worker_id})
        if self._registrar is not None:
            self._registrar.drain()
            await self._first_of(self._registrar.drained, self._hurried, self._fatal, timeout=LEAVE_TIMEOUT_S)
        self._servicer.drain()
        await self._server.set_serving(False)
        end = time.monotonic() + self._options.drain_timeout_s
        await self._until_empty(self._options.drain_timeout_s - self._limits.go_away_ahead_s)
        self._servicer.go_away(max(0.0, end - time.monotonic()))
        await self._until_empty(end - time.monotonic())
        self._servicer.fail_all(Draining("This worker is shutting down."))
        grace = STOP_GRACE_S if self._hurried.is_set() else self._limits.cleanup_s
        await self._first_of(self._servicer.empty, self._fatal, timeout=grace)
        await self._first_of(self._servicer.quiet, self._hurried, self._fatal, timeout=self._limits.unit_s)

    async def _until_empty(self, timeout: float) -> None:
        """Wait for at most `timeout` seconds until no session is left; return at once in an urgent
        shutdown.
        """
        await self._first_of(self._servicer.empty, self._hurried, self._fatal, timeout=max(0.0, timeout))

    async def _first_of(self, *events: asyncio.Event, timeout: float | None = None) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _in_thread(function: Callable[[], T]) -> "asyncio.Future[T]":
    """Run `function` in a daemon thread, which unlike an executor's thread does not keep the
    process alive.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (function(), None)
        except BaseException as error:
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="antiphon-load", daemon=True).start()
    return future


def _connect(url: str, options: WorkerOptions, listens_at: Address) -> "tuple[RedisTls | None, Redis]":
    """Return the TLS settings and the client of the shared queue; nothing is sent yet."""
    if options.worker_key is None and not listens_at.is_local:
        raise ConfigurationError(
            f"Refusing to take leases on {listens_at} without a worker key: they would be unsigned. Name a "
            "key with --worker-key-file or ANTIPHON_WORKER_KEY, or listen on loopback or a Unix socket."
        )
    if options.advertise is None and listens_at.is_wildcard:
        raise ConfigurationError(
            f"Adapters cannot dial {listens_at}. Pass the address that they can dial: --advertise host:port."
        )
    try:
        tls = read_tls(url, options.dispatcher_ca, options.dispatcher_cert, options.dispatcher_cert_key)
        return tls, connect(url, tls=tls, password=read_password(options.dispatcher_password_file))
    except RedisUnusable as error:
        raise ConfigurationError(str(error)) from None


def _seeds(seed: int | None) -> Callable[[], int]:
    """Return a function that draws the seed of a session whose config has none."""
    source = random.Random(seed)
    return lambda: source.getrandbits(63)


def _with_window(info: ModelInfo, options: WorkerOptions) -> ModelInfo:
    """Return `info` with the window of the `options` in place of the model's own."""
    if options.window_high is None and options.window_low is None:
        return info
    if Mode.AUDIO not in info.modes:
        raise ConfigurationError("The window is for full duplex, which this model cannot do: leave it out.")
    high = options.window_high or info.window.high_tokens or info.context_limit
    low = options.window_low or min(info.window.low_tokens or high, high * 3 // 4)
    if not 0 < low < high <= info.context_limit:
        raise ConfigurationError(
            f"The window must have 0 < low < high <= {info.context_limit} tokens, not low {low}, high {high}."
        )
    return replace(info, window=Window(WindowMode.BASIC, high, low))
