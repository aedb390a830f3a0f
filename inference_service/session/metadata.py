"""Metadata of a call."""

import re
from collections.abc import Iterable

from antiphon.contract import METADATA_SESSION_ID
from inference_service.errors import BadField, MetadataInvalid

MAX_SESSION_ID = 64
_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]{1,64}")

Metadata = Iterable[tuple[str, str | bytes]]


def session_id(metadata: Metadata) -> str:
    """Return the session id of a call. Raises `MetadataInvalid` unless there is exactly one proper id."""
    values = [value for key, value in metadata if key == METADATA_SESSION_ID]
    if len(values) != 1:
        problem = f"must be given exactly once, not {len(values)} times"
    elif isinstance(values[0], str) and _VISIBLE_ASCII.fullmatch(values[0]):
        return values[0]
    else:
        problem = f"must be 1 to {MAX_SESSION_ID} visible ASCII characters"
    raise MetadataInvalid(BadField(METADATA_SESSION_ID, problem))


def first(metadata: Metadata, key: str) -> str:
    """Return the first text value of `key`; empty when there is none."""
    return next((value for name, value in metadata if name == key and isinstance(value, str)), "")
