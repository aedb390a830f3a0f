"""The settings of one adapter."""

from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final, Literal, get_args

from antiphon_service.leases import MIN_WORKER_KEY_BYTES
from antiphon_service.redis import RedisUnusable, parse
from ws_adapter.access.rate_limit import Network
from ws_adapter.access.signing_keys import SOURCE, parse_signing_keys
from ws_adapter.dispatch.revisions import read_weights
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.process.load import LoadLimits
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.wire.limits import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, Limits
from ws_adapter.worker.targets import check_target
from ws_adapter.worker.transport.target import Target

_MIB = 2**20

WORKER_CONFIG_TIMEOUT_S = 30.0
"""The seconds that a worker waits for the settings of a session."""

LONGEST_WINDOW_S = 60.0
"""The longest resume window: the session limit of a worker exceeds that of the adapter by as much."""

ANY_ORIGIN = "*"
"""The entry of `allowed_origins` that allows every origin, for browsers on this machine too."""

RELOADED: Final = frozenset(
    """
    allowed_origins trusted_proxies connections_per_address opens_per_min_per_address
    frames_per_s_per_address pages_per_min_per_address connections_per_key opens_per_min_per_key
    direct_slots_per_caller direct_session_limit_s direct_idle_s max_cpu max_loop_lag_ms
    revisions queue_update_s queue_max_wait_s no_worker_grace_s session_limit_audio_s session_limit_video_s
    session_limit_realtime_s realtime_wait_s input_transcript_s live_interrupt pause_timeout_s init_timeout_s
    duplex_idle_s chat_idle_s transcription_idle_s transcription_buffer_s unit_flush_s silence_tail_units
    max_append_s max_lag_s max_waiting_units max_waiting_mib outbox_audio_s outbox_mib slow_consumer_s
    drain_timeout_s
    """.split()
)
"""Options that a reload of the file of settings changes, for connections, sessions and tickets that begin
afterwards."""

_DefaultMode = Literal["video", "audio", "chat", "transcription"]
_Auth = Literal["off", "keys", "redis"]
_Interrupt = Literal["speech", "model"]
_Journal = Literal["memory", "redis"]


