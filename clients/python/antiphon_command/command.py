"""The command `antiphon`."""

import contextlib
import os
import platform
import signal
import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Final, NoReturn

import antiphon
from antiphon.contract import ERROR_DOMAIN as PROTOCOL
from antiphon_command.arguments.parser import Command, examples, parser
from antiphon_command.output.failure import ExitCode, explain
from antiphon_command.output.terminal import Style

VERSION = f"antiphon {antiphon.__version__}, protocol {PROTOCOL}, Python {platform.python_version()}"

_TALKING: Final = ("serve", "talk", "chat", "transcribe", "demo", "probe", "bench")
_SERVING: Final = ("worker", "adapter", "config", "convert-vocoder", "check-config", "train")
_TENANTS: Final = ("key", "share-keys", "usage")
_COMMANDS: Final = (*_TALKING, *_SERVING, *_TENANTS)
"""The names of the commands, each a module of `antiphon_command.commands`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` defaults to the process's arguments."""
    _configure_grpc()
    program = parser(
        "Serves full-duplex speech models, and talks to them.",
        examples("antiphon serve", "antiphon talk question.wav --out answer.wav"),
    )
    program.add_argument("--version", action="version", version=VERSION, help=SUPPRESS)  # usage shows it
    commands = program.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=Command, prog="antiphon"
    )
    for name in _wanted(sys.argv[1:] if argv is None else argv):
        folder = "tenants." if name in _TENANTS else ""
        import_module(f"antiphon_command.commands.{folder}{name.replace('-', '_')}").add_to(commands)
    arguments = program.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return ExitCode.FAILED
    except BrokenPipeError:
        # The reader of the output has closed it; without this, Python's flush at exit would fail again.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return ExitCode.FAILED
    except Exception as error:
        if arguments.debug:
            raise
        failure = explain(error)
        if str(failure):
            print(Style(sys.stderr)(str(failure), "red"), file=sys.stderr)
        return failure.code


def _configure_grpc() -> None:
    """Set the environment variables that gRPC reads at import, unless the user has set them.

    gRPC logs errors only, since its other lines repeat exceptions. By default grpcio 1.80 to 1.82 pass every
    message through a further polling thread, an experiment that is switched off here. Other releases do not
    know the experiment and would log an error.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    major, minor, *_ = version("grpcio").split(".")
    if (1, 80) <= (int(major), int(minor)) <= (1, 82):
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_poller_for_python")


def _wanted(argv: Sequence[str]) -> Sequence[str]:
    """Return the command in `argv`, so that only its module is imported, or all commands for the help."""
    return argv[:1] if argv and argv[0] in _COMMANDS else _COMMANDS


def leave(code: int) -> NoReturn:
    """End the process at once with the exit code of a command that has released all its resources.

    A regular shutdown of the interpreter takes up to 1.5 s with torch, and Ctrl-C during it prints a
    traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)
