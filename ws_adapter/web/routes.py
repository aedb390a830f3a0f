"""Routing of request targets to pages and sessions. Pure: text in, a selection out."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Final
from urllib.parse import parse_qs, unquote

from antiphon_service.semconv import Rejection
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.wire.errors import NO_WORKER, CloseCode, ErrorCode, Verdict
from ws_adapter.protocol.wire.redaction import outline

SUBPROTOCOL: Final = "realtime"
LONGEST_LABEL: Final = 128

_REALTIME: Final = "/v1/realtime"
_DUPLEX: Final = "/ws/duplex"
_CHAT: Final = "/ws/chat"
_TRANSCRIPTION: Final = "/v1/transcription"
_LIVE: Final = "/v1/live/sessions"
_COMPLETIONS: Final = "/v1/chat/completions"
_SPEECH: Final = "/v1/audio/speech"
_NAMELESS: Final = frozenset({"/", _REALTIME, _DUPLEX, _CHAT, _TRANSCRIPTION, _LIVE, _COMPLETIONS, _SPEECH})
_HALF_DUPLEX: Final = re.compile(r"/ws/half_duplex/[^/]+")
_CLIENT_SECRETS: Final = "/v1/realtime/client_secrets"
_TICKET: Final = "/api/queue/"
_RECORDINGS: Final = "/api/sessions"
_FILES: Final = "/page/"
_START: Final = "index.html"

_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9_-]")
_AUDIO_PREFIXES: Final = ("adx_", "audio_duplex_")
_LONGEST_ECHO: Final = 40


class Page(Enum):
    """A page that is answered in HTTP."""

    HEALTH = "health"
    READY = "ready"
    VERSION = "version"
    STATUS = "status"
    WORKERS = "workers"
    MODELS = "models"
    DEFAULT_VOICE = "default voice"
    QUEUE = "queue"
    TICKET = "ticket"
    FILE = "file"
    ABOUT = "about"
    CLIENT_SECRETS = "client secrets"
    RECORDINGS = "recordings"
    COMPLETIONS = "completions"
    SPEECH = "speech"


_PAGES: Final = {
    "/health": Page.HEALTH,
    "/healthz": Page.HEALTH,
    "/ready": Page.READY,
    "/readyz": Page.READY,
    "/version": Page.VERSION,
    "/status": Page.STATUS,
    "/workers": Page.WORKERS,
    "/v1/models": Page.MODELS,
    "/api/default_ref_audio": Page.DEFAULT_VOICE,
    "/api/queue": Page.QUEUE,
    "/page/about.json": Page.ABOUT,
    _CLIENT_SECRETS: Page.CLIENT_SECRETS,
    _COMPLETIONS: Page.COMPLETIONS,
    _SPEECH: Page.SPEECH,
}

LARGEST_BODY: Final = 2**16
"""The most bytes of a request for a client secret, or for speech."""


def find_page(target: str) -> tuple[Page, str] | None:
    """Return the page of a request target, and the ticket, file or recording that it names. A trailing slash
    is ignored."""
    path = _split(target)[0]
    if path in _PAGES:
        return _PAGES[path], ""
    if path == "/":
        return Page.FILE, _START
    if path.startswith(_FILES):
        return Page.FILE, path.removeprefix(_FILES)
    if path == _RECORDINGS or path.startswith(f"{_RECORDINGS}/"):
        return Page.RECORDINGS, path.removeprefix(_RECORDINGS).removeprefix("/")
    ticket_id = path.removeprefix(_TICKET)
    return (Page.TICKET, ticket_id) if ticket_id != path and "/" not in ticket_id else None


def largest_body(method: str, target: str) -> int:
    """Return the most bytes of a request's body; 0 if none is taken."""
    return LARGEST_BODY if method == "POST" and _split(target)[0] in _WITH_BODY else 0


_WITH_BODY: Final = (_CLIENT_SECRETS, _SPEECH)


def opens_session(method: str, target: str) -> bool:
    """Return whether a session answers such a request, so that its body may be long and its answer slow."""
    return method == "POST" and _split(target)[0] == _COMPLETIONS