@dataclass(frozen=True)
class AdapterOptions:
    """Options of an adapter, with times in seconds. Raises `ConfigurationError` for invalid values."""

    workers: tuple[str, ...] = ()
    """The addresses of the workers: `host:port` or `unix:path`. Names are resolved anew for each
    connection."""

    workers_file: Path | None = None
    """A file with the addresses, one on each line. Read again on SIGHUP, to add and remove workers without a
    restart."""

    dispatcher: str | None = field(default=None, repr=False)
    """The URL of the Redis with the shared queue, where workers register, see `antiphon_service.redis`. With
    None the adapter has a queue of its own for its `workers`."""

    dispatcher_ca: Path | None = None
    """PEM authorities that verify the certificate of Redis; None uses those of the system. Read again on
    SIGHUP, as the next two files are."""

    dispatcher_cert: Path | None = None
    """PEM certificate chain for a Redis that asks for one."""

    dispatcher_cert_key: Path | None = None
    """PEM key of `dispatcher_cert`, without a password."""

    dispatcher_password_file: Path | None = None
    """Password of the user in the URL, where the URL has none."""

    peer_listen: str | None = None
    """The address for connections that other adapters forward: `host:port`, where port 0 takes a free one, or
    `unix:path`. With None a client can resume its session only at this adapter. Needs a key of client secrets
    that all adapters share, and certificates beyond loopback."""

    peer_advertise: str | None = None
    """The address that other adapters dial, `host:port` or `unix:path`; None is `peer_listen`."""

    peer_ca: Path | None = None
    """PEM authority that signs the certificates of adapters and no others; it enables mutual TLS between
    adapters. Read again on SIGHUP, as the next two files are."""

    peer_cert: Path | None = None
    """PEM certificate chain of this adapter."""

    peer_cert_key: Path | None = None
    """PEM key of `peer_cert`, without a password."""

    worker_key: bytes | None = field(default=None, repr=False)
    """The key that signs leases. Workers with this key accept only leases signed with it; None signs none."""

    worker_ca: Path | None = None
    """PEM authority that signed the certificates of the workers. It enables TLS to every worker, except those
    at Unix sockets; the certificate must contain the name of the worker. Read again on SIGHUP, as the next
    two files are."""

    worker_cert: Path | None = None
    """PEM certificate chain for workers that ask for one."""

    worker_cert_key: Path | None = None
    """PEM key of `worker_cert`, without a password."""

    worker_name: str | None = None
    """The name that the certificate of every worker must contain; None is the host of its address. For
    workers whose addresses change, such as pods, with one certificate for all."""

    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback only with keys or `allow_anonymous`."""

    port: int = 8006
    """The port; 0 takes a free one."""

    processes_file: Path | None = None
    """The JSON file in which `antiphon serve` reports its processes; the status page shows them."""

    reuse_port: bool = False
    """Listens with SO_REUSEPORT: the kernel spreads connections over the adapters of this user on the same
    ports. A draining adapter stops listening, so that new connections go to the others."""

    no_page: bool = False
    """Serves no web page at `/`."""

    allow_anonymous: bool = False
    """Lets any client that can reach the adapter use it."""

    tls_cert: Path | None = None
    """PEM certificate chain; it enables TLS at `tls_port`, beside `port`. Read again on SIGHUP."""

    tls_key: Path | None = None
    """PEM key of the certificate, without a password."""

    tls_host: str | None = None
    """Address to listen on for TLS; None is `host`."""

    tls_port: int = 8443
    """The TLS port; 0 takes a free one."""

    admin_host: str = "127.0.0.1"
    """Address of the administration port; beyond loopback only with keys, even with `allow_anonymous`."""

    admin_port: int | None = None
    """The port of `/metrics` and the status page; with keys only for admins. 0 takes a free port, None serves
    neither."""

    grpc_host: str = "127.0.0.1"
    """Address of the port for callers that dial workers themselves; beyond loopback only with keys or
    `allow_anonymous`."""

    grpc_port: int | None = None
    """The gRPC port for direct callers, with TLS if there is a certificate. 0 takes a free port; with None
    there are no direct callers."""

    auth: _Auth = "off"
    """The source of accepted keys: `keys` is the file `keys`, `redis` the Redis of the `dispatcher`."""

    keys: Path | None = None
    """File of keys, see `ws_adapter.access.keys`. Read again on SIGHUP."""

    client_secret_key: bytes | None = field(default=None, repr=False)
    """Signing keys of client secrets, as `ws_adapter.access.signing_keys` reads them. Adapters that share a
    key accept each other's secrets. With None the adapter makes a random key at its start."""

    client_secret_key_file: Path | None = None
    """A file with these keys, which replaces `client_secret_key`. Read again on SIGHUP."""

    auth_query: bool = False
    """Accepts a key in the query too, as `token`. Proxies may log such a key."""

    allowed_origins: tuple[str, ...] | None = None
    """Web origins whose pages may connect, such as `https://example.org`, or `*` for any. None allows any
    origin, except that in a browser on this machine only pages of this machine may connect. A request without
    an origin, as of a client that is no browser, passes the check of origins."""

    connections_per_address: int = 64
    """Most WebSockets at once from one address beyond loopback, 0 for any number."""

    opens_per_min_per_address: int = 120
    """Most attempts of one address beyond loopback to open a WebSocket within a minute, 0 for any number."""

    frames_per_s_per_address: int = 2000
    """Rate limit of frames per second of one address beyond loopback, over all its connections, with a burst
    of ten times as many. A frame of more than 32 KiB counts as several. A client over the limit is
    disconnected. 0 for any number."""

    pages_per_min_per_address: int = 600
    """Most HTTP pages for one address beyond loopback within a minute, 0 for any number."""

    handshakes_per_s: float = 150.0
    """Rate limit of opening handshakes of WebSockets per second. Further ones wait for up to 4 s, with fair
    queueing over addresses. 0 for any number."""

    connections_per_key: int = 0
    opens_per_min_per_key: int = 0

    direct_slots_per_caller: int = 0
    """Most slots of a pool that the direct calls of one key may hold or await; without keys, those of one
    address beyond loopback. 0 is all slots but one."""

    direct_session_limit_s: float = 3600.0
    """Longest session of a direct caller, even if its config asks for more; 0 switches the limit off."""

    direct_idle_s: float = 60.0
    """Idle limit in seconds of a direct caller's session; 0 switches it off."""

    trusted_proxies: tuple[str, ...] | None = None
    """Networks of proxies, such as `10.0.0.0/28`, whose `X-Forwarded-For` is trusted; None trusts none."""

    default_realtime_mode: _DefaultMode = "video"
    """The mode of `/v1/realtime` without a `mode`."""

    live_interrupt: _Interrupt = "speech"
    """The source of barge-in on `/v1/live/sessions`: detected speech, or the model alone. Many models only
    stop between two turns."""

    voices: Path | None = None
    """Folder with `default.wav`, the reference voice for clients that ask for one."""

    usage_log: Path | None = None
    """The usage log: a file with a JSON line for each finished session, see `ws_adapter.usage.line`. Reopened
    on SIGHUP. None writes none."""

    recordings: Path | None = None
    """Folder for recordings of all sessions; None records nothing."""

    recordings_max_days: float = 7.0
    """Retention of recordings in days; 0 keeps them."""

    recordings_max_gib: float = 10.0
    """Bound on the size of all recordings; beyond it the oldest of the caller with the most are removed. 0 is
    no bound."""

    queue_capacity: int = 1000
    """Most sessions that may wait for a slot."""

    revisions: tuple[str, ...] = ()
    """Weights of the revisions of models, each entry like `antiphon-mini=stable:95,canary:5`. They divide new
    sessions; a revision of weight 0 or without a weight gets none. The revisions of a model without an entry
    are treated alike."""

    queue_update_s: float = 3.0
    queue_max_wait_s: float = 0.0
    """The longest wait for a slot in seconds; 0 is unlimited."""

    no_worker_grace_s: float = 10.0
    """The seconds that sessions wait for a worker when none is ready."""

    session_limit_audio_s: float = Limits.session_limit_s
    """The longest audio session in seconds; 0 switches the limit off."""

    session_limit_video_s: float = 300.0
    session_limit_realtime_s: float = 3600.0
    """The longest session on `/v1/realtime?model=` in seconds; its events tell clients when it expires."""

    realtime_wait_s: float = Limits.realtime_wait_s
    """The seconds that a session on `/v1/realtime?model=` waits for a slot: its clients give up after 10
    s."""

    input_transcript_s: float = Limits.input_transcript_s
    """The seconds after the end of a turn within which idle slots may transcribe it; 0 transcribes none."""

    pause_timeout_s: float = Limits.pause_timeout_s
    """The default length of a pause in seconds, 1 to 300."""

    init_timeout_s: float = Limits.init_timeout_s
    """The seconds from the grant of a slot to valid settings; below 30, when the worker takes the slot
    back."""

    duplex_idle_s: float = Limits.duplex_idle_s
    chat_idle_s: float = Limits.chat_idle_s
    """The seconds that a chat may stay silent between two turns."""

    transcription_idle_s: float = Limits.transcription_idle_s
    """The idle limit of an open utterance, and the time for which a slot is kept for the next one, in
    seconds."""

    transcription_buffer_s: float = Limits.transcription_buffer_s
    """The seconds of audio that may wait to be transcribed."""

    unit_flush_s: float = Limits.unit_flush_s
    max_lag_s: float = Limits.max_lag_s
    max_waiting_units: int = Limits.max_waiting_units
    max_waiting_mib: float = Limits.max_waiting_bytes / _MIB
    silence_tail_units: int = Limits.silence_tail_units
    max_append_s: float = Limits.max_append_s
    max_message_mib: float = 16.0
    max_chat_message_mib: float = 32.0
    """The largest message of a chat, which holds whole histories with pictures and clips, and of Realtime,
    where 15 MiB of audio may come at once."""

    max_inflight_mib: float = 128.0
    """Load shedding: bound on the input and output of all sessions together, beyond which new input is
    dropped undecoded. 0 for any."""

    max_cpu: float = 0.7
    """Admission control: CPU use in cores beyond which no new session is admitted, 0 for any. All sessions
    share one event loop, so output falls behind well below one core."""

    max_loop_lag_ms: float = 250.0
    """Admission control: mean event loop lag beyond which no new session is admitted. Beyond twice this lag
    new input is dropped undecoded. 0 for any."""

    outbox_audio_s: float = 3.0
    """The seconds of output audio that may wait for a slow client."""

    outbox_mib: float = 4.0
    slow_consumer_s: float = 5.0
    """The seconds after which a client that reads nothing, with a full outbox, is disconnected."""

    resume_window_s: float = 30.0
    """The seconds that a detached session waits for its client to resume it, at most 60; 0 disables
    resuming."""

    journal_s: float = 60.0
    """The length of the journal of a full-duplex session in seconds, for failover to another worker. With 0
    the session ends with its worker."""

    journal: _Journal = "memory"
    """Store of the journals. `memory` allows failover of a worker. `redis` also writes them to the Redis of
    the dispatcher, so that the sessions of a dead adapter continue at another one; all adapters then need the
    same key of client secrets. Without `peer_listen`, a client whose adapter is alive can resume its session
    only there."""

    journal_mib: float = 256.0
    """The size of all journals together; beyond it each session keeps an equal share. 0 keeps none."""

    drain_timeout_s: float = 60.0
    """The seconds that sessions may continue after the signal to stop."""

    def __post_init__(self) -> None:
        """Raise `ConfigurationError`, with one sentence, for the first invalid value."""
        self._check_workers()
        for name in ("port", "tls_port", "admin_port", "grpc_port"):
            if not 0 <= (getattr(self, name) or 0) < 65_536:
                raise ConfigurationError(f"{name} must be 0 to 65535, not {getattr(self, name)}.")
        for name, legal in _CHOICES:
            if getattr(self, name) not in get_args(legal):
                expected = " or ".join(get_args(legal))
                raise ConfigurationError(f"{name} must be {expected}, not {getattr(self, name)}.")
        if self.worker_key is not None and len(self.worker_key) < MIN_WORKER_KEY_BYTES:
            raise ConfigurationError(
                f"The worker key must have at least {MIN_WORKER_KEY_BYTES} bytes, not "
                f"{len(self.worker_key)}. Make one with: openssl rand -hex 32"
            )
        if self.client_secret_key is not None:
            parse_signing_keys(self.client_secret_key, SOURCE)
        read_weights(self.revisions)
        self._check_access()
        for name in ("queue_capacity", "max_waiting_units"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} must be above 0, not {getattr(self, name)}.")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} must be 0 or more, not {getattr(self, name)}.")
        if not 0 <= self.resume_window_s <= LONGEST_WINDOW_S:
            raise ConfigurationError(
                f"resume_window_s must be 0 to {LONGEST_WINDOW_S:g}, not {self.resume_window_s:g}: no worker "
                "keeps a paused session for longer."
            )
        if not SHORTEST_PAUSE_S <= self.pause_timeout_s <= LONGEST_PAUSE_S:
            raise ConfigurationError(
                f"pause_timeout_s must be {SHORTEST_PAUSE_S:g} to {LONGEST_PAUSE_S:g}, not "
                f"{self.pause_timeout_s:g}: no client may pause for a shorter or a longer time."
            )
        if self.init_timeout_s >= WORKER_CONFIG_TIMEOUT_S:
            raise ConfigurationError(
                f"init_timeout_s must be below {WORKER_CONFIG_TIMEOUT_S:g}, not {self.init_timeout_s:g}: "
                "workers take a slot back whose session is not configured by then."
            )

    def _check_workers(self) -> None:
        """Check that there is exactly one way to find workers."""
        if self.workers and self.workers_file is not None:
            raise ConfigurationError("Workers are named twice. Leave out --worker or --workers-file.")
        if self.dispatcher is None:
            if not all(self.workers) or not (self.workers or self.workers_file):
                raise ConfigurationError(
                    "No worker is named. Pass --worker host:port or --worker unix:path, or --dispatcher URL."
                )
            for name in _OF_DISPATCHER:
                if getattr(self, name) is not None:
                    raise ConfigurationError(f"{name} means nothing without --dispatcher URL.")
        elif self.workers or self.workers_file is not None:
            raise ConfigurationError(
                "Leave out --dispatcher, or --worker and --workers-file: with it workers register themselves."
            )
        else:
            try:
                parse(self.dispatcher)
            except RedisUnusable as error:
                raise ConfigurationError(str(error)) from None
        if (self.dispatcher_cert is None) != (self.dispatcher_cert_key is None):
            raise ConfigurationError(
                "A certificate for Redis needs its key. Pass --dispatcher-cert and --dispatcher-cert-key."
            )
        for worker in self.workers:
            check_target(worker)
        self._check_peers()

    def _check_peers(self) -> None:
        """Check the options for forwarding connections between adapters."""
        files = (self.peer_ca, self.peer_cert, self.peer_cert_key)
        if self.journal == "redis" and not (self.resume_window_s and self.journal_s and self.journal_mib):
            raise ConfigurationError(
                "--journal redis keeps journals of sessions that can be resumed. Set --resume-window-s, "
                "--journal-s and --journal-mib above 0."
            )
        if self.peer_listen is None:
            if self.peer_advertise is not None or any(files):
                raise ConfigurationError(
                    "peer_advertise, peer_ca, peer_cert and peer_cert_key mean nothing without --peer-listen."
                )
            return
        if self.dispatcher is None:
            raise ConfigurationError("peer_listen means nothing without --dispatcher URL.")
        if self.client_secret_key is None and self.client_secret_key_file is None:
            raise ConfigurationError(
                "Adapters that forward connections sign with a shared key. Set ANTIPHON_CLIENT_SECRET_KEY "
                "or pass --client-secret-key-file."
            )
        if any(files) and not all(files):
            raise ConfigurationError(
                "TLS between adapters needs an authority, a certificate and its key. "
                "Pass --peer-ca, --peer-cert and --peer-cert-key."
            )
        host, _, port = self.peer_listen.rpartition(":")
        is_unix = self.peer_listen.startswith("unix:") and self.peer_listen != "unix:"
        is_port = port.isascii() and port.isdigit() and int(port) < 65_536
        if not is_unix and (not host or "/" in host or not is_port):
            raise ConfigurationError(f"peer_listen must be host:port or unix:path, not {self.peer_listen!r}.")
        if not is_unix and not _is_loopback(host.strip("[]")) and self.peer_ca is None:
            raise ConfigurationError(
                f"Refusing to take forwarded connections on {host} without TLS, since keys of clients come "
                "over them. Pass --peer-ca, --peer-cert and --peer-cert-key."
            )
        if self.peer_advertise is not None:
            try:
                Target.parse(self.peer_advertise)
            except ValueError:
                raise ConfigurationError(
                    f"peer_advertise must be host:port or unix:path, not {self.peer_advertise!r}."
                ) from None

    def _check_access(self) -> None:
        """Check that the options of access control do not contradict each other."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigurationError("TLS needs a certificate and its key. Pass --tls-cert and --tls-key.")
        if self.tls_host is not None and self.tls_cert is None:
            raise ConfigurationError("tls_host means nothing without TLS. Pass --tls-cert and --tls-key.")
        if (self.worker_cert is None) != (self.worker_cert_key is None):
            raise ConfigurationError(
                "A certificate for workers needs its key. Pass --worker-cert and --worker-cert-key."
            )
        for name in ("worker_cert", "worker_name"):
            if getattr(self, name) is not None and self.worker_ca is None:
                raise ConfigurationError(
                    f"{name} means nothing without TLS to the workers. Pass --worker-ca too."
                )
        if (self.auth == "keys") != (self.keys is not None):
            raise ConfigurationError(
                "Keys need a file of keys. Pass --auth keys and --keys FILE, or neither."
            )
        if self.auth == "redis" and self.dispatcher is None:
            raise ConfigurationError("Keys in Redis need the Redis of a shared queue. Pass --dispatcher URL.")
        if self.auth_query and self.auth == "off":
            raise ConfigurationError("auth_query means nothing without keys. Pass --auth keys too.")
        if self.allow_anonymous and self.auth != "off":
            raise ConfigurationError(
                f"Leave out --allow-anonymous or --auth {self.auth}: one forbids the other."
            )
        if self.auth == "off" and not _is_loopback(self.admin_host):
            raise ConfigurationError(
                f"Refusing to serve the administration on {self.admin_host} without a key. Leave it on "
                "127.0.0.1, or pass --auth keys and --keys FILE; --allow-anonymous does not open it."
            )
        for host in (self.host, self.tls_host or self.host, self.grpc_host):
            if self.auth == "off" and not self.allow_anonymous and not _is_loopback(host):
                raise ConfigurationError(
                    f"Refusing to listen on {host} without a key. Listen on 127.0.0.1, "
                    "or pass --auth keys and --keys FILE, or --allow-anonymous."
                )
        if self.allowed_origins == ():
            raise ConfigurationError("allowed_origins names no origin. Name one, or * for any.")
        for origin in self.allowed_origins or ():
            if origin != ANY_ORIGIN and ("://" not in origin or origin.endswith("/")):
                raise ConfigurationError(
                    f"allowed_origins must be like https://example.org, without a path, not {origin}."
                )
        if self.trusted_proxies == ():
            raise ConfigurationError(
                "trusted_proxies names no address. Name those of the proxies, or leave it out."
            )
        for network in self.trusted_proxies or ():
            try:
                ip_network(network)
            except ValueError:
                raise ConfigurationError(
                    f"trusted_proxies must be like 10.0.0.1 or 10.0.0.0/28, not {network}."
                ) from None

    @property
    def is_reloadable(self) -> bool:
        """Whether there is a file that is read again or reopened on SIGHUP."""
        files = (self.keys, self.client_secret_key_file, self.tls_cert, self.worker_ca, self.workers_file)
        shared = (self.dispatcher_ca, self.dispatcher_cert, self.peer_ca, self.usage_log)
        return any(file is not None for file in (*files, *shared))

    @property
    def proxies(self) -> tuple[Network, ...]:
        """`trusted_proxies` as networks."""
        return tuple(ip_network(network) for network in self.trusted_proxies or ())

    @property
    def broad_proxies(self) -> tuple[Network, ...]:
        """The networks of `trusted_proxies` that are wider than a /24 of IPv4 or a /64 of IPv6."""
        return tuple(each for each in self.proxies if each.prefixlen < _SHORTEST_PREFIX[each.version])

    @property
    def session_limits_s(self) -> dict[Kind, float]:
        """The longest session of each kind, in seconds, 0 for any."""
        return {
            Kind.AUDIO_DUPLEX: self.session_limit_audio_s,
            Kind.OMNI_DUPLEX: self.session_limit_video_s,
            Kind.CHAT: 0.0,
            Kind.REALTIME: self.session_limit_realtime_s,
            Kind.TRANSCRIPTION: 0.0,
        }

    def limits(self, kind: Kind) -> Limits:
        """Return the limits of one session."""
        return Limits(
            session_limit_s=self.session_limits_s[kind],
            pause_timeout_s=self.pause_timeout_s,
            init_timeout_s=self.init_timeout_s,
            duplex_idle_s=self.duplex_idle_s,
            chat_idle_s=self.chat_idle_s,
            transcription_idle_s=self.transcription_idle_s,
            transcription_buffer_s=self.transcription_buffer_s,
            unit_flush_s=self.unit_flush_s,
            max_lag_s=self.max_lag_s,
            max_waiting_units=self.max_waiting_units,
            max_waiting_bytes=round(self.max_waiting_mib * _MIB),
            silence_tail_units=self.silence_tail_units,
            max_append_s=self.max_append_s,
            realtime_wait_s=self.realtime_wait_s,
            input_transcript_s=self.input_transcript_s,
            interrupts_on_speech=self.live_interrupt == "speech",
        )

    @property
    def load_limits(self) -> LoadLimits:
        """The limits of all sessions together."""
        return LoadLimits(self.max_cpu, self.max_loop_lag_ms / 1000, self.max_inflight_bytes)

    @property
    def max_inflight_bytes(self) -> int:
        """The bytes of input and output that all sessions together may hold; 0 for any. Incomplete input has
        a bound of its own of the same size."""
        return round(self.max_inflight_mib * _MIB)

    def message_bytes_of(self, kind: Kind) -> int:
        """Return the largest frame that a client may send."""
        is_long = kind in (Kind.CHAT, Kind.REALTIME)
        return round((self.max_chat_message_mib if is_long else self.max_message_mib) * _MIB)

    @property
    def recordings_max_bytes(self) -> int:
        """The disk space of all recordings in bytes, 0 for any amount."""
        return round(self.recordings_max_gib * 1024 * _MIB)

    def outbox_bytes_of(self, kind: Kind) -> int:
        """Return the bytes of output that may wait for a slow client: in a chat at least the
        largest message, so that a whole answer fits."""
        bound = round(self.outbox_mib * _MIB)
        return max(bound, self.message_bytes_of(kind)) if kind is Kind.CHAT else bound


_SHORTEST_PREFIX = {4: 24, 6: 64}
"""Prefix lengths by IP version; a network of trusted proxies with a shorter one causes a warning."""

_OF_DISPATCHER = ("dispatcher_ca", "dispatcher_cert", "dispatcher_cert_key", "dispatcher_password_file")
_CHOICES = (
    ("auth", _Auth),
    ("default_realtime_mode", _DefaultMode),
    ("journal", _Journal),
    ("live_interrupt", _Interrupt),
)
_POSITIVE = """
    queue_update_s init_timeout_s duplex_idle_s chat_idle_s transcription_idle_s transcription_buffer_s
    unit_flush_s max_lag_s max_waiting_mib max_append_s max_message_mib max_chat_message_mib
    outbox_audio_s outbox_mib slow_consumer_s realtime_wait_s
""".split()
_NOT_NEGATIVE = """
    queue_max_wait_s no_worker_grace_s session_limit_audio_s session_limit_video_s
    session_limit_realtime_s connections_per_address opens_per_min_per_address frames_per_s_per_address
    pages_per_min_per_address connections_per_key opens_per_min_per_key silence_tail_units
    direct_slots_per_caller direct_session_limit_s direct_idle_s input_transcript_s
    journal_s journal_mib handshakes_per_s
    max_inflight_mib max_cpu max_loop_lag_ms recordings_max_days recordings_max_gib drain_timeout_s
""".split()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
