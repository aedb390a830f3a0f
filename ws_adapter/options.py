"""The settings of one adapter."""

from dataclasses import dataclass
from ipaddress import ip_address

from ws_adapter.dialects.limits import Limits
from ws_adapter.errors import ConfigurationError

_MIB = 2**20


@dataclass(frozen=True)
class AdapterOptions:
    """How an adapter runs; times in seconds. Raises `ConfigurationError` for values that cannot work."""

    workers: tuple[str, ...]
    """Where the workers are: `host:port` or `unix:path`, at least one."""

    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback only with `allow_anonymous`."""

    port: int = 8006
    """0 takes a free one."""

    allow_anonymous: bool = False
    """Lets anybody who can reach the adapter use it."""

    queue_capacity: int = 1000
    """Most sessions that may wait for a slot."""

    queue_update_s: float = 3.0
    queue_max_wait_s: float = 0.0
    """0 lets sessions wait as long as they like."""

    no_worker_grace_s: float = 10.0
    """How long sessions wait for a worker when none is ready."""

    session_limit_audio_s: float = 600.0
    """0 switches the limit off."""

    init_timeout_s: float = 20.0
    duplex_idle_s: float = 60.0
    unit_flush_s: float = 1.25
    max_lag_s: float = 3.0
    max_waiting_units: int = 32
    max_waiting_mib: float = 8.0
    silence_tail_units: int = 10
    max_append_s: float = 60.0
    max_message_mib: float = 16.0

    outbox_audio_s: float = 3.0
    """Output audio that may wait for a slow client."""

    outbox_mib: float = 4.0
    slow_consumer_s: float = 5.0
    """How long a client over its outbox's bound may read nothing."""

    drain_timeout_s: float = 60.0
    """How long sessions may go on after the signal to stop."""

    def __post_init__(self) -> None:
        """Refuses values that cannot work, one sentence each."""
        if not self.workers or not all(self.workers):
            raise ConfigurationError("No worker is named. Pass --worker host:port or --worker unix:path.")
        if not 0 <= self.port < 65_536:
            raise ConfigurationError(f"port must be 0 to 65535, not {self.port}.")
        if not self.allow_anonymous and not _is_loopback(self.host):
            raise ConfigurationError(
                f"Refusing to listen on {self.host} without a key. Listen on 127.0.0.1, "
                "or pass --allow-anonymous."
            )
        for name in ("queue_capacity", "max_waiting_units"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} must be above 0, not {getattr(self, name)}.")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} must be 0 or more, not {getattr(self, name)}.")

    @property
    def limits(self) -> Limits:
        """The bounds of one session."""
        return Limits(
            session_limit_s=self.session_limit_audio_s,
            init_timeout_s=self.init_timeout_s,
            duplex_idle_s=self.duplex_idle_s,
            unit_flush_s=self.unit_flush_s,
            max_lag_s=self.max_lag_s,
            max_waiting_units=self.max_waiting_units,
            max_waiting_bytes=round(self.max_waiting_mib * _MIB),
            silence_tail_units=self.silence_tail_units,
            max_append_s=self.max_append_s,
        )

    @property
    def max_message_bytes(self) -> int:
        """Largest frame that a client may send."""
        return round(self.max_message_mib * _MIB)

    @property
    def outbox_bytes(self) -> int:
        """Output that may wait for a slow client."""
        return round(self.outbox_mib * _MIB)


_POSITIVE = (
    "queue_update_s",
    "init_timeout_s",
    "duplex_idle_s",
    "unit_flush_s",
    "max_lag_s",
    "max_waiting_mib",
    "max_append_s",
    "max_message_mib",
    "outbox_audio_s",
    "outbox_mib",
    "slow_consumer_s",
)
_NOT_NEGATIVE = (
    "queue_max_wait_s",
    "no_worker_grace_s",
    "session_limit_audio_s",
    "silence_tail_units",
    "drain_timeout_s",
)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
