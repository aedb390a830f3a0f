"""Golden vectors of `antiphon.v1`: messages in JSON and in bytes, which clients in every language share.

`python -m tests.clients.vectors` writes `tests/data/messages.json` anew from the JSON forms in it.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from google.protobuf import json_format
from google.protobuf.message import Message

from antiphon.v1 import common_pb2, dispatch_service_pb2, inference_service_pb2

FILE = Path(__file__).parents[1] / "data" / "messages.json"


class Vector(NamedTuple):
    """One message: its type in `antiphon.v1`, its proto3 JSON form, and its bytes."""

    type: str
    json: dict[str, object]
    data: bytes


def read() -> list[Vector]:
    """Every vector of the file."""
    return [
        Vector(row["type"], row["json"], base64.b64decode(row["base64"]))
        for row in json.loads(FILE.read_text())
    ]


def message(vector: Vector) -> Message:
    """The message that its JSON form describes."""
    modules = (inference_service_pb2, dispatch_service_pb2, common_pb2)
    module = next(m for m in modules if vector.type in m.DESCRIPTOR.message_types_by_name)
    empty: Message = getattr(module, vector.type)()
    return json_format.ParseDict(vector.json, empty)


def _rewritten() -> Iterator[dict[str, object]]:
    for row in json.loads(FILE.read_text()):
        data = message(Vector(row["type"], row["json"], b"")).SerializeToString(deterministic=True)
        yield {"type": row["type"], "json": row["json"], "base64": base64.b64encode(data).decode()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(list(_rewritten()), indent=1) + "\n")
