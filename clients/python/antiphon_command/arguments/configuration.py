"""Settings of a command from a TOML file and the environment, in addition to its command line.

The options of the command are the only definition: a setting has the name, the type and the choices of its
option. Flags take precedence over the environment, which takes precedence over the file.
"""

import argparse
import difflib
import inspect
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, get_type_hints

from antiphon_command.arguments.dispatcher import DISPATCHER
from antiphon_command.arguments.parser import Command, Options, given_options
from antiphon_command.arguments.shared_key import ADMIN_KEY, CLIENT_SECRET_KEY, WORKER_KEY
from antiphon_command.arguments.toml_file import SettingsInvalid, TomlFile

SECTIONS: Final = ("adapter", "worker", "serve")
"""The tables of the file; each has the name of the command that it configures."""

CONFIG: Final = "ANTIPHON_CONFIG"
"""The environment variable that names the file if `--config` does not."""

DEFAULT: Final = "default"
"""The origin of a value that is the default."""

_SHARED: Final = {
    "worker_key_file": WORKER_KEY,
    "admin_key_file": ADMIN_KEY,
    "client_secret_key_file": CLIENT_SECRET_KEY,
    "dispatcher": DISPATCHER,
}
"""Settings that a variable shared by all commands can set; it takes precedence over the file."""

_NO_SETTINGS: Final = ("help", "debug", "config")
_SWITCH: Final = {"true": True, "1": True, "false": False, "0": False}
_UNSET: Final = object()


@dataclass(frozen=True)
class GivenValue:
    """A value and its origin: `file:line`, the name of a variable, or an option."""

    value: Any
    origin: str


class Setting:
    """One option of a command, as a setting of the file and the environment."""

    def __init__(self, action: argparse.Action) -> None:
        self.option = action.option_strings[0]
        self.name = self.option.removeprefix("--").replace("-", "_")
        self.dest = action.dest
        self.help = action.help or ""
        self.default = action.default
        self.choices = action.choices
        self.is_switch = action.nargs == 0
        self._type = action.type
        self.kind: type = bool if self.is_switch else _kind(action.type)

    @property
    def takes(self) -> str:
        """The description of the valid values."""
        if self.choices is not None:
            return " or ".join(json.dumps(choice) for choice in self.choices)
        return {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            tuple: "an array of strings",
        }.get(self.kind, "a string")

    def of_toml(self, value: object) -> Any:
        """Convert a TOML value to the option's value. Raises `ValueError`, whose text follows the name."""
        match value:
            case bool():
                fits = self.kind is bool
            case int():
                fits = self.kind in (int, float)
            case float():
                fits = self.kind is float
            case str():
                fits = self.kind not in (bool, int, float)
            case list():
                fits = self.kind is tuple and all(isinstance(each, str) for each in value)
            case _:
                fits = False
        if not fits:
            raise ValueError(f"must be {self.takes}, not {_shown_toml(value)}")
        if isinstance(value, bool):
            return value
        return self.of_text(",".join(value) if isinstance(value, list) else str(value))

    def of_text(self, text: str) -> Any:
        """Parse a value from a command line or a variable. Raises `ValueError` like `of_toml`."""
        if self.is_switch:
            if text not in _SWITCH:
                raise ValueError(f"must be true or false, not {json.dumps(text)}")
            return _SWITCH[text]
        try:
            value = self._type(text) if callable(self._type) else text
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"cannot be used: {error}") from None
        except (TypeError, ValueError):
            raise ValueError(f"must be {self.takes}, not {json.dumps(text)}") from None
        if self.choices is not None and value not in self.choices:
            raise ValueError(f"must be {self.takes}, not {json.dumps(text)}")
        return value


