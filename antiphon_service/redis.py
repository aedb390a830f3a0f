"""Connections to the shared queue of adapters and workers: Redis 7 or Valkey, with TLS, users, Sentinel.

`connect` needs the extra `antiphon[redis]`. `ws_adapter/dispatch/functions.lua` documents the arguments and
replies of the functions.
"""

import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from antiphon_service.tls import TlsError, client_context, load_identity

if TYPE_CHECKING:
    from redis.asyncio import Redis

LIBRARY: Final = "antiphon_v1"
"""The name of the library of functions, and the prefix of their names."""

DIRECTORY: Final = "antiphon:{pools}:"
"""The key prefix of the functions `announce` and `pools`."""

TIMEOUT_S: Final = 2.0
"""The timeout in seconds for connecting, for one answer, and for the wait for a free connection."""

MOST_CONNECTIONS: Final = 32
"""The largest number of connections of one client; further calls wait for a free one."""

_PORTS: Final = {"redis": 6379, "rediss": 6379, "redis+sentinel": 26379, "rediss+sentinel": 26379}
_EXAMPLES: Final = (
    "redis://host:6379/0, rediss://user:password@host:6379, "
    "redis+sentinel://host1:26379,host2:26379/service or unix:///run/redis.sock"
)


class RedisUnusable(Exception):
    """The error for an unusable address; the message says what to change and contains no password."""


