"""The fields of a dialect's client events, from its published schema."""

from collections.abc import Iterator
from typing import Any

from ws_adapter.schemas.catalogue import DIALECTS
from ws_adapter.schemas.definitions import bundle

Json = dict[str, Any]


def fields(dialect: str) -> list[tuple[str, str]]:
    """Each field that a client can set: name of its event and path; `[]` is an entry of a list.

    Objects are told by their fields. What has one value only, such as a `type`, can be nothing else.
    """
    (found,) = (each for each in DIALECTS if each.name == dialect)
    document = bundle(found)
    told: list[tuple[str, str]] = []
    for choice in document["$defs"]["ClientEvent"]["oneOf"]:
        name = choice["$ref"].rpartition("/")[2]
        paths = list(dict.fromkeys(_leaves(document, choice, "", ())))
        told += [(name, path) for path in paths if not _is_object(path, paths)]
    return told


def _is_object(path: str, paths: list[str]) -> bool:
    return any(other.startswith((f"{path}.", f"{path}[]")) for other in paths)


def _leaves(document: Json, schema: Json, path: str, inside: tuple[str, ...]) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in inside:
            yield from _leaves(document, document["$defs"][name], path, (*inside, name))
        return
    for choice in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        yield from _leaves(document, choice, path, inside)
    if "items" in schema:
        yield from _leaves(document, schema["items"], f"{path}[]", inside)
    for name, field in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        if not _has_one_value(field) and not _is_given_elsewhere(field):
            yield below
        yield from _leaves(document, field, below, inside)


def _has_one_value(field: Json) -> bool:
    values = [value for value in field.get("enum", ()) if value is not None]
    return "const" in field or len(values) == 1


def _is_given_elsewhere(field: Json) -> bool:
    return field.get("type") == "null"
