"""Typed access to a server's JSON; a violation of the protocol raises `ProtocolError`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.errors import ProtocolError


@dataclass(frozen=True)
class Fields:
    """A JSON object. An absent field, or null, reads as None; a field of another type is a violation."""

    values: Mapping[str, object]

    @classmethod
    def of(cls, frame: str | bytes) -> "Fields":
        """Parse one WebSocket frame as an object."""
        if isinstance(frame, bytes):
            raise ProtocolError("The server sent a binary frame.", reason="invalid_frame")
        try:
            message = json.loads(frame)
        except ValueError:
            raise ProtocolError("The server sent a frame that is no JSON.", reason="invalid_json") from None
        if not isinstance(message, dict):
            raise ProtocolError("The server sent JSON that is no object.", reason="invalid_payload")
        return cls(message)

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self._breach(name, "a string")

    def integer(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._breach(name, "an integer")

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise self._breach(name, "a number")

    def boolean(self, name: str) -> bool | None:
        value = self.values.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise self._breach(name, "true or false")

    def object(self, name: str) -> "Fields":
        """Return an object; an absent one reads as empty."""
        value = self.values.get(name)
        if value is None:
            return Fields({})
        if isinstance(value, dict):
            return Fields(value)
        raise self._breach(name, "an object")

    def objects(self, name: str) -> "tuple[Fields, ...]":
        """Return a list of objects; an absent one reads as empty."""
        value = self.values.get(name)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return tuple(Fields(item) for item in value)
        raise self._breach(name, "a list of objects")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; an absent one reads as empty."""
        value = self.values.get(name)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise self._breach(name, "a list of strings")

    def _breach(self, name: str, expected: str) -> ProtocolError:
        text = f"The server sent `{name}` of {self.values.get('type', 'an event')} that is not {expected}."
        return ProtocolError(text, reason="invalid_payload", param=name)
