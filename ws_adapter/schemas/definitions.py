"""JSON Schema 2020-12 of a dialect, from the structs of its events."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec import inspect as types

from ws_adapter.protocol.core.config import ConfigFields
from ws_adapter.schemas.catalogue import Dialect, Json

REFERENCE: Final = "#/$defs/{name}"

_NULL: Final = {"type": "null"}
_OPEN: Final = "A client ignores unknown fields and events, because later versions may send more."
_IGNORES: Final = "Unknown fields of a client's event are ignored."
_REFUSES: Final = "Unknown fields of a client's event are refused."


def bundle(dialect: Dialect) -> Json:
    """Return one schema for `dialect`: `$defs/ClientEvent`, `$defs/ServerEvent` and each event."""
    client = _definitions((*dialect.client_events, ConfigFields), by_server=False)
    if not _refers_to(ConfigFields, client):
        del client[ConfigFields.__name__]
    server = _definitions(dialect.server_events, by_server=True)
    assert not client.keys() & server.keys(), "both sides would define the same name"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{dialect.name.capitalize()}Event",
        "description": f"{dialect.title}: every event, in both directions. {_strictness(dialect)} {_OPEN}",
        "oneOf": [_reference("ClientEvent"), _reference("ServerEvent")],
        "$defs": {
            "ClientEvent": _one_of("ClientEvent", "Events of a client.", dialect.client_events),
            "ServerEvent": _one_of("ServerEvent", "Events of the server.", dialect.server_events),
            **client,
            **server,
        },
    }


def _strictness(dialect: Dialect) -> str:
    is_strict = all(shape.__struct_config__.forbid_unknown_fields for shape in dialect.client_events)
    return _REFUSES if is_strict else _IGNORES


def events(document: Json) -> dict[str, Json]:
    """Return the events of a bundle by their names in it, those of the client first, without the objects that
    they contain."""
    definitions = document["$defs"]
    choices = [*definitions["ClientEvent"]["oneOf"], *definitions["ServerEvent"]["oneOf"]]
    names = [choice["$ref"].rpartition("/")[2] for choice in choices]
    return {name: definitions[name] for name in names}


def type_and_kind(definition: Json) -> tuple[str | None, str | None]:
    """Return the `type` and `kind` that identify an event of this definition, None for a missing one."""
    fields = definition.get("properties", {})
    return fields.get("type", {}).get("const"), fields.get("kind", {}).get("const")


def _reference(name: str) -> Json:
    return {"$ref": REFERENCE.format(name=name)}


def _refers_to(shape: type[Struct], definitions: Json) -> bool:
    return _reference(shape.__name__)["$ref"] in json.dumps(definitions)


def _one_of(title: str, description: str, shapes: Iterable[type[Struct]]) -> Json:
    references = [_reference(shape.__name__) for shape in shapes]
    return {"title": title, "description": description, "oneOf": references}


def _definitions(shapes: tuple[type[Struct], ...], *, by_server: bool) -> dict[str, Json]:
    _, made = msgspec.json.schema_components(shapes, ref_template=REFERENCE)
    structs = {shape.__name__: shape for shape in _reached(types.multi_type_info(shapes))}
    return {
        name: _constants(_object(definition, structs[name], by_server) if name in structs else definition)
        for name, definition in made.items()
    }


def _reached(shapes: Iterable[types.Type]) -> Iterator[type[Struct]]:
    for shape in shapes:
        match shape:
            case types.StructType(cls=cls, fields=fields):
                yield cls
                yield from _reached(field.type for field in fields)
            case types.UnionType(types=choices):
                yield from _reached(choices)
            case types.ListType(item_type=inner) | types.Metadata(type=inner):
                yield from _reached([inner])


def _object(definition: Json, shape: type[Struct], by_server: bool) -> Json:
    """Return `definition`, the schema of the types of `shape`, with docstrings and rules of its fields."""
    demanded = getattr(shape, "REQUIRED", ())
    required = {*definition["required"], *demanded}
    told = dict(_field_docs(shape))
    properties = definition["properties"]
    for field in msgspec.structs.fields(shape):
        name = field.encode_name
        # Optional fields without a value: null or absent from a client, absent from the server.
        takes_null = field.required if by_server else name not in demanded
        properties[name] = _field(properties[name], takes_null, told.get(name))
        if name in demanded and properties[name].get("type") == "string":
            properties[name].setdefault("minLength", 1)
    refined = {**definition, "description": " ".join(definition["description"].split())}
    refined["required"] = [name for name in properties if name in required]
    if not refined["required"]:
        del refined["required"]
    if choices := getattr(shape, "ANY_OF", ()):
        refined["anyOf"] = [_given(path, properties) for path in choices]
    return refined


def _field(schema: Json, takes_null: bool, told: str | None) -> Json:
    choices = [dict(choice) for choice in schema.get("anyOf", ()) if choice != _NULL] or [dict(schema)]
    is_nullable = _NULL in schema.get("anyOf", []) and takes_null
    description = told or next((c["description"] for c in choices if "description" in c), None)
    if len(choices) > 1:
        kinds = [{key: c[key] for key in c if c[key] != description} for c in choices]
        plain: Json = {"anyOf": kinds + ([_NULL] if is_nullable else [])}
    else:
        plain = {key: value for key, value in choices[0].items() if key not in ("default", "description")}
        if "$ref" in plain:
            plain = {"$ref": plain["$ref"]}
        if is_nullable:
            plain = _or_null(plain)
    return {**({"description": description} if description else {}), **plain}


def _or_null(schema: Json) -> Json:
    match schema:
        case {"enum": values}:
            return {**schema, "enum": [*values, None]}
        case {"type": kind}:
            return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, _NULL]}


def _given(path: str, properties: Json) -> Json:
    """Return a schema that requires the field at `path` to be neither absent, null, false nor empty."""
    name, _, inner = path.partition(".")
    if inner:
        inside = {"type": "object", **_given(inner, {})}
        return {"required": [name], "properties": {name: inside, inner: _NULL}}
    match properties.get(name):
        case {"anyOf": _}:
            value: Json = {"type": ["string", "object"], "minLength": 1}
        case {"type": ["string", _]}:
            value = {"type": "string", "minLength": 1}
        case _:
            value = {"const": True}
    return {"required": [name], "properties": {name: value}}


def _constants(schema: Any) -> Any:
    """Return `schema` with `const` instead of every `enum` of one value."""
    match schema:
        case {"enum": [only], **others}:
            return {"const": only, **others}
        case dict():
            return {key: _constants(value) for key, value in schema.items()}
        case list():
            return [_constants(entry) for entry in schema]
    return schema


def _field_docs(shape: type[Struct]) -> Iterator[tuple[str, str]]:
    """Yield each field with its docstring in the source; fields of the class itself come after its bases'."""
    for cls in reversed(shape.__mro__):
        if not issubclass(cls, Struct) or cls is Struct:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    yield name, " ".join(said.split())
