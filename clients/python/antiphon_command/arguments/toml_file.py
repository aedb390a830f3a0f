"""TOML files of settings: their tables, and the line of each name."""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LARGEST_KIB: Final = 64
"""The largest file in KiB; a file with all settings has about 5 KiB."""

_MASKED: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)
"""The pattern of strings and comments, which contain no names."""

_PART: Final = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_KEY: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_TABLE: Final = re.compile(rf"[ \t]*\[[ \t]*({_KEY})[ \t]*\]")
_VALUE: Final = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
_REASON: Final = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)
_TWICE: Final = "Cannot overwrite a value"


class SettingsInvalid(ValueError):
    """The error for unusable settings; `problems` are one sentence each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class TomlFile:
    """A parsed configuration file; `lines` has the line of each table and of each name in it."""

    path: Path
    tables: Mapping[str, Any]
    lines: Mapping[tuple[str, ...], int]

    @classmethod
    def read(cls, path: Path) -> "TomlFile":
        """Read the file.

        Raises `SettingsInvalid` for a file that is no TOML, or larger than `LARGEST_KIB`.
        """
        text = _read(path)
        try:
            tables = tomllib.loads(text)
        except RecursionError:
            raise SettingsInvalid(f"{path}: values are nested too deeply.") from None
        except ValueError as error:
            raise SettingsInvalid(_syntax_problem(path, text, str(error))) from None
        return cls(path, tables, _lines(text))

    def place(self, *names: str) -> str:
        """Return `file:line` of a name, or of the table around it."""
        for size in range(len(names), 0, -1):
            if names[:size] in self.lines:
                return f"{self.path}:{self.lines[names[:size]]}"
        return str(self.path)


def _read(path: Path) -> str:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise SettingsInvalid(f"{path} is a directory: name a TOML file.")
        if not stat.S_ISREG(mode):
            raise SettingsInvalid(f"{path} is no regular file: name a TOML file.")
        with path.open("rb") as file:
            data = file.read(LARGEST_KIB * 1024 + 1)
    except FileNotFoundError:
        raise SettingsInvalid(f"{path} does not exist. Check the path of the settings.") from None
    except OSError as error:
        raise SettingsInvalid(f"Cannot read {path}: {error.strerror}.") from None
    if len(data) > LARGEST_KIB * 1024:
        raise SettingsInvalid(f"{path} has more than {LARGEST_KIB} KiB: it is no file of settings.")
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsInvalid(f"{path}:{line}: the text is not UTF-8.") from None


def _syntax_problem(path: Path, text: str, message: str) -> str:
    found = _REASON.fullmatch(message)
    if found is None:
        return f"{path}: {message}."
    reason, line = found[1], found[2] or str(text.count("\n") + 1)
    why = "a name is given twice" if reason == _TWICE else f"not TOML: {reason}"
    return f"{path}:{line}: {why}."


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of every name, tables included; tomllib does not report it."""
    masked = _MASKED.sub(_mask, text)
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(masked.split("\n"), 1):
        if match := _TABLE.match(line):
            table = _parts(match[1])
            found.setdefault(table, number)
        elif match := _VALUE.match(line):
            found.setdefault((*table, *_parts(match[1])), number)
    return found


def _mask(match: re.Match[str]) -> str:
    text = match[0]
    if text.startswith("#"):
        return ""
    return "\n" * text.count("\n") if text.startswith(('"""', "'''")) else text


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))
