"""Ids of sessions, and the random digits of which other ids are made."""

import secrets
from collections.abc import Callable
from itertools import chain, repeat
from typing import Final

from ws_adapter.web.routes import Dialect

_DRAWN: Final = 256
"""Tokens that are drawn at once: each time is a call of the system."""


def _draw(count: int) -> list[str]:
    digits = secrets.token_hex(6 * count)
    return [digits[at : at + 12] for at in range(0, len(digits), 12)]


new_token: Final[Callable[[], str]] = chain.from_iterable(map(_draw, repeat(_DRAWN))).__next__
"""Makes 12 hexadecimal digits, of which ids are made; for the event loop's thread."""


def new_session_id(dialect: Dialect) -> str:
    """Return what a session is called, in the form that the dialect has for it."""
    if dialect is Dialect.TRANSCRIPTION:
        return f"sess-{secrets.token_hex(16)}"
    return f"sess_{new_token()}"
