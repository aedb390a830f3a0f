"""YAML documents with the line of each value; all scalars are text, so `on` and `no` are words."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

_LARGEST: Final = 1_000_000
"""The largest size of a file in bytes."""


class DomainFileError(Exception):
    """The error for an unusable domain file; the message names file and line and says what to do."""


class Value:
    """One value of a document, with its name and line."""

    def __init__(self, path: Path, node: Any, name: str, line: int | None = None) -> None:
        self._path = path
        self._node = node
        self._name = name
        self.line = line or int(node.start_mark.line) + 1

    def fail(self, text: str) -> NoReturn:
        """Raise DomainFileError for this place."""
        raise DomainFileError(f"{self._path}:{self.line}: {text}.")

    def text(self) -> str:
        """Return the text of a scalar that is not empty."""
        if not isinstance(self._node, yaml.ScalarNode) or not self._node.value.strip():
            self.fail(f"{self._name} is a text: write it on one line")
        return str(self._node.value)

    def number(self, low: float, high: float) -> float:
        """Return a number from `low` to `high`."""
        try:
            value = float(self.text())
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            self.fail(f"{self._name} is a number from {low:g} to {high:g}")
        return value

    def flag(self) -> bool:
        """Return a truth value."""
        if self.text() not in ("true", "false"):
            self.fail(f"{self._name} is true or false")
        return self.text() == "true"

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        """Whether it has keys."""
        return isinstance(self._node, yaml.MappingNode)

    def items(self) -> "list[Value]":
        """Return the values of a list that is not empty."""
        if not self.is_list or not self._node.value:
            self.fail(f"{self._name} is a list: write each value on a line of its own, after a dash")
        return [Value(self._path, node, f"each of {self._name}") for node in self._node.value]

    def pairs(self) -> "dict[str, Value]":
        """Return the values of a mapping that is not empty, by their keys."""
        if not self.is_mapping or not self._node.value:
            self.fail(f"{self._name} has keys: write each on a line of its own, with a colon behind it")
        found: dict[str, Value] = {}
        for node, value in self._node.value:
            key = Value(self._path, node, "a key")
            if key.text() in found:
                key.fail(f"{key.text()} is there twice: remove one")
            found[key.text()] = Value(self._path, value, key.text(), key.line)
        return found

    def keys(self, required: set[str], optional: set[str]) -> "dict[str, Value]":
        """Return the values of a mapping with all required keys, and no others than the optional ones."""
        found = self.pairs()
        known = required | optional
        for key, value in found.items():
            if key not in known:
                value.fail(f"{self._name} has no key {key}: it takes {', '.join(sorted(known))}")
        for key in sorted(required - found.keys()):
            self.fail(f"{self._name} needs the key {key}: add it")
        return found

    def names(self) -> "Iterator[tuple[str, Value]]":
        """Yield keys and values of a mapping whose keys are lower-case letters, digits and underscores."""
        for key, value in self.pairs().items():
            if not re.fullmatch(r"[a-z][a-z0-9_]*", key):
                value.fail(f"{key!r} is no name: use lower-case letters, digits and underscores")
            yield key, value


def read(path: Path) -> Value:
    """Read the one document of a file; raises DomainFileError, or OSError if it cannot be opened."""
    with open(path, "rb") as file:
        raw = file.read(_LARGEST + 1)
    if len(raw) > _LARGEST:
        raise DomainFileError(f"{path}: larger than {_LARGEST} bytes. Leave out what is not needed.")
    try:
        node = yaml.compose(raw.decode(), Loader=yaml.SafeLoader)
    except UnicodeDecodeError:
        raise DomainFileError(f"{path}: not UTF-8. Save it as UTF-8.") from None
    except RecursionError:
        raise DomainFileError(f"{path}: nested too deeply. A domain file has four levels.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise DomainFileError(
            f"{path}{line}: not YAML, {error.problem or error.context}. Check indentation and colons, and "
            "put a value that begins with a special character in quotes."
        ) from None
    except yaml.YAMLError as error:
        raise DomainFileError(f"{path}: not YAML, {' '.join(str(error).split())}.") from None
    if node is None:
        raise DomainFileError(f"{path}: empty. Begin with the line: name: NAME")
    return Value(path, node, "the file")


Values = Mapping[str, Value]
