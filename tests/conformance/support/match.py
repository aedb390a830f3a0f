"""Stand-ins for the parts of an event that differ from run to run; they stand in expected events."""

import re
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Text:
    """Equals every string that the pattern matches whole."""

    pattern: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and re.fullmatch(self.pattern, other, re.DOTALL) is not None


@dataclass(eq=False)
class Number:
    """Equals every number from `low` to `high`; no boolean is a number."""

    low: float = 0.0
    high: float = float("inf")

    def __eq__(self, other: object) -> bool:
        is_number = isinstance(other, int | float) and not isinstance(other, bool)
        return is_number and self.low <= other <= self.high  # type: ignore[operator]


@dataclass(eq=False)
class Flag:
    """Equals both booleans."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bool)


class With:
    """Equals every object that holds at least these fields."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and all(other.get(k) == v for k, v in self._fields.items())

    def __repr__(self) -> str:
        return f"With({self._fields})"


@dataclass(eq=False)
class Exactly:
    """Equals every object that has the fields `always`, perhaps some of `perhaps`, and no other."""

    always: dict[str, Any]
    perhaps: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and other == {
            **self.always,
            **{name: value for name, value in self.perhaps.items() if name in other},
        }


HEX12 = "[0-9a-f]{12}"
SOME_TEXT = Text(".+")
SESSION_ID = Text(f"sess_{HEX12}")
EARLIER_ID = Text(r"rt_[0-9]{13}")
RESPONSE_ID = Text(f"resp_{HEX12}")
INPUT_ID = Text(f"input_{HEX12}")
TRACE_ID = Text("[0-9a-f]{32}")
TICKET_ID = Text(f"ticket_{HEX12}")
UNIX_S = Number(1.6e9, 4e9)
USAGE = {
    "total_tokens": Number(),
    "input_tokens": Number(),
    "output_tokens": Number(),
    "input_token_details": {
        "text_tokens": Number(),
        "audio_tokens": Number(),
        "vision_tokens": Number(),
        "cached_tokens": Number(),
    },
    "output_token_details": {"text_tokens": Number(), "audio_tokens": Number()},
}
"""`usage` and `chunk_usage`."""


def prompt_usage(tokens: int) -> dict[str, Any]:
    """Return the `usage` of a session without input whose prompt has `tokens` tokens."""
    kinds = {"audio_tokens": 0, "vision_tokens": 0, "cached_tokens": 0}
    return {
        "total_tokens": tokens,
        "input_tokens": tokens,
        "output_tokens": 0,
        "input_token_details": {"text_tokens": tokens, **kinds},
        "output_token_details": {"text_tokens": 0, "audio_tokens": 0},
    }


def error(code: str, param: str | None = None, side: str = "client_error", **body: Any) -> dict[str, Any]:
    """Return a matcher of an `error` event of `/v1/realtime`; a machine alone sends no `trace_id`."""
    body = {"code": code, "message": SOME_TEXT, "type": side, **body}
    if param is not None:
        body["param"] = param
    return {"type": "error", "error": Exactly(body, {"trace_id": TRACE_ID})}
