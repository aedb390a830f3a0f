"""`antiphon adapter`: one WebSocket server in front of workers."""

import argparse
import asyncio

from antiphon.cli.arguments import (
    Subcommands,
    add_command,
    add_log_level,
    as_given,
    configure_log,
    examples,
    given_options,
    port,
    positive_float,
    positive_int,
    seconds,
)
from antiphon.cli.failure import ExitCode, Failure, require_extra


def add_to(commands: Subcommands) -> None:
    """Adds the subcommand."""
    command = add_command(
        commands,
        "adapter",
        "run one WebSocket server in front of workers",
        examples(
            "antiphon adapter --worker unix:/run/antiphon/worker.sock",
            "antiphon adapter --worker 10.0.0.1:50051,10.0.0.2:50051 --port 9000",
        ),
        run,
    )
    add = command.add_argument
    add(
        "--worker",
        metavar="A,B",
        dest="workers",
        type=_targets,
        required=True,
        help="workers, as host:port or unix:path",
    )
    add_listen_options(command)
    add("--queue-capacity", type=positive_int, metavar="N", help="most that may wait (default 1000)")
    add("--queue-max-wait-s", type=seconds, metavar="S", help="longest wait, 0: any (default 0)")
    add("--session-limit-audio-s", type=seconds, metavar="S", help="longest session, 0: any (default 600)")
    add("--duplex-idle-s", type=seconds, metavar="S", help="idle while others wait (default 60)")
    add("--max-lag-s", type=seconds, metavar="S", help="input older than this is dropped (default 3)")
    add("--slow-consumer-s", type=seconds, metavar="S", help="for clients that do not read (default 5)")
    add("--max-message-mib", type=positive_float, metavar="MIB", help="largest message (default 16)")
    add("--drain-timeout-s", type=seconds, metavar="S", help="for sessions at the end (default 60)")
    add_log_level(command)


def add_listen_options(command: argparse.ArgumentParser) -> None:
    """The options that commands which start an adapter hand on to it."""
    add = command.add_argument
    add("--host", help="address to listen on (default 127.0.0.1)")
    add("--port", type=port, help="0 takes any free one (default 8006)")
    add("--allow-anonymous", action="store_true", help="serve beyond this machine without a key")


def given_listen_options(arguments: argparse.Namespace) -> list[str]:
    """What was given of them, as arguments of `antiphon adapter`."""
    return as_given(arguments, ("host", "port", "allow_anonymous"))


def run(arguments: argparse.Namespace) -> int:
    """Runs it until it is told to stop; prints `adapter ready on URL` when it listens."""
    require_extra("adapter", "adapter")
    from ws_adapter.app import serve
    from ws_adapter.errors import ConfigurationError
    from ws_adapter.options import AdapterOptions

    configure_log(arguments)
    try:
        options = given_options(AdapterOptions, arguments)
    except ConfigurationError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    return asyncio.run(serve(options))


def _targets(text: str) -> tuple[str, ...]:
    targets = tuple(target.strip() for target in text.split(","))
    if not all(targets):
        raise argparse.ArgumentTypeError("name one worker or several with commas between them")
    return targets
