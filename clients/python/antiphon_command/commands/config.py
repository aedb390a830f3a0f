"""`antiphon config`: check, show and describe the settings of the services."""

import argparse
import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from antiphon_command.arguments.configuration import (
    CONFIG,
    DEFAULT,
    SECTIONS,
    GivenValue,
    Section,
    Setting,
    read_file,
    unknown_sections,
)
from antiphon_command.arguments.parser import (
    Command,
    Subcommands,
    add_command,
    examples,
    parser,
)
from antiphon_command.arguments.toml_file import LARGEST_KIB, SettingsInvalid, TomlFile
from antiphon_command.output.failure import ExitCode, Failure, require_extra
from antiphon_command.output.settings_page import page
from antiphon_service.redis import RedisUnusable, parse

_PROGRAM: Final = "antiphon config"
_HIDDEN: Final = "********"
_COMPLETED: Final[dict[str, Any]] = {"workers": ("unix:named-elsewhere",)}
"""The options that an adapter requires, and that a valid file may leave to flags."""

_NOT_OF_ADAPTER: Final = frozenset({"workers", "adapters", "dispatcher", "drain_timeout_s"})
"""The settings of `serve` that have another meaning for an adapter, or concern several processes."""

_DEFAULT_IN_HELP: Final = re.compile(r",? \(?default:? ([^()]*)\)$")


def add_to(commands: Subcommands) -> None:
    """Add the subcommand with its own subcommands."""
    command = add_command(
        commands,
        "config",
        "check and show the settings of serve, worker and adapter",
        examples(
            "antiphon config check antiphon.toml",
            "antiphon config show --config antiphon.toml adapter --port 9000",
        ),
        _show,
        "show|check|reference",
    )
    below = command.add_subparsers(metavar="WHAT", required=True, parser_class=Command, prog=_PROGRAM)
    show = add_command(
        below,
        "show",
        "show every value with its origin",
        examples(
            "antiphon config show adapter --port 9000",
            "antiphon config show --config antiphon.toml --json",
        ),
        _show,
        "[SECTION [OPTIONS]]",
        _PROGRAM,
    )
    show.add_argument("--config", metavar="FILE", default=None, help=f"settings in TOML (or {CONFIG})")
    show.add_argument(
        "--json", action="store_true", default=False, help="print JSON; secrets are hidden, too"
    )
    show.add_argument(
        "section", metavar="SECTION", nargs="?", choices=SECTIONS, default=None, help=" or ".join(SECTIONS)
    )
    show.add_argument("words", metavar="OPTIONS", nargs=argparse.REMAINDER, help="options of that command")
    check = add_command(
        below,
        "check",
        "report all problems of a file",
        examples("antiphon config check antiphon.toml", "antiphon config check /etc/antiphon.toml"),
        _check,
        "FILE",
        _PROGRAM,
    )
    check.add_argument("file", metavar="FILE", type=Path, help="TOML")
    add_command(
        below,
        "reference",
        "write the page of all settings to standard output",
        examples("antiphon config reference | less", "antiphon config reference > docs/configuration.md"),
        _reference,
        "",
        _PROGRAM,
    )


def _show(arguments: argparse.Namespace) -> int:
    words = arguments.words
    if arguments.config is not None:
        words = ["--config", arguments.config, *words]
    try:
        file = read_file(words, os.environ)
        rows = [
            (section.name, setting, given)
            for name in ([arguments.section] if arguments.section else SECTIONS)
            for section in [_section(name)]
            for setting, given in _values(section, file, words)
        ]
    except SettingsInvalid as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    if arguments.json:
        shown = [
            {
                "section": section,
                "name": setting.name,
                "value": _shown(setting, it.value),
                "origin": it.origin,
            }
            for section, setting, it in rows
        ]
        print(json.dumps(shown, indent=2))
        return ExitCode.OK
    lines = [
        (f"{section}.{setting.name} = {_in_toml(_shown(setting, it.value))}", it.origin)
        for section, setting, it in rows
    ]
    width = min(60, max(len(line) for line, _ in lines))
    for line, origin in lines:
        print(f"{line:<{width}}  {origin}")
    return ExitCode.OK


def _values(section: Section, file: TomlFile | None, words: list[str]) -> list[tuple[Setting, GivenValue]]:
    given = section.shared(os.environ) | section.given(file, os.environ) | section.flags(words)
    defaults = _defaults(section)
    return [
        (setting, given.get(name) or GivenValue(defaults.get(setting.dest, _own_default(setting)), DEFAULT))
        for name, setting in section.settings.items()
    ]


def _check(arguments: argparse.Namespace) -> int:
    try:
        file = TomlFile.read(arguments.file)
    except SettingsInvalid as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    problems = [*unknown_sections(file)]
    for section in map(_section, SECTIONS):
        given, own = section.of_file(file)
        problems += own
        if section.name in file.tables:
            problems += _service_problems(section, file, given)
    if problems:
        raise Failure("\n".join(sorted(problems, key=_line)), ExitCode.USAGE)
    print(f"{file.path} is valid.")
    return ExitCode.OK


