"""The exceptions of the adapter.

    AdapterError
    ├── ConfigurationError        the adapter cannot start with its options (exit code 2)
    ├── CannotListen              a port cannot be bound; it becomes a ConfigurationError
    ├── DispatchError             no slot
    │   ├── QueueFull             the queue is full
    │   ├── SlotLimit             the caller is at its slot limit
    │   ├── QuotaSpent            the caller's key has used up its quota of the day
    │   ├── WaitExpired           the longest wait allowed is over
    │   ├── WaitCancelled         a client that knows the ticket cancelled it
    │   └── DispatcherUnavailable no worker is ready, or Redis is unavailable
    ├── RecorderBusy              too many requests for recordings wait
    └── AttachFailed              a worker rejected or lost a session before it began

Invalid input, which the client can correct, raises `ws_adapter.protocol.wire.errors.Refusal`.
"""

from antiphon.contract import Reason


class AdapterError(Exception):
    """The base class of the exceptions of the adapter."""


class ConfigurationError(AdapterError):
    """The adapter cannot start with these settings; the message says what to change."""


class CannotListen(AdapterError):
    """A port cannot be bound, because of `reason`; `option` is the flag of the port."""

    def __init__(self, option: str, host: str, port: int, reason: OSError) -> None:
        super().__init__(f"{host} port {port}: {reason.strerror}")
        self.option = option
        self.host = host
        self.port = port
        self.reason = reason


class DispatchError(AdapterError):
    """There is no slot for the caller."""


class QueueFull(DispatchError):
    """The queue has reached its capacity."""


class SlotLimit(DispatchError):
    """The caller holds or awaits as many slots of the pool as its limit allows."""


class QuotaSpent(DispatchError):
    """The caller's key has used up its quota of the day."""


class WaitExpired(DispatchError):
    """The longest wait of the caller is over."""


class WaitCancelled(DispatchError):
    """A client that knows the ticket cancelled it."""


class DispatcherUnavailable(DispatchError):
    """No worker was ready within the grace period, or Redis, with the shared queue and quotas, is
    unavailable."""


class AttachFailed(AdapterError):
    """A worker rejected a session, or lost it before it began."""

    def __init__(self, reason: Reason, worker_id: str = "") -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.worker_id = worker_id
        """The worker that rejected the session, if known."""


class RecorderBusy(AdapterError):
    """Too many requests for recordings wait, or the recorder is closing."""
