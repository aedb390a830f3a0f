"""`antiphon serve`: start, supervise, replace and stop workers and adapters together."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

import antiphon
from antiphon.connection.endpoint import CHAT, LIVE, REALTIME, TRANSCRIPTION, endpoint
from antiphon.grpc import get_info
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_command.arguments.configuration import add_config_option, refused
from antiphon_command.arguments.dispatcher import DISPATCHER_FILES, add_dispatcher_options
from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    add_help_all,
    as_given,
    examples,
    given_options,
    positive_int,
    seconds,
)
from antiphon_command.commands.adapter import (
    ADMIN_PORT,
    add_listen_options,
    add_public_options,
    given_adapter_options,
)
from antiphon_command.commands.worker import (
    add_context_options,
    add_engine_options,
    add_kernel_option,
    add_minicpmo_options,
    add_model_options,
    check_model,
    given_model_options,
    require_engine,
)
from antiphon_command.output.failure import (
    ExitCode,
    Failure,
    bind_failure,
    require_extra,
)
from antiphon_command.output.terminal import Style
from antiphon_command.processes.plan import DRAIN_TIMEOUT_S, Plan
from antiphon_command.processes.redis_server import find_redis
from antiphon_command.processes.stack import Stack
from antiphon_service.listening import bind_all
from antiphon_service.redis import RedisUnusable, parse

_OF_PROCESSES: Final = ("workers", "adapters", "dispatcher", *DISPATCHER_FILES)


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "serve",
        "serve the model here: workers and adapters",
        examples("antiphon serve --slots 8", "antiphon serve --device cuda --workers 4 --adapters 2"),
        run,
    )
    add_listen_options(command)
    add_model_options(command)
    add_config_option(command, "serve")
    add_help_all(command)
    add_context_options(command.add_argument_group("contexts"))
    add_public_options(command)
    _add_process_options(command)
    command.add_argument_group("the web page").add_argument(
        "--open", action="store_true", default=False, help="open it in a browser once it is ready"
    )
    add_kernel_option(command)
    add_minicpmo_options(command)
    add_engine_options(command)
    command.add_argument_group("administration").add_argument("--admin-port", **ADMIN_PORT)


def _add_process_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("several processes").add_argument
    add("--workers", type=positive_int, metavar="N", help="workers; with cuda one on each device (default 1)")
    add(
        "--adapters",
        type=positive_int,
        default=1,
        metavar="N",
        help="adapters, which share one port (default 1)",
    )
    add("--drain-timeout-s", type=seconds, metavar="S", help="longest drain at shutdown (default 60)")
    add_dispatcher_options(
        command.add_argument_group("the shared queue; several adapters start a private Redis by default")
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the stack until a signal, or until one of the processes cannot be started again."""
    require_engine("serve", arguments)
    require_extra("serve", "all")
    check_model(arguments)
    _check_adapter(arguments)
    _check_dispatcher(arguments)
    return asyncio.run(_serve(arguments))


async def _serve(arguments: argparse.Namespace) -> int:
    plan = _plan(arguments)
    reloads = any(name in arguments for name in ("keys", "tls_cert", "usage_log")) or plan.workers_reload
    async with Stack(plan, tell) as stack:
        stopping = _stop_on_signal(stack, reloads=reloads)
        starting = asyncio.create_task(stack.start())
        if await _signalled_before(starting, stopping):
            starting.cancel()
            return ExitCode.OK
        found = starting.result()
        rolls = _roll_on_signal(stack)  # before the banner, which reports that all are ready
        has_administration = plan.admin_port is not None
        clients = found[0][:-1] if has_administration else found[0]
        page = f"{clients[-1]}/" if "no_page" not in arguments else ""
        await print_banner(
            clients,
            stack.worker_targets,
            _access(arguments),
            page,
            [addresses[-1] for addresses in found] if has_administration else [],
            _queue(stack),
        )
        if page and arguments.open:
            await asyncio.to_thread(webbrowser.open, page)
        return await _watch(stack, stopping, rolls)


