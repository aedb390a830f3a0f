"""Everything that can go wrong in the adapter, by name.

    AdapterError
    ├── ConfigurationError        the adapter cannot start as it was told (exit code 2)
    ├── DispatchError             no slot
    │   ├── QueueFull             too many wait already
    │   ├── WaitExpired           the longest wait allowed is over
    │   └── DispatcherUnavailable nobody can give slots: no worker is ready
    └── AttachFailed              a worker refused or lost a session before it began

What a client sends and may correct is a `Refusal` of `ws_adapter.dialects.errors`.
"""

from antiphon.semconv import Reason


class AdapterError(Exception):
    """The root of this tree."""


class ConfigurationError(AdapterError):
    """The adapter cannot start with these settings; the message says what to change."""


class DispatchError(AdapterError):
    """There is no slot for the caller."""


class QueueFull(DispatchError):
    """As many callers wait as are allowed to."""


class WaitExpired(DispatchError):
    """The caller waited as long as it was ready to."""


class DispatcherUnavailable(DispatchError):
    """No worker has been ready for longer than callers are kept waiting for one."""


class AttachFailed(AdapterError):
    """A worker did not take a session, or lost it before it began."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason
