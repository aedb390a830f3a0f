"""`antiphon key`: a new key for clients of an adapter."""

import argparse
import sys
import time
from typing import Final

from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    add_help_all,
    examples,
)
from antiphon_command.output.failure import ExitCode, Failure, require_extra

_FIELDS: Final = {
    "expires": ("WHEN", "2030-01-31, or 2030-01-31T18:00:00Z (default: never)"),
    "modes": ("A,B", "audio, video, chat or transcription (default: all)"),
    "models": ("A,B", "names as in /v1/models (default: all)"),
    "origins": ("A,B", "web pages, such as https://example.org (default: all)"),
    "connections": ("N", "connections at once (default: the adapter's)"),
    "opens_per_min": ("N", "connection attempts per minute (default: the adapter's)"),
    "direct_slots": ("N", "slots by direct calls at once (default: the adapter's)"),
    "seconds_per_day": ("S", "seconds of slots in a UTC day (default: no quota)"),
    "tokens_per_day": ("N", "tokens in a UTC day (default: no quota)"),
    "priority": ("CLASS", "low, normal or high in the queue (default normal)"),
}
"""The fields of a line in a file of keys, each with metavar and help."""

_RATES: Final = ("connections", "opens_per_min", "direct_slots")


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "key",
        "make a key for clients, and its line for the file of keys",
        examples(
            "antiphon key operator --admin >> keys",
            "antiphon key page --modes chat --expires 2030-01-31 >> keys",
        ),
        run,
        "NAME",
    )
    command.add_argument("name", metavar="NAME", help="name of the owner")
    command.add_argument("--admin", action="store_true", default=False, help="may see other keys' sessions")
    command.add_argument(
        "--trusted", action="store_true", default=False, help="may continue its own traces, by traceparent"
    )
    add_help_all(command)
    rates = command.add_argument_group("limits at once and per minute")
    for name, (metavar, help) in _FIELDS.items():
        options = rates if name in _RATES else command
        options.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=help)


def run(arguments: argparse.Namespace) -> int:
    """Print the line to standard output, and the key, which no file keeps, to standard error."""
    require_extra("key", "adapter")
    from ws_adapter.access.keys import make_key
    from ws_adapter.process.errors import ConfigurationError

    given = vars(arguments)
    fields = {name: given[name] for name in _FIELDS if given.get(name) is not None}
    try:
        secret, key = make_key(arguments.name, fields, is_admin=arguments.admin, is_trusted=arguments.trusted)
    except ConfigurationError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    if key.has_expired(time.time()):
        raise Failure(f"expires must be in the future, not {fields['expires']}.", ExitCode.USAGE)
    print(key.line)
    print(f"The key of {key.name}, which is not shown again: {secret}", file=sys.stderr)
    return ExitCode.OK
