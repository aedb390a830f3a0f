"""The events of all dialects as tables for people."""

from collections.abc import Iterator
from typing import Final

from ws_adapter.schemas.catalogue import DIALECTS, Dialect, Json
from ws_adapter.schemas.codes import (
    close_table,
    error_table,
    ga_error_table,
    live_error_table,
    utterance_error_table,
)
from ws_adapter.schemas.definitions import bundle, events, type_and_kind

_HEAD: Final = """\
# Events

Made by `make schemas` from the definitions that the server decodes with. **R**: required. Other fields are
absent if they have no value; from a client, `null` means the same. Unknown fields of a client are ignored;
only Live and Realtime GA refuse them.
"""


def page() -> str:
    """Return the page in Markdown."""
    codes = [
        f"## Error codes\n\n{error_table()}\n",
        f"## Error codes of transcription\n\n{utterance_error_table()}\n",
        f"## Error codes of Live\n\n{live_error_table()}\n",
        f"## Error codes of Realtime GA\n\n{ga_error_table()}\n",
        f"## Close codes\n\n{close_table()}\n",
    ]
    return "\n".join([_HEAD, *(_dialect(dialect) for dialect in DIALECTS), *codes])


def _dialect(dialect: Dialect) -> str:
    document = bundle(dialect)
    definitions: dict[str, Json] = document["$defs"]
    sections = [
        f"## {dialect.title}",
        f"{dialect.opening} Schema: [{dialect.file}]({dialect.file}).",
    ]
    for side, heading in (("ClientEvent", "The client sends"), ("ServerEvent", "The server sends")):
        sections.append(f"### {heading}")
        for choice in definitions[side]["oneOf"]:
            sections += _event(definitions[_target(choice)])
    sections.append("### Objects in them")
    for name, definition in definitions.items():
        if "properties" in definition and name not in events(document):
            sections += [f"**{name}**: {_meaning(definition)}", _table(definition, is_event=False)]
    return "\n\n".join(sections) + "\n"


def _event(definition: Json) -> Iterator[str]:
    event, kind = type_and_kind(definition)
    name = (f"`{event}`" if event else "The request") + (f", `kind` `{kind}`" if kind else "")
    yield f"**{name}**: {_meaning(definition)}"
    if set(definition["properties"]) - {"type", "kind"}:
        yield _table(definition, is_event=True)


def _meaning(definition: Json) -> str:
    choices = [f"`{_path(choice)}`" for choice in definition.get("anyOf", [])]
    needs = f" Needs one of {', '.join(choices)}." if choices else ""
    return f"{definition['description']}{needs}"


def _path(given: Json) -> str:
    """Return the path of the field that a choice of `anyOf` requires."""
    (name,) = given["required"]
    inner = given["properties"][name]
    return f"{name}.{_path(inner)}" if "required" in inner else str(name)


def _table(definition: Json, *, is_event: bool) -> str:
    rows = ["| field | | type | meaning |", "|---|---|---|---|"]
    for name, schema in definition["properties"].items():
        if not is_event or name not in ("type", "kind") or "const" not in schema:
            required = "**R**" if name in definition.get("required", ()) else ""
            rows.append(f"| `{name}` | {required} | {_type(schema)} | {schema.get('description', '')} |")
    return "\n".join(rows)


def _type(schema: Json) -> str:
    match schema:
        case {"$ref": _}:
            return _target(schema)
        case {"const": value}:
            return f"`{value}`"
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values if value is not None)
        case {"anyOf": choices}:
            return " or ".join(_type(choice) for choice in choices if choice != {"type": "null"})
        case {"type": [str(name), "null"]} | {"type": str(name)}:
            return _scalar(name, schema)
    return "any"


def _scalar(name: str, schema: Json) -> str:
    if name == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    if "contentEncoding" in schema:
        return "base64"
    lowest = schema.get("minimum", schema.get("exclusiveMinimum"))
    bounds = ""
    if lowest is not None:
        above = "above " if "exclusiveMinimum" in schema else ""
        bounds = f", {above}{lowest}" + (f" to {schema['maximum']}" if "maximum" in schema else " or more")
    elif "maxLength" in schema:
        bounds = f", at most {schema['maxLength']}"
    return name + bounds


def _target(schema: Json) -> str:
    return str(schema["$ref"].rpartition("/")[2])
