"""Faults of a decoded event, in our own words.

`msgspec` decides whether an event has the shape of its struct. This module walks the same definitions to name
the faulty field, its expected and its actual value, so that no library text reaches a client.
"""

import math
import re
from functools import cache
from typing import Any, Final

from msgspec import inspect

from ws_adapter.protocol.wire.errors import Refusal, UnknownField, WrongType, invalid, missing

_SHOWN_CHARACTERS: Final = 40


def find_fault(value: object, shape: type, path: str) -> Refusal | None:
    """Return the first field of `value`, an object decoded from JSON, that does not fit the struct `shape`.

    `path` is the path of `value` itself, empty at the root of an event. Returns None if all fields fit.
    """
    return _fault(value, _described(shape), path)


@cache
def _described(shape: type) -> inspect.Type:
    """Return the type information of a struct, cached: the first call takes milliseconds."""
    return inspect.type_info(shape)


def shown(value: object) -> str:
    """Return `value` as it is quoted in a message: short values unchanged, for long ones only the type."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return _number(value)
        case str():
            printable = value.isprintable() and '"' not in value
            return f'"{value}"' if len(value) <= _SHOWN_CHARACTERS and printable else "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
    return "something else"


def _fault(value: object, shape: inspect.Type, path: str) -> Refusal | None:
    match shape:
        case inspect.Metadata(type=described):
            return _fault(value, described, path)
        case inspect.AnyType():
            return None
        case inspect.UnionType(types=types):
            return _union_fault(value, types, path)
        case inspect.StructType(fields=fields) if isinstance(value, dict):
            return _unknown_field(value, shape, path) or _first(
                _fault(value.get(f.encode_name), f.type, _join(path, f.encode_name)) for f in fields
            )
        case inspect.ListType(item_type=item) if isinstance(value, list):
            return _length_fault(value, shape, path) or _first(
                _fault(entry, item, f"{path}[{i}]") for i, entry in enumerate(value)
            )
        case inspect.DictType(key_type=key, value_type=item) if isinstance(value, dict):
            return _length_fault(value, shape, path) or _first(
                _fault(name, key, path) or _fault(entry, item, _join(path, shown(name).strip('"')))
                for name, entry in value.items()
            )
    if _is_within(value, shape):
        return None
    return _wrong(value, shape, path or "event", f"expected {_expected(shape)}, got {_got(value, shape)}")


def _wrong(value: object, shape: inspect.Type, path: str, what: str) -> Refusal:
    refusal = invalid(path, what)
    if _is_alike(value, shape):
        return refusal
    return WrongType(refusal.code, refusal.message, refusal.param)


def _unknown_field(value: dict[str, Any], shape: inspect.StructType, path: str) -> Refusal | None:
    """Return the refusal of the first field that a struct forbids."""
    if not shape.forbid_unknown_fields:
        return None
    known = {shape.tag_field, *(field.encode_name for field in shape.fields)}
    name = next((name for name in value if name not in known), None)
    return UnknownField(_join(path, shown(name).strip('"'))) if name is not None else None


def _length_fault(
    value: list[Any] | dict[str, Any], shape: inspect.ListType | inspect.DictType, path: str
) -> Refusal | None:
    least, most = shape.min_length or 0, shape.max_length
    if least <= len(value) and (most is None or len(value) <= most):
        return None
    bounds = f"{least}" if least == most else f"at least {least}" if len(value) < least else f"at most {most}"
    return invalid(path, f"expected {bounds} entries, got {len(value)}")


def _union_fault(value: object, types: tuple[inspect.Type, ...], path: str) -> Refusal | None:
    types = tuple(shape.type if isinstance(shape, inspect.Metadata) else shape for shape in types)
    tagged = [shape for shape in types if isinstance(shape, inspect.StructType) and shape.tag is not None]
    if isinstance(value, dict) and tagged:
        return _tagged_fault(value, tagged, path)
    alike = [shape for shape in types if _is_alike(value, shape)]
    if alike:
        return _fault(value, alike[0], path)
    expected = " or ".join(_expected(shape) for shape in types if not isinstance(shape, inspect.NoneType))
    return _wrong(value, types[0], path, f"expected {expected}, got {shown(value)}")


def _tagged_fault(value: dict[str, Any], types: list[inspect.StructType], path: str) -> Refusal | None:
    """Return the fault of a value among structs that a tag field distinguishes."""
    field = str(types[0].tag_field)
    tag, place = value.get(field), _join(path, field)
    for shape in types:
        if tag == shape.tag:
            return _fault(value, shape, path)
    expected = " or ".join(shown(shape.tag) for shape in types)
    if tag is None or tag == "":
        return missing(place, expected)
    return invalid(place, f"expected {expected}, got {shown(tag)}")


def _first(faults: Any) -> Refusal | None:
    return next((fault for fault in faults if fault is not None), None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_alike(value: object, shape: inspect.Type) -> bool:
    """Return whether `value` has the JSON type of `shape`, within its bounds or not."""
    match shape:
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool)
        case inspect.FloatType():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.LiteralType(values=values):
            return any(type(value) is type(choice) for choice in values)
        case inspect.ListType():
            return isinstance(value, list)
        case inspect.StructType() | inspect.DictType():
            return isinstance(value, dict)
    return True


def _is_within(value: object, shape: inspect.Type) -> bool:
    if not _is_alike(value, shape):
        return False
    match shape, value:
        case inspect.LiteralType(values=values), _:
            return value in values
        case inspect.StrType(min_length=least, max_length=most, pattern=pattern), str():
            is_long = most is None or len(value) <= most
            return is_long and len(value) >= (least or 0) and (not pattern or bool(re.search(pattern, value)))
        case ((inspect.IntType() | inspect.FloatType()), int() | float()):
            return (
                _is_finite(value)
                and (shape.ge is None or value >= shape.ge)
                and (shape.gt is None or value > shape.gt)
                and (shape.le is None or value <= shape.le)
            )
    return True


def _is_finite(value: float) -> bool:
    """Return whether `value` fits into a finite float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _expected(shape: inspect.Type) -> str:
    match shape:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"an integer{_range(shape)}"
        case inspect.FloatType():
            return f"a number{_range(shape)}"
        case inspect.StrType(pattern=str(pattern)):
            return f"a string that matches {pattern}"
        case inspect.StrType(max_length=int(longest)):
            return f"a string of at most {longest} characters"
        case inspect.StrType():
            return "a string"
        case inspect.LiteralType(values=values):
            return " or ".join(shown(value) for value in values)
        case inspect.ListType():
            return "a list"
    return "an object"


def _range(shape: inspect.IntType | inspect.FloatType) -> str:
    if shape.ge is not None and shape.le is not None:
        return f" from {_number(shape.ge)} to {_number(shape.le)}"
    above = f" above {_number(shape.gt)}" if shape.gt is not None else ""
    return above + (f" up to {_number(shape.le)}" if shape.le is not None else "")


def _got(value: object, shape: inspect.Type) -> str:
    if isinstance(value, str) and isinstance(shape, inspect.StrType):
        return f"{len(value)} characters"
    return shown(value)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a very large integer"
    return str(value) if math.isfinite(value) else "a number out of range"
