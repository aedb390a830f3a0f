"""`POST /v1/realtime/client_secrets`: a server with a key requests a client secret for a browser."""

from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from websockets.http11 import Response

from ws_adapter.access.client_secrets import (
    DEFAULT_S,
    LONGEST_S,
    SHORTEST_S,
    ClientSecrets,
    TooLong,
)
from ws_adapter.access.keys import ORIGIN, Key
from ws_adapter.access.rights import ALL_RIGHTS, Rights
from ws_adapter.pages import responses
from ws_adapter.protocol.core.config import Catalogue, Mode
from ws_adapter.protocol.realtime_ga.settings import initial
from ws_adapter.protocol.realtime_ga.wire.fields import SessionFields
from ws_adapter.protocol.realtime_ga.wire.frames import demand
from ws_adapter.protocol.realtime_ga.wire.refusals import code_of
from ws_adapter.protocol.realtime_ga.wire.resources import SessionResource
from ws_adapter.protocol.transcription_ga import events as transcription_ga
from ws_adapter.protocol.transcription_ga.settings import Settings
from ws_adapter.protocol.wire.codec import RequestDecoder
from ws_adapter.protocol.wire.errors import NO_WORKER, InvalidUtf8, Refusal, invalid
from ws_adapter.protocol.wire.faults import shown
from ws_adapter.session.catalogue import narrowed
from ws_adapter.web.http1 import HttpRequest
from ws_adapter.web.routes import LARGEST_BODY, Dialect
from ws_adapter.web.session_ids import new_session_id


class ExpiresAfter(Struct, frozen=True, forbid_unknown_fields=True):
    """The lifetime of a secret."""

    anchor: Literal["created_at"] | None = None
    seconds: Annotated[int, Meta(ge=SHORTEST_S, le=LONGEST_S)] | None = None


class Bind(Struct, frozen=True, forbid_unknown_fields=True):
    """The binding of a client secret; an absent field or null adds no restriction to those of the key."""

    origin: Annotated[str, Meta(max_length=300)] | None = None
    """Origin of the web page, such as `https://example.org`."""
    model: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    mode: Literal["chat", "transcription"] | None = None
    """`chat` turns `semantic_vad`, which needs a full-duplex session, into `server_vad`."""


class SecretRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a new secret; absent and null values are the defaults."""

    expires_after: ExpiresAfter | None = None
    session: SessionFields | None = None
    bind: Bind | None = None


class TranscriptionSecretRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a new secret for a transcription session."""

    expires_after: ExpiresAfter | None = None
    session: transcription_ga.SessionFields | None = None
    bind: Bind | None = None


class Forbidden(Exception):
    """The key does not allow the requested settings; `code` and `param` are those of the HTTP error."""

    def __init__(self, code: str, param: str, what: str) -> None:
        super().__init__(what)
        self.code, self.param, self.message = code, param, f"{param}: {what}"


class IssuedSecret(Struct):
    """A secret, its expiry in Unix seconds, and the initial session of a client with it."""

    value: str
    expires_at: int
    session: SessionResource | transcription_ga.SessionResource


_decoder: Final = RequestDecoder(SecretRequest)
_transcription_decoder: Final = RequestDecoder(TranscriptionSecretRequest)


class _Typed(Struct):
    type: Any = None


class _First(Struct):
    session: _Typed | None = None


_first: Final = msgspec.json.Decoder(_First)


def answer(
    request: HttpRequest,
    key: Key | None,
    secrets: ClientSecrets,
    catalogue: Catalogue | None,
    unix: float,
) -> Response:
    """Return the response to a request for a secret with this key: the secret, or an error.

    `unix` is the current time in Unix seconds. A secret has no right that its key lacks, and does not expire
    later than the key.
    """
    if request.refused_body is not None:
        return _unread(request)
    if catalogue is None:
        return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "server_overloaded", NO_WORKER.message, None)
    try:
        secret_request = _read(request.content or b"{}")
        demand(secret_request.session, "session")
        allowed = key.rights if key is not None else ALL_RIGHTS
        rights = _rights(secret_request.bind or Bind(), allowed)
        given, session = _session(secret_request, catalogue, allowed, rights.within(allowed))
        expires_at = int(unix) + _seconds(secret_request)
        if key is not None and key.expires_at is not None:
            expires_at = min(expires_at, key.expires_at)
        encoded = msgspec.json.encode(given)
        value = secrets.make(key.hash if key is not None else None, encoded, expires_at, rights)
        return responses.answer(HTTPStatus.OK, IssuedSecret(value, expires_at, session))
    except Forbidden as forbidden:
        return _refused(HTTPStatus.FORBIDDEN, forbidden.code, forbidden.message, forbidden.param)
    except InvalidUtf8:
        return _refused(HTTPStatus.BAD_REQUEST, "invalid_json", "the body is not UTF-8", None)
    except Refusal as refusal:
        return _refused(HTTPStatus.BAD_REQUEST, code_of(refusal), refusal.message, refusal.param)
    except TooLong:
        message = "the settings are too long for a secret; leave some for session.update"
        return _refused(HTTPStatus.BAD_REQUEST, "invalid_value", message, "session")