class Dialect(StrEnum):
    """A protocol, or two protocols that the first event tells apart."""

    REALTIME = "realtime"
    """`/v1/realtime`: the first event decides between the current and the earlier dialect; chats have only
    the current dialect."""
    DUPLEX = "duplex"
    """`/ws/duplex`."""
    CHAT = "chat"
    """`/ws/chat`."""
    TRANSCRIPTION = "transcription"
    """`/v1/transcription`, and `/v1/realtime` by its query."""
    LIVE = "live"
    """`/v1/live/sessions`."""
    REALTIME_GA = "realtime_ga"
    """OpenAI's Realtime, on `/v1/realtime`, for clients without a mode that name a model, offer the
    subprotocol or have a client secret."""
    TRANSCRIPTION_GA = "transcription_ga"
    """OpenAI's Realtime transcription, for clients whose client secret is for it."""
    COMPLETIONS = "completions"
    """OpenAI's chat completions, over HTTP: `POST /v1/chat/completions`."""

    @property
    def is_ga(self) -> bool:
        """Whether the dialect is OpenAI's Realtime (general availability)."""
        return self in (Dialect.REALTIME_GA, Dialect.TRANSCRIPTION_GA)

    @property
    def tells_in_band(self) -> bool:
        """Whether a missing or wrong key is reported after the upgrade: clients of this dialect take a failed
        upgrade for a network fault, and retry."""
        return self.is_ga or self is Dialect.LIVE

    @property
    def takes_client_secrets(self) -> bool:
        """Whether a client secret is accepted in place of a key."""
        return self.is_ga


_KINDS: Final = {
    Mode.AUDIO: Kind.AUDIO_DUPLEX,
    Mode.VIDEO: Kind.OMNI_DUPLEX,
    Mode.CHAT: Kind.CHAT,
    Mode.TRANSCRIPTION: Kind.TRANSCRIPTION,
}


