"""Access control in HTTP, before a WebSocket opens."""

import base64
import logging
import math
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from websockets.http11 import Request, Response

from antiphon_service.network import Address
from antiphon_service.semconv import Rejection
from ws_adapter.access.client_secrets import PREFIX, ClientSecrets
from ws_adapter.access.keys import SHARED, Key, Keys
from ws_adapter.access.rate_limit import (
    Allowance,
    Allowances,
    Bounds,
    Caller,
    RateLimits,
    TooMany,
    client_address,
)
from ws_adapter.access.rights import ALL_RIGHTS, Rights, shown
from ws_adapter.access.signing_keys import SOURCE, parse_signing_keys, read_signing_keys
from ws_adapter.forwarding.introduction import Introductions
from ws_adapter.options import ANY_ORIGIN, AdapterOptions
from ws_adapter.pages import responses
from ws_adapter.peers.base import NoPeers, Peers, Refused
from ws_adapter.process.clock import Clock
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import Verdict
from ws_adapter.resume.tokens import ResumeTokens
from ws_adapter.usage.accounts import Accounts
from ws_adapter.web.routes import Dialect, RefusedSession, Selection, key_in_query, offered_subprotocols

logger = logging.getLogger(__name__)

KEY_SUBPROTOCOL: Final = "openai-insecure-api-key."
"""The prefix of a subprotocol that carries a key, for browsers, which cannot set headers."""

_BEARER: Final = "bearer "
_BASIC: Final = "basic "
_HOW_TO_SEND: Final = "send it as Authorization: Bearer KEY or as the subprotocol openai-insecure-api-key.KEY"

FORWARDING: Final = (
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Real-IP",
    "Forwarded",
    "Via",
)
"""Headers of proxies. A web page cannot make a browser send them to another origin without a preflight."""

_NO_SECRET: Final = "the client secret is not known here, or has expired; ask your server for another"

_HOW_TO_ALLOW: Final = "its operator can allow it with --allowed-origins"


_SECRET_MODES: Final = frozenset({Mode.CHAT, Mode.TRANSCRIPTION})


class _Typed(msgspec.Struct):
    type: Any = None


_typed: Final = msgspec.json.Decoder(_Typed)
"""Decodes the session type of the settings in a client secret."""


class Denied(Exception):
    """A rejected request: `response` is the answer, `reason` the label in the metrics."""

    def __init__(self, reason: Rejection, response: Response) -> None:
        super().__init__(response.reason_phrase)
        self.reason = reason
        self.response = response

    @property
    def is_unknown_key(self) -> bool:
        """Whether the key is missing, wrong or expired; some dialects report this after the upgrade."""
        return self.response.status_code == HTTPStatus.UNAUTHORIZED


class Admission(NamedTuple):
    """The key behind a request, its rights, and the settings of a client secret."""

    key: Key | None = None
    rights: Rights = ALL_RIGHTS
    session: bytes = b""
    is_secret: bool = False
    """Whether the request authenticated with a client secret instead of the key."""


@dataclass(frozen=True)
class Pass:
    """An admitted connection. Call `leave` once when it has ended; `allowance` holds the token buckets for
    its frames and its log lines.

    `session` are the settings of a client secret, as JSON. A connection with `key_rejection` was admitted
    only to report, after the upgrade, that its key is missing, wrong or expired.
    """

    key: Key | None
    allowance: Allowance
    leave: Callable[[], None]
    rights: Rights = ALL_RIGHTS
    session: bytes = b""
    tenant: str = ""
    """The tenant whose sessions share cached prompts: the key, else the address. Empty means a tenant of
    its own: behind a proxy that is not trusted, and with a client secret, whose key has many users."""
    holder: str = ""
    """The holder for the slot limit of direct calls. Empty means no limit, for a caller on this machine
    without a key."""
    key_rejection: Rejection | None = None


