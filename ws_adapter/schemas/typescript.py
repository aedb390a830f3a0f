"""The events of all dialects as types for TypeScript, and for JavaScript that it checks."""

import json
from collections.abc import Iterable, Iterator
from typing import Final

from ws_adapter.schemas.catalogue import DIALECTS, Dialect, Json
from ws_adapter.schemas.definitions import bundle

_HEAD: Final = """\
// Made by `make schemas` from the definitions that the server decodes with. Optional fields are absent if
// they have no value.

/** Base64; the comment of a field says what it encodes. */
export type Base64 = string;
"""

_PLAIN: Final = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def declarations() -> str:
    """Return the module: one namespace for each dialect, with `ClientEvent`, `ServerEvent` and the types
    that they contain."""
    return "\n".join([_HEAD, *map(_namespace, DIALECTS)])


def _namespace(dialect: Dialect) -> str:
    name = "".join(part.capitalize() for part in dialect.name.split("_"))
    lines = [f"/** {dialect.title}. */", f"export namespace {name} {{"]
    for title, definition in bundle(dialect)["$defs"].items():
        lines += [f"  {line}" for line in _definition(title, definition)]
    return "\n".join([*lines, "}", ""])


def _definition(name: str, definition: Json) -> Iterator[str]:
    yield from _comment(definition)
    if "properties" not in definition:
        yield f"type {name} = {_type(definition)};"
        return
    yield f"interface {name} {{"
    required = definition.get("required", ())
    for field, schema in definition["properties"].items():
        yield from (f"  {line}" for line in _comment(schema))
        yield f"  {field}{'' if field in required else '?'}: {_type(schema)};"
    yield "}"


def _comment(schema: Json) -> Iterator[str]:
    if told := schema.get("description"):
        yield f"/** {told} */"


def _type(schema: Json) -> str:
    match schema:
        case {"$ref": str(target)}:
            return target.rpartition("/")[2]
        case {"const": value}:
            return json.dumps(value)
        case {"enum": values}:
            return _union(json.dumps(value) for value in values)
        case {"anyOf": choices} | {"oneOf": choices}:
            return _union(map(_type, choices))
        case {"type": list(kinds)}:
            return _union(_type({**schema, "type": kind}) for kind in kinds)
        case {"type": "array"}:
            return f"Array<{_type(schema.get('items', {}))}>"
        case {"type": "string", "contentEncoding": "base64"}:
            return "Base64"
        case {"type": "object"}:
            return "Record<string, unknown>"
        case {"type": str(kind)}:
            return _PLAIN[kind]
    return "unknown"


def _union(choices: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(choices))
