"""Ids of sessions, and random tokens for other ids."""

import secrets
from collections.abc import Callable
from itertools import chain, repeat
from typing import Final

from ws_adapter.web.routes import Dialect

_DRAWN: Final = 256
"""The number of tokens that are generated at once, to save system calls."""


def _draw(count: int) -> list[str]:
    digits = secrets.token_hex(6 * count)
    return [digits[at : at + 12] for at in range(0, len(digits), 12)]


new_token: Final[Callable[[], str]] = chain.from_iterable(map(_draw, repeat(_DRAWN))).__next__
"""Return 12 random hexadecimal digits for ids. Not thread-safe: only for the event loop."""


def new_session_id(dialect: Dialect) -> str:
    """Return the id of a new session, in the form of its dialect."""
    if dialect is Dialect.TRANSCRIPTION:
        return f"sess-{secrets.token_hex(16)}"
    return f"sess_{new_token()}"