class Access:
    """Access control: origins, keys and rate limits."""

    def __init__(
        self,
        options: AdapterOptions,
        clock: Clock,
        peers: Peers | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        """Read the files of keys and of signing keys, if there are any. Raises `ConfigurationError`.

        `peers` are the other adapters whose connections count for the rate limits, `accounts` the quotas.
        """
        self._accounts = accounts
        self._peers = peers or NoPeers()
        self._keys = Keys(options.keys) if options.auth != "off" else None
        self._signing_key_file = options.client_secret_key_file
        in_environment = options.client_secret_key
        signing_keys: tuple[bytes, ...] = ()
        if self._signing_key_file is not None:
            signing_keys = read_signing_keys(self._signing_key_file)
        elif in_environment is not None:
            signing_keys = parse_signing_keys(in_environment, SOURCE)
        self.client_secrets: Final = ClientSecrets(signing_keys, clock)
        self.resume_tokens: Final = ResumeTokens(signing_keys, self._peers.adapter_id)
        self.introductions: Final = Introductions(signing_keys)
        self._in_query = options.auth_query
        self._has_warned_of_proxy = False
        self._clock = clock
        self._addresses = RateLimits(clock, "address")
        self._holders = RateLimits(clock, "key")
        self.use(options)

    def use(self, options: AdapterOptions) -> None:
        """Take origins, proxies and rate limits from `options`; open connections keep their token buckets."""
        origins = options.allowed_origins
        self._takes_any_origin = origins is not None and ANY_ORIGIN in origins
        self._origins = frozenset(origin.lower() for origin in origins or ())
        self._proxies = options.proxies
        self._allowances = Allowances(
            self._clock, options.frames_per_s_per_address, options.pages_per_min_per_address
        )
        self._address_bounds = Bounds(options.opens_per_min_per_address, options.connections_per_address)
        self._key_bounds = Bounds(options.opens_per_min_per_key, options.connections_per_key)

    def reload(self) -> None:
        """Read the file of keys again. Raises `ConfigurationError`, and then the keys stay as they were."""
        if self._keys is not None:
            self._keys.reload()

    def use_keys(self, text: str) -> None:
        """Use these shared keys. Raises `ConfigurationError`, and then the keys stay as they were."""
        if self._keys is not None:
            self._keys.use(text, SHARED)

    def reload_signing_keys(self) -> None:
        """Read the keys of client secrets again. Raises `ConfigurationError`, and then they stay as they
        were."""
        if self._signing_key_file is not None:
            keys = read_signing_keys(self._signing_key_file)
            self.client_secrets.use(keys)
            self.resume_tokens.use(keys)
            self.introductions.use(keys)

    def end_of(self, key: Key | None) -> Verdict | None:
        """Return why the key of a session is no longer valid; None if it is."""
        if key is None or self._keys is None:
            return None
        current = self._keys.current(key)
        if current is None:
            return errors.KEY_WITHDRAWN
        return errors.KEY_EXPIRED if current.has_expired(self._clock.unix()) else None

    def next_expiry(self) -> float | None:
        """Return the seconds until the next key expires; None if none will."""
        now = self._clock.unix()
        at = self._keys.next_expiry(now) if self._keys is not None else None
        return at - now if at is not None else None

    def caller(self, request: Request, peer: str) -> Caller:
        """Return the caller of a request over a connection from the address `peer`.

        A client behind a proxy on this machine is not local, whether the proxy is trusted or not.
        """
        headers = request.headers
        address = client_address(peer, headers.get_all("X-Forwarded-For"), self._proxies)
        is_forwarded = any(name in headers for name in FORWARDING)
        is_unnamed = is_forwarded and address.is_loopback and not self._is_proxy(address)
        if is_unnamed and not self._has_warned_of_proxy:
            self._has_warned_of_proxy = True
            logger.warning(
                "a proxy on this machine forwards requests, and all its clients share one rate limit: "
                "name it with --trusted-proxies"
            )
        is_known = not self._is_proxy(address)
        if is_forwarded:
            is_known = is_known and self._is_proxy(client_address(peer, (), ()))
        return Caller(address, is_local=address.is_loopback and not is_forwarded, is_known=is_known)

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self._proxies)

    async def enter(
        self,
        request: Request,
        caller: Caller,
        found: Selection | RefusedSession | None = None,
        *,
        resumes: bool = False,
    ) -> Pass:
        """Admit a WebSocket, or a gRPC call, which has no `found`. Raises `Denied`.

        If a later check fails, the connection is no longer counted; the attempt still is. Other adapters are
        asked last, also for a client with a bad key. A connection that `resumes` a session counts as an
        attempt only, since the session is still counted; its client secret may have expired since the session
        began.
        """
        self.check_origin(request, caller)
        dialect = found.dialect if found is not None else None
        with ExitStack() as leaves:
            admitted, denied = Admission(), None
            counts: list[tuple[RateLimits, str, Bounds]] = []
            try:
                if not caller.is_local:
                    bounds = _bounds(self._address_bounds, resumes=resumes)
                    counts.append((self._addresses, caller.name, bounds))
                    leaves.callback(self._addresses.enter(caller.name, bounds))
                try:
                    admitted = self._admit(request, dialect, resumes=resumes)
                except Denied as error:
                    denied = error
                if admitted.key is not None:
                    if not resumes:
                        self._check_quota(admitted.key)
                    client = admitted.key.hash
                    bounds = _bounds(self._bounds_of(admitted.key), resumes=resumes)
                    counts.append((self._holders, client, bounds))
                    leaves.callback(self._holders.enter(client, bounds))
                leaves.callback(await self._ask_peers(counts))
            except TooMany as error:
                raise Denied(Rejection.RATE, responses.too_many(error.message, error.retry_s)) from None
            if denied is not None and not (denied.is_unknown_key and dialect and dialect.tells_in_band):
                raise denied
            if isinstance(found, Selection):
                _check_rights(found, admitted.rights)
            if resumes:
                leaves.close()
            return Pass(
                admitted.key,
                self.allowance(caller),
                leaves.pop_all().close,
                admitted.rights,
                admitted.session,
                _tenant(admitted.key, caller, admitted.is_secret),
                _holder(admitted.key, caller),
                denied.reason if denied is not None else None,
            )

    def _check_quota(self, key: Key) -> None:
        """Raise `Denied` for a key whose quota was found spent a few seconds ago."""
        retry_s = self._accounts.retry_s(key.tenant) if self._accounts is not None else None
        if retry_s is not None:
            raise Denied(
                Rejection.QUOTA, responses.quota_spent(errors.QUOTA_SPENT.message, math.ceil(retry_s))
            )

    def _bounds_of(self, key: Key) -> Bounds:
        """Return the limits of a key: its own, else those of all keys."""
        usual, own = self._key_bounds, key.limits
        return Bounds(
            usual.opens_per_min if own.opens_per_min is None else own.opens_per_min,
            usual.connections if own.connections is None else own.connections,
        )

    async def _ask_peers(self, counts: Sequence[tuple[RateLimits, str, Bounds]]) -> Callable[[], None]:
        """Count a connection in all adapters; return a callback for its end, to be called once.

        Raises `TooMany`.
        """
        limited = [(limits, client, bounds) for limits, client, bounds in counts if bounds.are_any]
        answer = await self._peers.admit(
            [limits.demand(client, bounds) for limits, client, bounds in limited]
        )
        if isinstance(answer, Refused):
            limits, _, bounds = limited[answer.demand]
            raise limits.exceeded(bounds, answer.wait_s)
        return answer.leave

    def count_page(self, caller: Caller) -> None:
        """Count a request that opens no WebSocket. Raises `Denied`."""
        bucket = self.allowance(caller).pages
        if bucket is not None and not bucket.take():
            message = "too many requests from this address; try again later"
            raise Denied(Rejection.RATE, responses.too_many(message, math.ceil(bucket.wait_s)))

    def allowance(self, caller: Caller) -> Allowance:
        """Return the token buckets of the address of a caller."""
        return self._allowances.of(caller.name, is_limited=not caller.is_local)

    def check_origin(self, request: Request, caller: Caller) -> None:
        """Raise `Denied` for a web page that may not use the adapter.

        Without `allowed_origins` pages of any origin may use it. But in a browser on this machine only pages
        of this machine may: a server on loopback is for this machine alone.
        """
        if self._takes_any_origin:
            return
        origins = [origin.lower() for origin in request.headers.get_all("Origin")]
        if not all(self._may_use(origin, caller) or _is_own(origin, request) for origin in origins):
            message = f"pages of this origin may not use this server; {_HOW_TO_ALLOW}"
            raise Denied(Rejection.ORIGIN, responses.forbidden(message))
        if caller.is_local:
            self._check_host(request)

    def _may_use(self, origin: str, caller: Caller) -> bool:
        if self._origins:
            return origin in self._origins
        return not caller.is_local or _is_local(_host(origin))

    def _check_host(self, request: Request) -> None:
        """Reject DNS rebinding: the Host of such a request is a foreign name that resolves to this
        machine."""
        named = {_host(origin) for origin in self._origins}
        for host in request.headers.get_all("Host"):
            name = _host(f"//{host.lower()}")
            if "." in name and name not in named and not _is_address(name) and not _is_local(name):
                message = f"this machine is not known by the name in Host; use localhost, or {_HOW_TO_ALLOW}"
                raise Denied(Rejection.ORIGIN, responses.forbidden(message))

    def identify(self, request: Request, *, admin: bool = False, by_password: bool = False) -> Key | None:
        """Return the key of a request; None if none is needed. Raises `Denied` without a valid one.

        With `admin` only an admin's key is valid. With `by_password` the key may also be the password of HTTP
        Basic, with any user name, so that a browser asks for it.
        """
        if self._keys is None:
            return None
        password = _password(request) if by_password else None
        secret = self._secret(request) if password is None else password
        if not secret:
            message = f"a key is needed: {_HOW_TO_SEND}"
            raise Denied(Rejection.AUTH, responses.unauthorized(message, asks=by_password))
        if self._keys.are_unknown:
            # Without the list of keys no key can be judged, so the rejection is temporary.
            message = "the keys cannot be looked up at the moment; try again later"
            raise Denied(Rejection.AUTH, responses.unavailable(message))
        key = self._keys.find(secret)
        has_expired = key is not None and key.has_expired(self._clock.unix())
        if key is None or has_expired:
            message = "the key is not known here; ask the operator for another"
            reason = Rejection.EXPIRED if has_expired else Rejection.AUTH
            raise Denied(reason, responses.unauthorized(message, asks=by_password))
        _check_origins(request, key.rights, is_needed=False)
        if admin and not key.is_admin:
            message = "this needs the key of an admin"
            # Only a 401 makes a browser discard the password and ask for another.
            if password is not None:
                raise Denied(Rejection.AUTH, responses.unauthorized(message, asks=True))
            raise Denied(Rejection.AUTH, responses.forbidden(message))
        return key

    def opened_by(self, request: Request, *, resumes: bool = False) -> Set[Mode]:
        """Return the modes that the client secret of a request opens: none without a secret, and chat and
        transcription if the secret is invalid. The secret of a request that `resumes` a session may have
        expired."""
        secret = self._secret(request)
        if not secret.startswith(PREFIX):
            return frozenset()
        grant = self.client_secrets.read(secret, may_have_expired=resumes)
        if grant is None:
            return _SECRET_MODES
        is_transcription = _typed.decode(grant.session).type == Mode.TRANSCRIPTION
        return frozenset({Mode.TRANSCRIPTION if is_transcription else Mode.CHAT})

    def _admit(self, request: Request, dialect: Dialect | None, *, resumes: bool) -> Admission:
        """Return the admission of a request. Raises `Denied`.

        A client secret counts for the limits of the key that it was made with, and expires with that key. It
        gives no rights of an admin, and its traces are not continued.
        """
        secret = self._secret(request)
        if dialect is None or not dialect.takes_client_secrets or not secret.startswith(PREFIX):
            key = self.identify(request)
            return Admission(key, key.rights) if key is not None else Admission()
        grant = self.client_secrets.read(secret, may_have_expired=resumes)
        key = self._keys.find_half(grant.holder) if grant is not None and self._keys is not None else None
        if grant is None or (key is None and self._keys is not None):
            raise Denied(Rejection.AUTH, responses.unauthorized(_NO_SECRET))
        if key is None:
            rights = grant.rights
        elif key.has_expired(self._clock.unix()):
            raise Denied(Rejection.EXPIRED, responses.unauthorized(_NO_SECRET))
        else:
            rights = grant.rights.within(key.rights)
            key = replace(key, is_admin=False, is_trusted=False)
        _check_origins(request, rights, is_needed=True)
        return Admission(key, rights, grant.session, is_secret=True)

    def _secret(self, request: Request) -> str:
        """Return the key of a request: from the Authorization header, else a subprotocol, else the query."""
        for value in request.headers.get_all("Authorization"):
            if value.lower().startswith(_BEARER):
                return value[len(_BEARER) :].strip()
        for name in offered_subprotocols(request.headers.get_all("Sec-WebSocket-Protocol")):
            if name.startswith(KEY_SUBPROTOCOL):
                return name.removeprefix(KEY_SUBPROTOCOL)
        return key_in_query(request.path) if self._in_query else ""