class Section:
    """The settings of one command."""

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        self.settings = {
            setting.name: setting
            for setting in map(Setting, filter(lambda it: it.option_strings, command._actions))
            if setting.dest not in _NO_SETTINGS
        }
        self._command = command

    def of_file(self, file: TomlFile) -> tuple[dict[str, GivenValue], list[str]]:
        """Return the usable values of the file, and all its problems in this section."""
        given: dict[str, GivenValue] = {}
        problems: list[str] = []
        table = file.tables.get(self.name, {})
        if not isinstance(table, dict):
            return given, [f"{file.place(self.name)}: {self.name} must be a table: [{self.name}]."]
        for name, value in table.items():
            place = file.place(self.name, name)
            if name not in self.settings:
                near = _nearest(name, self.settings)
                problems.append(f"{place}: {self.name}.{_printable(name)} is unknown{near}.")
                continue
            try:
                given[name] = GivenValue(self.settings[name].of_toml(value), place)
            except ValueError as error:
                problems.append(f"{place}: {self.name}.{name} {error}.")
        return given, problems

    def of_environment(self, environment: Mapping[str, str]) -> tuple[dict[str, GivenValue], list[str]]:
        """Return the usable values of the variables, and all problems; an empty variable counts as unset."""
        given: dict[str, GivenValue] = {}
        problems: list[str] = []
        prefix = _prefix(self.name)
        for variable, text in sorted(environment.items()):
            name = variable.removeprefix(prefix).lower()
            if not variable.startswith(prefix) or not text:
                continue
            if variable != prefix + name.upper() or name not in self.settings:
                variables = [prefix + known.upper() for known in self.settings]
                problems.append(f"{_printable(variable)} is unknown{_nearest(variable, variables)}.")
                continue
            try:
                given[name] = GivenValue(self.settings[name].of_text(text), variable)
            except ValueError as error:
                problems.append(f"{variable} {error}.")
        return given, problems

    def given(self, file: TomlFile | None, environment: Mapping[str, str]) -> dict[str, GivenValue]:
        """Return the values of the file and of the section's variables; the parser reads shared variables.

        Raises `SettingsInvalid` with all problems.
        """
        found: dict[str, GivenValue] = {}
        problems: list[str] = []
        if file is not None:
            found, problems = self.of_file(file)
            problems = [*unknown_sections(file), *problems]
        for name, variable in _SHARED.items():
            if environment.get(variable):
                found.pop(name, None)
        variables, more = self.of_environment(environment)
        if problems or more:
            raise SettingsInvalid(*problems, *more)
        return found | variables

    def namespace(self, given: Mapping[str, GivenValue]) -> argparse.Namespace:
        """Return the initial namespace of the command's parser.

        A switch that is off is left out, as on a command line.
        """
        found = argparse.Namespace(origins={})
        for name, each in given.items():
            if each.value is not False:
                setattr(found, self.settings[name].dest, each.value)
                found.origins[self.settings[name].dest] = each
        return found

    def complete(self, found: argparse.Namespace) -> argparse.Namespace:
        """Add the defaults of the command's parser for values that are not set."""
        return argparse.ArgumentParser.parse_known_args(self._command, [], found)[0]

    def flags(self, words: Sequence[str]) -> dict[str, GivenValue]:
        """Return the values of the command line alone."""
        marked = argparse.Namespace(**{each.dest: _UNSET for each in self.settings.values()})
        _, unknown = argparse.ArgumentParser.parse_known_args(self._command, words, marked)
        self._command.refuse(unknown)
        return {
            name: GivenValue(getattr(marked, setting.dest), setting.option)
            for name, setting in self.settings.items()
            if getattr(marked, setting.dest) is not _UNSET
        }

    def shared(self, environment: Mapping[str, str]) -> dict[str, GivenValue]:
        """Return the values of variables that several commands share; keys as bytes."""
        return {
            name: GivenValue(
                environment[variable] if variable == DISPATCHER else environment[variable].encode().strip(),
                variable,
            )
            for name, variable in _SHARED.items()
            if name in self.settings and environment.get(variable)
        }


def add_config_option(command: Command, section: str) -> None:
    """Add the option that makes a command read its section of a file, and its variables."""
    command.add_argument_group("settings from a file").add_argument(
        "--config", type=Path, metavar="FILE", help=f"TOML, see antiphon config (or {CONFIG})"
    )

    def initial(words: Sequence[str]) -> argparse.Namespace:
        if {"-h", "--help", "--help-all"} & {*words}:
            return argparse.Namespace()
        here = Section(section, command)
        try:
            file = read_file(words, os.environ)
            found = here.namespace(here.given(file, os.environ))
        except SettingsInvalid as error:
            command.exit(2, f"{error}\n")
        if file is not None:
            flags = here.flags(words)
            found.reread = partial(_reread, here, file.path, flags)
        return found

    command.initial = initial


def refused(error: Exception, arguments: argparse.Namespace) -> str:
    """Return a service's message about a value; unless a flag set the value, its origin comes first."""
    name = str(error).split(" ", 1)[0]
    given: GivenValue | None = getattr(arguments, "origins", {}).get(name)
    if given is None or getattr(arguments, name) is not given.value:
        return str(error)
    return f"{given.origin}: {error}"


def _reread(section: Section, path: Path, flags: Mapping[str, GivenValue]) -> argparse.Namespace:
    """Return the arguments of a command with the current content of its file. Raises `SettingsInvalid`."""
    given = section.given(TomlFile.read(path), os.environ)
    return section.complete(section.namespace({**given, **flags}))


def reader(
    arguments: argparse.Namespace, kind: type[Options], refusal: type[Exception]
) -> Callable[[], Options] | None:
    """Return a function that reads the options of a service again, None without a file.

    The function raises `refusal` for unusable settings; otherwise it also sets the log level.
    """
    if "reread" not in arguments:
        return None

    def read() -> Options:
        try:
            again = arguments.reread()
        except SettingsInvalid as error:
            raise refusal(str(error)) from None
        try:
            options = given_options(kind, again)
        except refusal as error:
            raise refusal(refused(error, again)) from None
        logging.getLogger().setLevel(again.log_level.upper())
        return options

    return read


def read_file(words: Sequence[str], environment: Mapping[str, str]) -> TomlFile | None:
    """Read the file that the command line or the environment names; None without one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config")
    try:
        named = parser.parse_known_args(words)[0].config
    except argparse.ArgumentError:
        return None  # the command itself refuses an option without a value
    path = named if named is not None else environment.get(CONFIG)
    return TomlFile.read(Path(path)) if path else None


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child that gets all its settings as arguments."""
    prefixes = tuple(map(_prefix, SECTIONS))
    return {
        name: value for name, value in environment.items() if name != CONFIG and not name.startswith(prefixes)
    }


def _prefix(section: str) -> str:
    """Return the prefix of a section's variables.

    It ends with two underscores: with one, Kubernetes' variables for a service would count as settings.
    """
    return f"ANTIPHON_{section.upper()}__"


def unknown_sections(file: TomlFile) -> Iterator[str]:
    """Yield a problem for each table that no command reads."""
    for name in file.tables:
        if name not in SECTIONS:
            known = ", ".join(f"[{section}]" for section in SECTIONS)
            near = _nearest(name, SECTIONS) or f": the tables are {known}"
            yield f"{file.place(name)}: {_printable(name)} is unknown{near}."


def _nearest(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name[:100], known, 1)
    return f", perhaps {near[0]}" if near else ""


def _printable(name: str) -> str:
    return name if name.isprintable() and len(name) <= 100 else json.dumps(name[:100])


def _kind(reader: Any) -> type:
    """Return the type of value that an option's `type` produces."""
    if reader is None:
        return str
    found = reader if inspect.isclass(reader) else get_type_hints(reader)["return"]
    return getattr(found, "__origin__", found)


def _shown_toml(value: object) -> str:
    match value:
        case dict():
            return "a table"
        case list():
            return "an array"
        case bool() | int() | float() | str():
            text = json.dumps(value)
            return text if len(text) <= 60 else f"{text[:60]}..."
    return "a date or time"