def _roll_on_signal(stack: Stack) -> set[asyncio.Task[None]]:
    """Replace all processes on SIGUSR1; return the tasks that do so."""
    rolls: set[asyncio.Task[None]] = set()
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGUSR1, lambda: rolls.add(asyncio.create_task(stack.roll()))
    )
    return rolls


async def _watch(stack: Stack, stopping: asyncio.Event, rolls: set[asyncio.Task[None]]) -> int:
    """Wait for a signal, or until one of the processes cannot be started again."""
    watching = asyncio.create_task(stack.watch())
    signalled = await _signalled_before(watching, stopping)
    for task in (watching, *rolls):
        task.cancel()
    await asyncio.wait({watching, *rolls})
    if not signalled:
        raise watching.result()
    tell("  Draining: running conversations may finish. Ctrl-C again stops at once.")
    return ExitCode.OK if await stack.drain() else ExitCode.FAILED


def _plan(arguments: argparse.Namespace) -> Plan:
    named = arguments.device.split(",") if "device" in arguments else []
    workers = getattr(arguments, "workers", len(named) or 1)
    if named == ["cuda"] and workers > 1:
        named = [f"cuda:{index}" for index in range(workers)]
    return Plan(
        worker=given_model_options(arguments),
        adapter=given_adapter_options(arguments),
        workers=workers,
        adapters=arguments.adapters,
        devices=named,
        admin_port=getattr(arguments, "admin_port", None),
        dispatcher=getattr(arguments, "dispatcher", None),
        shared=as_given(arguments, DISPATCHER_FILES),
        drain_timeout_s=getattr(arguments, "drain_timeout_s", DRAIN_TIMEOUT_S),
    )


def _queue(stack: Stack) -> str:
    """Return the address of the shared queue without its password; empty without one."""
    return str(parse(stack.dispatcher)) if stack.dispatcher is not None else ""


def _access(arguments: argparse.Namespace) -> str:
    """Return a description of the access control, for the banner."""
    if "keys" in arguments or vars(arguments).get("auth") == "redis":
        return "keys"
    return f"no key: {'open to the network' if 'allow_anonymous' in arguments else 'loopback only'}"


