"""`antiphon adapter`: one WebSocket server in front of workers."""

import argparse
import asyncio

from antiphon.cli.arguments import Subcommands, add_command, examples, given_options, port
from antiphon.cli.failure import require_extra


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
    add("--host", help="address to listen on (default 127.0.0.1)")
    add("--port", type=port, help="0 takes any free one (default 8006)")


def run(arguments: argparse.Namespace) -> int:
    """Runs it until it is told to stop; prints `adapter ready on URL` when it is."""
    require_extra("adapter", "adapter")
    from ws_adapter.app import serve
    from ws_adapter.options import AdapterOptions

    return asyncio.run(serve(given_options(AdapterOptions, arguments), print))