@dataclass(frozen=True)
class RedisAddress:
    """The address of a Redis. Its text contains no password."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    """The host and port, or those of all Sentinels."""
    service: str = ""
    """The name of the service at Sentinel."""
    path: str = ""
    """The path of a Unix socket."""
    db: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def has_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme.startswith("rediss")

    def __str__(self) -> str:
        login = f"{self.user or ''}:***@" if self.password else f"{self.user}@" if self.user else ""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        name = f"/{self.service}" if self.service else ""
        return f"{self.scheme}://{login}{hosts}{self.path}{name}/{self.db}"


def prefix(pool: str) -> str:
    """Return the prefix of all keys and channels of a pool, which the functions take as `KEYS[1]`."""
    return f"antiphon:{{{pool}}}:"


def parse(url: str) -> RedisAddress:
    """Parse `url`, without a connection. Raises `RedisUnusable` for any form but those of `_EXAMPLES`."""
    try:
        return _parse(url)
    except ValueError:
        scheme = url.partition("://")[0] if "://" in url else ""
        named = f"that {scheme}:// address" if scheme in (*_PORTS, "unix") else "the given address"
        raise RedisUnusable(
            f"Cannot reach a dispatcher at {named}: write it like {_EXAMPLES}. Characters such as @ and / "
            "in a password are written as %40 and %2F."
        ) from None


class RedisTls:
    """TLS settings of all connections to one Redis, read from files that may be replaced."""

    def __init__(self, ca: Path | None, certificate: Path | None = None, key: Path | None = None) -> None:
        """Read the PEM files; the key must have no password. Raises `RedisUnusable`.

        With `ca` only that authority is trusted; without it, the authorities of the system. `certificate` and
        `key` are the client certificate for a Redis that requires one.
        """
        self._ca, self._certificate, self._key = ca, certificate, key
        self._context = self._read()

    def reload(self) -> None:
        """Read the files again; open connections keep the old ones.

        Raises `RedisUnusable`, and then the old files stay in use.
        """
        self._context = self._read()

    def get(self) -> ssl.SSLContext:
        """Return the context for the next connection; redis-py calls this whenever it connects."""
        return self._context

    def _read(self) -> ssl.SSLContext:
        try:
            if self._ca is not None:
                return client_context(self._ca, self._certificate, self._key)
            context = ssl.create_default_context()
            if self._certificate is not None and self._key is not None:
                load_identity(context, self._certificate, self._key)
            return context
        except TlsError as error:
            raise RedisUnusable(f"Cannot speak TLS with the dispatcher. {error}") from None


def read_tls(url: str, ca: Path | None, certificate: Path | None, key: Path | None) -> RedisTls | None:
    """Return the TLS settings for the Redis at `url`, None for an address without TLS.

    Raises `RedisUnusable` for unusable files, and for any file with an address without TLS.
    """
    address = parse(url)
    if address.has_tls:
        return RedisTls(ca, certificate, key)
    if ca is not None or certificate is not None:
        raise RedisUnusable(f"Certificates have no effect for {address}: write rediss:// for TLS.")
    return None


def read_password(file: Path | None) -> str | None:
    """Return the password in `file` without surrounding white space, None without a file.

    Raises `RedisUnusable` if the file cannot be read or is empty.
    """
    if file is None:
        return None
    try:
        password = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RedisUnusable(f"Cannot read the password of the dispatcher from {file}: {reason}.") from None
    if not password:
        raise RedisUnusable(f"The password file of the dispatcher, {file}, is empty.")
    return password


def connect(
    url: str, *, tls: RedisTls | None = None, password: str | None = None, is_text: bool = True
) -> "Redis":
    """Return a client of the Redis at `url`, which connects when it is first used; end it with `disconnect`.

    `tls` applies to a `rediss://` address; None trusts the authorities of the system. `password` applies if
    the URL has none. The client retries nothing. An answer, or the wait for one of the `MOST_CONNECTIONS`,
    takes at most `TIMEOUT_S`; then the client raises an error of the package. Answers are text, or bytes if
    not `is_text`. Raises `RedisUnusable`.
    """
    address = parse(url)
    try:
        from redis.asyncio import Connection, Redis, SSLConnection, UnixDomainSocketConnection
        from redis.asyncio.connection import BlockingConnectionPool
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise RedisUnusable(
            f"The dispatcher {address} needs the package redis. Install with: pip install 'antiphon[redis]'"
        ) from None
    if address.has_tls:
        tls = tls or RedisTls(None)
    common: dict[str, Any] = {
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        **_without_client_info(),
    }
    options = {
        "db": address.db,
        "username": address.user,
        "password": address.password or password,
        "decode_responses": is_text,
        "protocol": 2,
        "max_connections": MOST_CONNECTIONS,
        "timeout": TIMEOUT_S,
        **common,
    }
    if address.scheme == "unix":
        socket = {**options, "path": address.path}
        return Redis.from_pool(BlockingConnectionPool(connection_class=UnixDomainSocketConnection, **socket))
    if address.service:
        return _behind_sentinel(address, options, common, tls)
    host, port = address.hosts[0]
    kind = _secured(SSLConnection, tls) if tls is not None else Connection
    return Redis.from_pool(BlockingConnectionPool(connection_class=kind, **options, host=host, port=port))


async def call(client: "Redis", function: str, key: str, *arguments: object) -> Any:
    """Call one of the library's functions; `key` is the prefix of a pool, or `DIRECTORY`.

    Raises the package's errors: `RedisError`, `OSError` or `TimeoutError`.
    """
    return await client.execute_command("FCALL", f"{LIBRARY}_{function}", 1, key, *arguments)


async def disconnect(client: "Redis") -> None:
    """Close every connection. Repeated calls do nothing."""
    sentinels = getattr(getattr(client.connection_pool, "sentinel_manager", None), "sentinels", ())
    for each in (client, *sentinels):
        with suppress(Exception):
            await each.aclose(close_connection_pool=True)


def _parse(url: str) -> RedisAddress:
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise ValueError("a query")
    credentials, at, where = parts.netloc.rpartition("@")
    user, colon, secret = credentials.partition(":")
    username = unquote(user) or None if at else None
    password = unquote(secret) or None if colon else None
    if parts.scheme == "unix":
        if where or not parts.path.strip("/"):
            raise ValueError("no path")
        return RedisAddress("unix", path=unquote(parts.path), user=username, password=password)
    hosts = (
        tuple(_host(each, _PORTS[parts.scheme]) for each in where.split(","))
        if parts.scheme in _PORTS
        else ()
    )
    names = [name for name in parts.path.split("/") if name]
    service = unquote(names.pop(0)) if parts.scheme.endswith("sentinel") and names else ""
    is_sentinel = parts.scheme.endswith("sentinel")
    if not hosts or len(names) > 1 or is_sentinel != bool(service) or (len(hosts) > 1 and not is_sentinel):
        raise ValueError("no address")
    return RedisAddress(parts.scheme, hosts, service, "", int(names[0]) if names else 0, username, password)


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("no host")
    return parts.hostname, port if parts.port is None else parts.port


def _without_client_info() -> dict[str, None]:
    """Return options that stop the package from sending CLIENT SETINFO, which the ACL forbids."""
    from redis.asyncio.connection import AbstractConnection

    known = signature(AbstractConnection.__init__).parameters
    names = ("driver_info",) if "driver_info" in known else ("lib_name", "lib_version")
    return dict.fromkeys(names)


def _secured(kind: Any, tls: RedisTls) -> Any:
    """Return a subclass of the connection class `kind` that takes its TLS context from `tls`.

    The package would read the files once for each connection object. It would also trust the authorities of
    the system in addition to the named one.
    """

    class Connection(kind):  # type: ignore[misc]
        """A connection whose TLS settings can be replaced."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.ssl_context = tls

    return Connection


def _behind_sentinel(
    address: RedisAddress, options: dict[str, Any], common: dict[str, Any], tls: RedisTls | None
) -> "Redis":
    from redis.asyncio import Sentinel, SSLConnection
    from redis.asyncio.connection import BlockingConnectionPool
    from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

    class BlockingPool(SentinelConnectionPool, BlockingConnectionPool):
        """A pool that asks Sentinel for the address and waits for a free connection."""

    sentinels = Sentinel(address.hosts, sentinel_kwargs={**common, "ssl": address.has_tls})
    kind: dict[str, Any] = {}
    if tls is not None:
        kind["connection_class"] = _secured(SentinelManagedSSLConnection, tls)
        for each in sentinels.sentinels:
            each.connection_pool.connection_class = _secured(SSLConnection, tls)
    client: Redis = sentinels.master_for(
        address.service, connection_pool_class=BlockingPool, **options, **kind, ssl=address.has_tls
    )
    return client
