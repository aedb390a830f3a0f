"""The exceptions of the SDK.

* `AntiphonError`

  * `ConnectError`: no conversation began; the server is unreachable, not ready or no Antiphon server
  * `QueueFull`: every slot is busy, and the queue is full or the wait took too long
  * `AuthError`: the server refused the key or the origin
  * `ProtocolError`: one side sent a message that the other does not accept
  * `ReplayError`: a worker cannot go on with the conversation of a journal
  * `SessionClosed`: a running conversation ended, and this side did not ask for it
  * `CallTimeout`: a blocking call of `antiphon.sync` took longer than its deadline
  * `AudioError`: audio that cannot be sent; found before anything is sent
  * `ImageError`, `VideoError`: a picture or a video that cannot be sent
"""


class AntiphonError(Exception):
    """The base of every error that the SDK raises on purpose.

    `reason` is for programs: the code of the server (`queue_full`, `NO_FREE_SLOT`), or a word of the SDK if
    the server gave none. `retryable` says whether the same call may succeed later, on a new session.
    `retry_after_s` is the delay in seconds that the server asks for; None if it asks for none.
    """

    retry_after_s: float | None = None

    def __init__(self, message: str, *, reason: str = "", retryable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.retryable = retryable


class ConnectError(AntiphonError):
    """The server cannot be reached, or cannot accept a conversation now."""


class QueueFull(AntiphonError):
    """Every slot is busy and the queue accepts no further session, or the wait took too long."""

    def __init__(self, message: str, *, reason: str = "queue_full", retryable: bool = True) -> None:
        super().__init__(message, reason=reason, retryable=retryable)


class AuthError(AntiphonError):
    """The key, the lease or the origin was refused."""


class ProtocolError(AntiphonError):
    """The server refused what this side sent, or sent what the protocol does not allow.

    `param` is the path of the field at fault, for example `payload.config.top_p`; None if there is none.
    """

    def __init__(
        self, message: str, *, reason: str = "", retryable: bool = False, param: str | None = None
    ) -> None:
        super().__init__(message, reason=reason, retryable=retryable)
        self.param = param


class ReplayError(AntiphonError):
    """The worker cannot go on with the conversation of a journal."""


class SessionClosed(AntiphonError):
    """The conversation is over.

    `reason` is the server's (`backend_error`, `server_shutdown`, `WORKER_LOST` ...) or `connection_lost`.
    `code` is the WebSocket close code (1000 and more) or the gRPC status code (0 to 16); None if neither
    came. `trace_id` finds the session in the server's traces; None if the server does not trace.
    """

    def __init__(
        self,
        reason: str,
        code: int | None = None,
        trace_id: str | None = None,
        *,
        message: str = "",
        retryable: bool = True,
    ) -> None:
        facts = [f"code {code}" if code is not None else "", f"trace {trace_id}" if trace_id else ""]
        known = ", ".join(fact for fact in facts if fact)
        text = f"The session ended: {reason}" + (f" ({known})" if known else "")
        super().__init__(f"{text}. {message}" if message else f"{text}.", reason=reason, retryable=retryable)
        self.code = code
        self.trace_id = trace_id


class CallTimeout(AntiphonError, TimeoutError):
    """A call of `antiphon.sync` took longer than its deadline; the conversation goes on."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="timeout", retryable=True)


class AudioError(AntiphonError, ValueError):
    """Audio of the wrong rate, shape or type; the message names the remedy."""


class ImageError(AntiphonError, ValueError):
    """A file that is no supported picture; the message names the remedy."""


class VideoError(AntiphonError, ValueError):
    """A file that is no supported video; the message names the remedy."""