def tell(line: str) -> None:
    """Print a line to standard error, if that is still open; standard output is for the banner."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _stop_on_signal(stack: Stack, *, reloads: bool) -> asyncio.Event:
    """Return an event that the first signal sets; the next ones end all processes at once.

    If the adapter `reloads` files on SIGHUP, only a SIGHUP from a closed terminal is such a signal.
    """
    stopping = asyncio.Event()
    had_terminal = _has_terminal()

    def on_signal() -> None:
        if stopping.is_set():
            stack.kill()
        stopping.set()

    def on_hangup() -> None:
        if not reloads or (had_terminal and not _has_terminal()):
            on_signal()
        else:
            tell("  Keys and certificate are read again.")
            stack.reload()

    for number, handler in (
        (signal.SIGINT, on_signal),
        (signal.SIGTERM, on_signal),
        (signal.SIGHUP, on_hangup),
    ):
        asyncio.get_running_loop().add_signal_handler(number, handler)
    return stopping


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def _signalled_before(task: "asyncio.Task[Any]", stopping: asyncio.Event) -> bool:
    """Wait until the task is done or a signal came; return whether a signal came."""
    signalled = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        signalled.cancel()
    return stopping.is_set()


async def print_banner(
    addresses: Sequence[str],
    workers: Sequence[str],
    access: str,
    page: str = "",
    administrations: Sequence[str] = (),
    queue: str = "",
) -> None:
    """Print the models and the addresses, once all of them are ready.

    `addresses` are those for clients, the plain one first; the banner shows the last one, which is that with
    TLS if there are two. `page` is the address of the web page, empty without it. `administrations` are the
    addresses of the adapters' administration ports. `queue` is the address of the shared queue.
    """
    from ws_adapter.detection.scorer import TITLES, best_scorer

    infos: list[pb.GetInfoResponse] = await asyncio.gather(*map(get_info, workers))
    info, count = infos[0], sum(each.slots for each in infos)
    hears = pb.SESSION_MODE_AUDIO in info.modes or pb.SESSION_MODE_TRANSCRIBE in info.modes
    style = Style()
    slots = "1 slot" if count == 1 else f"{count} slots"
    if len(workers) > 1:
        slots += f" of {len(workers)} workers"
    name = style(f"Antiphon {antiphon.__version__}", "bold")
    print(f"  {name} | {info.model} | {slots} | {access}\n")
    for name, where in (
        *([("Web page", page)] if page else []),
        *((name, where) for mode, name, where in _services(addresses[-1]) if mode in info.modes),
        *([("Speech", f"detected by {TITLES[best_scorer().name]}")] if hears else []),
        *(("gRPC", worker) for worker in workers),
        *([("Queue", queue)] if queue else []),
        ("Health", f"{addresses[0]}/readyz"),
        *(("Status", f"{administration}/") for administration in administrations),
    ):
        print(f"  {name:<11} {style(where, 'cyan')}")
    print("  Ctrl-C to drain and stop", flush=True)


def _services(address: str) -> tuple[tuple[int, str, str], ...]:
    """Return mode, title and address of each public service; the model must support the mode."""
    return (
        (pb.SESSION_MODE_AUDIO, "WebSocket", endpoint(address, REALTIME, mode="audio")),
        (pb.SESSION_MODE_AUDIO, "Live", endpoint(address, LIVE)),
        (pb.SESSION_MODE_CHAT, "Chat", endpoint(address, CHAT)),
        (pb.SESSION_MODE_TRANSCRIBE, "Transcribe", endpoint(address, TRANSCRIPTION)),
    )


def _check_adapter(arguments: argparse.Namespace) -> None:
    """Detect a refused or busy address, and unusable files, before the model is loaded."""
    from ws_adapter.access.keys import Keys
    from ws_adapter.options import AdapterOptions
    from ws_adapter.pages.default_voice import read_default_voice
    from ws_adapter.process.errors import ConfigurationError
    from ws_adapter.web.tls import Certificate

    try:
        # `workers` is a number here, and `_check_dispatcher` checks the options of the shared queue.
        given = argparse.Namespace(**{k: v for k, v in vars(arguments).items() if k not in _OF_PROCESSES})
        options = given_options(AdapterOptions, given, workers=("unix:to come",))
        if options.keys is not None:
            Keys(options.keys)
        if options.tls_cert is not None and options.tls_key is not None:
            Certificate(options.tls_cert, options.tls_key)
        if options.voices is not None:
            read_default_voice(options.voices)
    except ConfigurationError as error:
        raise Failure(refused(error, arguments), ExitCode.USAGE) from None
    _check_free(options.host, options.port)
    if options.tls_cert is not None:
        _check_free(options.host, options.tls_port, "--tls-port")
    if options.admin_port:
        for port in range(options.admin_port, options.admin_port + arguments.adapters):
            _check_free(options.admin_host, port, "--admin-port")


def _check_dispatcher(arguments: argparse.Namespace) -> None:
    """Detect an unusable shared queue before the model is loaded."""
    if "dispatcher" in arguments:
        try:
            parse(arguments.dispatcher)
        except RedisUnusable as error:
            raise Failure(str(error), ExitCode.USAGE) from None
    elif arguments.adapters > 1:
        find_redis()
    if ("dispatcher" in arguments or arguments.adapters > 1) and find_spec("redis") is None:
        raise Failure(
            "A shared queue needs the package redis. Install with: pip install 'antiphon[redis]'",
            ExitCode.USAGE,
        )


def _check_free(host: str, port: int, option: str = "--port") -> None:
    """Raise `Failure` if the adapter could not listen on one of the addresses."""
    try:
        for sock in bind_all(host, port):
            sock.close()
    except OSError as error:
        raise bind_failure(error, host, port, option) from None