def _bounds(bounds: Bounds, *, resumes: bool) -> Bounds:
    """Return the limits of a new connection; one that `resumes` a session has no limit of connections."""
    return bounds._replace(connections=0) if resumes else bounds


def _tenant(key: Key | None, caller: Caller, is_secret: bool) -> str:
    """Return `Pass.tenant`; `is_secret` says that a client secret stands for the key."""
    if key is not None:
        return "" if is_secret else f"key:{key.hash}"
    return f"address:{caller.name}" if caller.is_known else ""


def _holder(key: Key | None, caller: Caller) -> str:
    """Return `Pass.holder`."""
    if key is not None:
        return f"key:{key.hash}"
    return "" if caller.is_local else f"address:{caller.name}"


def _check_origins(request: Request, rights: Rights, *, is_needed: bool) -> None:
    """Raise `Denied` for a page whose origin the key or the client secret does not allow.

    With `is_needed` a request without an origin is denied too: it does not come from a browser.
    """
    if rights.origins is None:
        return
    origins = [origin.lower() for origin in request.headers.get_all("Origin")]
    if not set(origins) <= rights.origins or (is_needed and not origins):
        message = "the key or client secret is not for pages of this origin"
        raise Denied(Rejection.ORIGIN, responses.not_allowed("origin_not_allowed", message))


