"""Everything that can go wrong in the adapter, by name.

    AdapterError
    ├── ConfigurationError        the adapter cannot start as it was told (exit code 2)
    ├── CannotListen              a port cannot be had; it becomes a ConfigurationError
    ├── DispatchError             no slot
    │   ├── QueueFull             too many wait already
    │   ├── QuotaSpent            the caller's key has used up its quota of the day
    │   ├── WaitExpired           the longest wait allowed is over
    │   ├── WaitCancelled         somebody who has the ticket gave its place up
    │   └── DispatcherUnavailable nobody can give slots: no worker is ready
    ├── RecorderBusy              too many ask for recordings at once
    └── AttachFailed              a worker refused or lost a session before it began

What a client sends and may correct is a `Refusal` of `ws_adapter.protocol.wire.errors`.
"""

from antiphon.contract import Reason


class AdapterError(Exception):
    """The root of this tree."""


class ConfigurationError(AdapterError):
    """The adapter cannot start with these settings; the message says what to change."""


class CannotListen(AdapterError):
    """A port that cannot be bound; `reason` says why, `option` is that of the command line."""

    def __init__(self, option: str, host: str, port: int, reason: OSError) -> None:
        super().__init__(f"{host} port {port}: {reason.strerror}")
        self.option = option
        self.host = host
        self.port = port
        self.reason = reason


class DispatchError(AdapterError):
    """There is no slot for the caller."""


class QueueFull(DispatchError):
    """As many callers wait as are allowed to."""


class SlotLimit(DispatchError):
    """The caller holds or awaits as many slots of the pool as one caller may."""


class QuotaSpent(DispatchError):
    """The caller's key has used up its quota of the day."""


class WaitExpired(DispatchError):
    """The caller waited as long as it was ready to."""


class WaitCancelled(DispatchError):
    """A client that knows the ticket gave its place up."""


class DispatcherUnavailable(DispatchError):
    """No worker has been ready for longer than callers are kept waiting for one."""


class AttachFailed(AdapterError):
    """A worker did not take a session, or lost it before it began."""

    def __init__(self, reason: Reason, worker_id: str = "") -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.worker_id = worker_id
        """The worker that refused, if known."""


class RecorderBusy(AdapterError):
    """Too many ask for recordings at once."""