def _line(problem: str) -> int:
    """Return the line of a problem; problems of the whole file come last."""
    found = re.search(r":(\d+): ", problem)
    return int(found[1]) if found else LARGEST_KIB * 1024


def _service_problems(section: Section, file: TomlFile, given: Mapping[str, GivenValue]) -> list[str]:
    """Return the problems that the service itself would report: bounds, and contradictions of values."""
    require_extra("config check", "worker" if section.name == "worker" else "adapter")
    shared = section.shared(os.environ)
    shared.pop("client_secret_key_file", None)  # keys themselves, which the service reads when it starts
    values = vars(section.namespace({**shared, **given}))
    by_dest = {setting.dest: setting for setting in section.settings.values()}
    build, error_type = _service(section)
    problems = []
    while True:
        try:
            build(values)
        except error_type as error:
            name = str(error).split(" ", 1)[0]
            place = file.place(section.name, by_dest[name].name) if name in by_dest else str(file.path)
            joint = "." if name in by_dest else ": "
            problems.append(f"{place}: {section.name}{joint}{error}")
            if name not in values:
                return problems
            # Check the remaining values without this one: each has problems of its own.
            del values[name]
        else:
            return problems


def _service(section: Section) -> tuple[Callable[[dict[str, Any]], object], type[Exception]]:
    """Return the function that builds the service's options from values, and the exception that it raises."""
    if section.name == "worker":
        from inference_service import errors
        from inference_service.options import WorkerOptions

        return lambda values: WorkerOptions(**_fields(WorkerOptions, values)), errors.ConfigurationError
    from ws_adapter.options import AdapterOptions
    from ws_adapter.process.errors import ConfigurationError

    def build(values: dict[str, Any]) -> object:
        if section.name == "serve":
            values = {name: value for name, value in values.items() if name not in _NOT_OF_ADAPTER}
        if not {"workers", "workers_file", "dispatcher"} & values.keys():
            values = values | _COMPLETED
        return AdapterOptions(**_fields(AdapterOptions, values))

    return build, ConfigurationError


def _fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _section(name: str) -> Section:
    """Return the settings of a command without an import of its packages."""
    commands = parser("", "").add_subparsers(parser_class=Command, prog="antiphon")
    import_module(f"antiphon_command.commands.{name}").add_to(commands)
    return Section(name, commands.choices[name])


def _defaults(section: Section) -> dict[str, Any]:
    """Return the defaults of the service by field."""
    require_extra("config show", "worker" if section.name == "worker" else "adapter")
    kinds: list[Any] = []
    if section.name != "worker":
        from ws_adapter.options import AdapterOptions

        kinds.append(AdapterOptions)
    if section.name != "adapter":
        require_extra("config show", "worker")
        from inference_service.options import WorkerOptions

        kinds.append(WorkerOptions)
    found = {
        field.name: field.default
        for kind in reversed(kinds)
        for field in dataclasses.fields(kind)
        if field.default is not dataclasses.MISSING
    }
    if section.name == "serve":
        found["workers"] = None
    return found


def _own_default(setting: Setting) -> Any:
    if setting.default is not argparse.SUPPRESS and setting.default is not None:
        return setting.default
    return False if setting.is_switch else None


def _shown(setting: Setting, value: Any) -> Any:
    """Return a value in JSON's types; hide secrets."""
    if value is None or value == ():
        return None
    if isinstance(value, bytes):
        return _HIDDEN
    if setting.name == "dispatcher":
        try:
            return str(parse(value))
        except RedisUnusable:
            return _HIDDEN
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, bool | int | float) else str(value)


def _in_toml(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, ensure_ascii=False)


def _reference(arguments: argparse.Namespace) -> int:
    print(reference(), end="")
    return ExitCode.OK


def reference() -> str:
    """Return the page of all settings."""
    require_extra("config reference", "all")
    import inference_service.options
    import ws_adapter.options

    reloaded = {
        "adapter": {*ws_adapter.options.RELOADED, "log_level"},
        "worker": {*inference_service.options.RELOADED, "log_level"},
        "serve": set[str](),
    }
    tables = {
        name: [
            (
                f"`{setting.name}`",
                setting.takes,
                _default_text(setting),
                _meaning(setting),
                "yes" if setting.dest in reloaded[name] else "",
            )
            for setting in _section(name).settings.values()
        ]
        for name in SECTIONS
    }
    return page(tables)


def _default_text(setting: Setting) -> str:
    found = _DEFAULT_IN_HELP.search(setting.help)
    return found[1] if found else ("false" if setting.is_switch else "none")


def _meaning(setting: Setting) -> str:
    return _DEFAULT_IN_HELP.sub("", setting.help).strip()
