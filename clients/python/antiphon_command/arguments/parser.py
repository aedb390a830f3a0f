"""The argument parser of the commands."""

import argparse
import dataclasses
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Subcommands: TypeAlias = "argparse._SubParsersAction[Command]"

Run: TypeAlias = Callable[[argparse.Namespace], int]
"""A function that runs a command and returns its exit code."""

Options = TypeVar("Options", bound="DataclassInstance")


_USUAL: Final = ("commands", "positional arguments", "options")


class _Help(argparse.RawDescriptionHelpFormatter):
    """A formatter that keeps examples as written, and puts each option on one line if it fits.

    It leaves out options in groups of their own, since not all options fit on a screen.
    """

    shown: Callable[[str | None], bool] = staticmethod(lambda heading: heading in _USUAL)

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)
        self._heading: str | None = None

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        # argparse does not count the indent of command names, and would break the line after the longest.
        names = [len(it.metavar or "") for it in self._iter_indented_subactions(action)]
        self._action_max_length = max([self._action_max_length, *(size + 4 for size in names)])

    def _format_action(self, action: argparse.Action) -> str:
        shown = super()._format_action(action)
        # The heading "commands" of the section makes the first line, the metavar, superfluous.
        return shown.partition("\n")[2] if isinstance(action, argparse._SubParsersAction) else shown

    def start_section(self, heading: str | None) -> None:
        self._heading = heading
        super().start_section(heading)

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        if self.shown(self._heading):
            super().add_arguments(actions)


class FullHelp(_Help):
    """A formatter that shows all options."""

    shown = staticmethod(lambda heading: True)


class _ShowAll(argparse.Action):
    """The option that shows all options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.formatter_class = FullHelp
        parser.print_help()
        parser.exit()


class Command(argparse.ArgumentParser):
    """The parser of one command; it reports unknown arguments itself, with its own usage."""

    initial: Callable[[Sequence[str]], argparse.Namespace] | None = None
    """A function that returns the initial namespace for given arguments, which take precedence over it."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self.initial is not None:
            namespace = self.initial(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(args, namespace)
        self.refuse(unknown)
        return found, unknown

    def refuse(self, unknown: Sequence[str]) -> None:
        """End the process if there are arguments that the command does not know."""
        if unknown:
            self.error(f"{self._problem(unknown[0])}. See {self.prog} --help")

    def _problem(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} is one argument too many"
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, 1)
        return f"unknown option {name}" + (f", perhaps {near[0]}" if near else "")


def add_help_all(command: argparse.ArgumentParser) -> None:
    """Add the option that shows all options, for commands with option groups."""
    command.add_argument(
        "--help-all", dest="help", nargs=0, action=_ShowAll, help="show all options and exit"
    )


def examples(*lines: str) -> str:
    """Return the text of the examples at the end of a help page."""
    return "\n".join(["examples:", *(f"  {line}" for line in lines)])


def parser(description: str, epilog: str) -> argparse.ArgumentParser:
    """Return the parser of the program itself, whose help lists the commands and no options."""
    program = argparse.ArgumentParser(
        "antiphon",
        usage="antiphon [--help | --version] COMMAND ...",
        description=description,
        epilog=epilog,
        formatter_class=_Help,
        allow_abbrev=False,
        add_help=False,
    )
    program.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    return program


def add_command(
    commands: Subcommands,
    name: str,
    summary: str,
    epilog: str,
    run: Run,
    positional: str = "",
    program: str = "antiphon",
) -> Command:
    """Add a subcommand of `program`.

    The caller adds the arguments; `positional` is their part of the usage line.
    """
    command = commands.add_parser(
        name,
        usage=f"{program} {name} [options] {positional}".rstrip(),
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=_Help,
        allow_abbrev=False,
        # Options that are not given stay absent, so that the services' own defaults hold.
        argument_default=argparse.SUPPRESS,
    )
    command.add_argument("--debug", action="store_true", default=False, help="show the traceback of an error")
    command.set_defaults(run=run)
    return command


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def positive_int(text: str) -> int:
    """Return an argument of 1 or more."""
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def non_negative_int(text: str) -> int:
    """Return an argument of 0 or more."""
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value


def positive_float(text: str) -> float:
    """Return an argument above 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return value


def non_negative_float(text: str) -> float:
    """Return an argument of 0 or more."""
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value


def seconds(text: str) -> float:
    """Return an argument of 0 or more, in seconds."""
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def port(text: str) -> int:
    """Return a TCP port; 0 lets the system choose a free one."""
    value = _whole(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port: 0 to 65535")
    return value


def output_file(text: str) -> Path:
    """Return the path of a file that seems writable; check it before a command begins its work."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}: make it, or name another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written to: name another file")
    return path


def given_options(kind: type[Options], arguments: argparse.Namespace, **more: object) -> Options:
    """Return the options of a service: the given arguments, `more`, and the service's defaults.

    Arguments have the names of the fields of `kind`.
    """
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in vars(arguments).items() if name in names}, **more)


def as_given(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return those of the named arguments that were given, as words of a command line."""
    words = []
    for name in names:
        if name in arguments:
            value = getattr(arguments, name)
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [_word(value)])]
    return words


def _word(value: object) -> str:
    """Return a value as text for a command line; None means any, which is written `*`."""
    match value:
        case None:
            return "*"
        case tuple():
            return ",".join(map(str, value))
    return str(value)


def add_log_level(command: argparse.ArgumentParser) -> None:
    """Add the option of services that write a log."""
    levels = ("debug", "info", "warning", "error")
    shown = f"{', '.join(levels[:-1])} or {levels[-1]} (default info)"
    command.add_argument("--log-level", metavar="LEVEL", choices=levels, default="info", help=shown)


def configure_log(arguments: argparse.Namespace) -> None:
    """Write the log to standard error: text on a terminal, otherwise JSON lines."""
    from antiphon_service.telemetry.logs import configure

    configure(arguments.log_level)