def _check_rights(found: Selection, rights: Rights) -> None:
    """Raise `Denied` for a mode or a model that the key or the client secret does not allow."""
    if not rights.allows_mode(found.mode):
        message = f"the key or client secret is for {shown(rights.modes or ())}, not for {found.mode}"
        raise Denied(Rejection.FORBIDDEN, responses.not_allowed("mode_not_allowed", message))
    if not rights.allows_model(found.model or ""):
        message = f"the key or client secret is for the model {shown(rights.models or ())}"
        raise Denied(Rejection.FORBIDDEN, responses.not_allowed("model_not_allowed", message))


def _password(request: Request) -> str | None:
    """Return the password of HTTP Basic: None without one, empty if it cannot be read."""
    for value in request.headers.get_all("Authorization"):
        if value.lower().startswith(_BASIC):
            try:
                pair = base64.b64decode(value[len(_BASIC) :].strip(), validate=True).decode()
            except ValueError:
                return ""
            return pair.partition(":")[2]
    return None


def _host(origin: str) -> str:
    """Return the name in `scheme://name:port` or `//name:port`; empty if there is none."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def _is_own(origin: str, request: Request) -> bool:
    """Return whether a page has the same origin as this server, as the web page served here has.

    Only an address, a name of this machine or a name without a dot counts: an attacker can make any other
    name resolve to this server.
    """
    name = _host(origin)
    if not (_is_address(name) or _is_local(name) or (name and "." not in name)):
        return False
    return [origin.partition("://")[2]] == [host.lower() for host in request.headers.get_all("Host")]


def _is_local(host: str) -> bool:
    """Return whether a name or an address always means this machine: localhost, or an address of loopback."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return _is_address(host) and ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