@dataclass(frozen=True)
class Selection:
    """The kind of session that a WebSocket opens.

    `label` is the name of the session in the path; None without one. With `announces_slot` the client gets
    an event about its slot even if it did not wait. `model` is the model in the query; without it the first
    event names the model. `session` is the session's configuration in the client secret, as JSON. With
    `may_be_ga` the first frame of a transcription may choose OpenAI's events.
    """

    dialect: Dialect
    mode: Mode
    label: str | None = None
    announces_slot: bool = True
    model: str | None = None
    session: bytes = b""
    may_be_ga: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of the session in the queue."""
        return Kind.REALTIME if self.dialect is Dialect.REALTIME_GA else _KINDS[self.mode]


@dataclass(frozen=True)
class RefusedSession:
    """A WebSocket that is refused after the upgrade, since browsers cannot read HTTP refusals.

    `dialect` is the dialect of the refusal; `reason` is the label in the metrics, None if it follows from the
    verdict.
    """

    dialect: Dialect
    verdict: Verdict
    reason: Rejection | None = None


def select(
    target: str,
    offered: Sequence[str],
    default_mode: Mode,
    served: Set[Mode] | None,
    opens: Set[Mode] = frozenset(),
    holds_chats: Callable[[str], bool] = lambda model: True,
) -> Selection | RefusedSession | None:
    """Return the session that a WebSocket at `target` opens, or its refusal; None if there is no WebSocket.

    `offered` are the subprotocols of the client; `default_mode` is for clients that name no mode. `served`
    are the modes of the ready workers, None while no worker is known: then clients may queue for a worker,
    except for transcription, which is refused. `opens` are the modes that the client secret allows, empty
    without one. `holds_chats` returns whether a model has chats: Realtime with any other model is a
    full-duplex session.
    """
    found = _select(target, offered, default_mode, opens)
    if isinstance(found, Selection) and found.dialect is Dialect.REALTIME_GA:
        found = found if holds_chats(found.model or "") else replace(found, mode=Mode.AUDIO)
    if served is None and isinstance(found, Selection) and found.mode is Mode.TRANSCRIPTION:
        return RefusedSession(found.dialect, NO_WORKER)
    able = _WAITING if served is None else served | (_DUPLEX_MODES if served & _DUPLEX_MODES else set())
    if not isinstance(found, Selection) or found.mode in able:
        return found
    if _split(target)[0] == _TRANSCRIPTION:
        return None
    return RefusedSession(found.dialect, _unserved(found.mode, served or able))


def _select(
    target: str, offered: Sequence[str], default_mode: Mode, opens: Set[Mode]
) -> Selection | RefusedSession | None:
    path, query = _split(target)
    if path == _REALTIME:
        return _realtime(parse_qs(query, keep_blank_values=True), offered, default_mode, opens)
    if path == _CHAT:
        return Selection(Dialect.CHAT, Mode.CHAT, announces_slot=False)
    if path == _TRANSCRIPTION:
        return _TRANSCRIBING
    if path == _LIVE:
        return Selection(Dialect.LIVE, Mode.AUDIO, announces_slot=False)
    if path == _DUPLEX:
        return Selection(Dialect.DUPLEX, Mode.VIDEO, announces_slot=False)
    if _HALF_DUPLEX.fullmatch(path):
        return RefusedSession(Dialect.DUPLEX, _NO_HALF_DUPLEX)
    name = path.removeprefix(f"{_DUPLEX}/")
    if name == path or "/" in name:
        return None
    label = _NOT_IN_LABELS.sub("", unquote(name))[:LONGEST_LABEL]
    mode = Mode.AUDIO if label.startswith(_AUDIO_PREFIXES) else Mode.VIDEO
    return Selection(Dialect.DUPLEX, mode, label or None)


def _realtime(
    query: Mapping[str, Sequence[str]], offered: Sequence[str], default_mode: Mode, opens: Set[Mode]
) -> Selection | RefusedSession:
    """Return the selection of the first matching rule, in this order: mode, call, secret, intent, model."""
    mode = _first(query, "mode")
    if mode in set(Mode):
        return _in_mode(Mode(mode))
    if mode:
        return RefusedSession(Dialect.REALTIME, _unserved(mode[:_LONGEST_ECHO], set(Mode)))
    if "call_id" in query:
        return RefusedSession(Dialect.REALTIME_GA, _NO_CALLS)
    is_transcription = _first(query, "intent") == Mode.TRANSCRIPTION
    talking = Selection(Dialect.REALTIME_GA, Mode.CHAT, announces_slot=False, model=_first(query, "model"))
    if opens:
        is_transcription = Mode.TRANSCRIPTION in opens and (is_transcription or Mode.CHAT not in opens)
        return replace(_TRANSCRIBING, dialect=Dialect.TRANSCRIPTION_GA) if is_transcription else talking
    if is_transcription:
        return replace(_TRANSCRIBING, may_be_ga=True)
    if (SUBPROTOCOL in offered or "model" in query) and default_mode is not Mode.TRANSCRIPTION:
        return talking
    return _in_mode(default_mode)


def _in_mode(mode: Mode) -> Selection:
    return _TRANSCRIBING if mode is Mode.TRANSCRIPTION else Selection(Dialect.REALTIME, mode)


_TRANSCRIBING: Final = Selection(Dialect.TRANSCRIPTION, Mode.TRANSCRIPTION, announces_slot=False)


COMPLETING: Final = Selection(Dialect.COMPLETIONS, Mode.CHAT, announces_slot=False)
"""A request for a chat completion."""

_DUPLEX_MODES: Final = frozenset({Mode.AUDIO, Mode.VIDEO})
"""Modes that select the same workers: a full-duplex worker reports whether it accepts video when a session
begins."""

_WAITING: Final = _DUPLEX_MODES | {Mode.CHAT}
"""Modes whose clients may wait for a worker that serves them."""


_NO_CALLS: Final = Verdict(
    ErrorCode.INVALID_PAYLOAD,
    "call_id: no calls (WebRTC, SIP) are served here; connect to /v1/realtime?model=",
    None,
    CloseCode.INVALID_REQUEST,
)
_NO_HALF_DUPLEX: Final = Verdict(
    ErrorCode.UNSUPPORTED_PROTOCOL,
    "half duplex is not served here; use /ws/duplex",
    None,
    CloseCode.POLICY_VIOLATION,
)


def _unserved(mode: str, served: Set[Mode]) -> Verdict:
    message = f"mode={mode} is not served here; {_remedy(served)}"
    return Verdict(ErrorCode.UNSUPPORTED_MODE, message, None, CloseCode.POLICY_VIOLATION)


def _remedy(served: Set[Mode]) -> str:
    return "choose another by " + " or ".join(f"?mode={mode}" for mode in Mode if mode in served)


def _split(target: str) -> tuple[str, str]:
    """Return the path, without a trailing slash, and the query."""
    path, _, query = target.partition("?")
    return path.rstrip("/") or "/", query


def _first(query: Mapping[str, Sequence[str]], name: str) -> str:
    return next(filter(None, query.get(name, ())), "")


def describe(target: str) -> str:
    """Return a request target for the log: a known path without a name as it is, else its outline."""
    path = _split(target)[0]
    return path if path in _PAGES or path in _NAMELESS else outline(path)


def offered_subprotocols(headers: Sequence[str]) -> list[str]:
    """Return the names in the values of `Sec-WebSocket-Protocol`."""
    names = (name.strip() for value in headers for name in value.split(","))
    return [name for name in names if name]


def key_in_query(target: str) -> str:
    """Return the key that a request target carries; empty if it carries none."""
    return _first(parse_qs(_split(target)[1]), "token")
