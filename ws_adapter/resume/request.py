"""The request to resume a session: two parameters of its URL."""

from typing import Final, NamedTuple
from urllib.parse import parse_qs

_TOKEN: Final = "resume"
_LAST_EVENT: Final = "last_event"
_MOST_DIGITS: Final = 12


class ResumeRequest(NamedTuple):
    """The request to resume. `last_event` is the number of the client's last event; None if it is not
    a number."""

    token: str
    last_event: int | None


def resume_request(target: str) -> ResumeRequest | None:
    """Return the request to resume in a request target; None for a new session."""
    _, _, query = target.partition("?")
    if _TOKEN not in query:
        return None
    given = parse_qs(query, keep_blank_values=True)
    if _TOKEN not in given:
        return None
    number = given.get(_LAST_EVENT, [""])[0]
    is_number = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
    return ResumeRequest(given[_TOKEN][0], int(number) if is_number else None)
