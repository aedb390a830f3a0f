"""`antiphon key`: a new key for clients of an adapter."""

import argparse
import sys

from antiphon.cli.arguments.parser import Subcommands, add_command, examples
from antiphon.cli.output.failure import ExitCode, Failure, require_extra


def add_to(commands: Subcommands) -> None:
    """Adds the subcommand."""
    command = add_command(
        commands,
        "key",
        "make a key for clients, and its line for the file of keys",
        examples("antiphon key alice >> keys", "antiphon key operator --admin >> keys"),
        run,
        "NAME",
    )
    command.add_argument("name", metavar="NAME", help="whose key it is")
    command.add_argument("--admin", action="store_true", default=False, help="may see what belongs to others")
    command.add_argument(
        "--trusted", action="store_true", default=False, help="continues its own traces, by traceparent"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the line to standard output and the key, which is stored nowhere, to standard error."""
    require_extra("key", "adapter")
    from ws_adapter.process.errors import ConfigurationError
    from ws_adapter.web.keys import make_key

    try:
        secret, key = make_key(arguments.name, is_admin=arguments.admin, is_trusted=arguments.trusted)
    except ConfigurationError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    print(key.line)
    print(f"The key of {key.name}, which is not shown again: {secret}", file=sys.stderr)
    return ExitCode.OK