def _read(body: bytes) -> SecretRequest | TranscriptionSecretRequest:
    try:
        session = _first.decode(body).session
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        session = None  # the decoder of the whole body reports the error
    is_transcription = session is not None and session.type == Mode.TRANSCRIPTION
    return _transcription_decoder.decode(body) if is_transcription else _decoder.decode(body)


def _seconds(secret_request: SecretRequest | TranscriptionSecretRequest) -> int:
    after = secret_request.expires_after
    return after.seconds if after is not None and after.seconds is not None else DEFAULT_S


def _rights(bind: Bind, allowed: Rights) -> Rights:
    """Return the binding of a secret. Raises `Refusal`, and `Forbidden` for more than its key allows."""
    origin = bind.origin.lower() if bind.origin is not None else None
    if origin is not None and not ORIGIN.fullmatch(origin):
        raise invalid("bind.origin", f"expected an origin such as https://example.org, got {shown(origin)}")
    if origin is not None and allowed.origins is not None and origin not in allowed.origins:
        raise Forbidden("origin_not_allowed", "bind.origin", "the key is not for pages of this origin")
    if bind.model is not None and not allowed.allows_model(bind.model):
        raise Forbidden("model_not_allowed", "bind.model", "the key is not for this model")
    if bind.mode is not None and not allowed.allows_mode(Mode(bind.mode)):
        raise Forbidden("mode_not_allowed", "bind.mode", f"the key is not for {bind.mode}")
    return Rights(
        frozenset({Mode(bind.mode)}) if bind.mode is not None else None,
        frozenset({bind.model}) if bind.model is not None else None,
        frozenset({origin}) if origin is not None else None,
    )


def _session(
    secret_request: SecretRequest | TranscriptionSecretRequest,
    catalogue: Catalogue,
    allowed: Rights,
    rights: Rights,
) -> tuple[
    SessionFields | transcription_ga.SessionFields, SessionResource | transcription_ga.SessionResource
]:
    """Return the session settings for the secret, and the initial session of a client with it.

    `allowed` are the rights of the key, `rights` those of the secret. Raises `Refusal`, and `Forbidden` for
    more than the key allows.
    """
    mode = _mode_of(secret_request, catalogue)
    if not allowed.allows_mode(mode):
        raise Forbidden("mode_not_allowed", "session.type", f"the key is not for {mode}")
    if not rights.allows_mode(mode):
        raise invalid("bind.mode", f"expected {mode}, the mode of the session, or none")
    usable = narrowed(catalogue, mode, rights)
    if isinstance(secret_request, TranscriptionSecretRequest):
        assert secret_request.session is not None
        return secret_request.session, _transcription(secret_request.session, usable)
    given = secret_request.session or SessionFields(type="realtime")
    if given.model is not None and not allowed.allows_model(given.model):
        raise Forbidden("model_not_allowed", "session.model", "the key is not for this model")
    given = _conversation(given, usable)
    settings = initial(given.model or "", given, usable)
    return given, settings.resource(new_session_id(Dialect.REALTIME_GA), 0)


def _mode_of(secret_request: SecretRequest | TranscriptionSecretRequest, catalogue: Catalogue) -> Mode:
    if isinstance(secret_request, TranscriptionSecretRequest):
        return Mode.TRANSCRIPTION
    model = (secret_request.session.model if secret_request.session is not None else None) or ""
    return Mode.CHAT if catalogue.holds_chats(model) else Mode.AUDIO


def _conversation(given: SessionFields, catalogue: Catalogue) -> SessionFields:
    """Return the settings of a conversation, with a model for URLs without one. Raises `Refusal`."""
    model = given.model or min(catalogue.models, default="")
    if model not in catalogue.models:
        raise invalid("session.model", f"expected {catalogue.choices}, got {shown(model)}")
    return msgspec.structs.replace(given, model=model)


def _transcription(
    given: transcription_ga.SessionFields, catalogue: Catalogue
) -> transcription_ga.SessionResource:
    if Mode.TRANSCRIPTION not in catalogue.modes:
        raise invalid("session.type", "expected realtime: no model here transcribes")
    settings = Settings.initial(given, catalogue)
    return settings.resource(new_session_id(Dialect.TRANSCRIPTION_GA), 0)


def _unread(request: HttpRequest) -> Response:
    if "Transfer-Encoding" in request.headers:
        message = "send the body with a Content-Length"
        return _refused(HTTPStatus.LENGTH_REQUIRED, "length_required", message, None)
    message = f"the body has more than {LARGEST_BODY} bytes"
    return _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", message, None)


def _refused(status: HTTPStatus, code: str | None, message: str, param: str | None) -> Response:
    """Return an error in the form that OpenAI's SDKs read."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"type": kind, "code": code, "message": message, "param": param}
    return responses.answer(status, {"error": error, "detail": message})
