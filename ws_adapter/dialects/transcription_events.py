"""Events of the transcription dialect: no worker transcribes yet, so there is only its refusal."""

from ws_adapter.dialects.errors import ErrorCode
from ws_adapter.dialects.events import ServerEvent


class Error(ServerEvent, kw_only=True, tag="error"):
    """Transcription was asked for where nobody can do it; here `error` is a plain text."""

    error: str
    code: ErrorCode
