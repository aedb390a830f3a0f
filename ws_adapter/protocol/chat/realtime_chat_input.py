"""Client events of the realtime protocol in `mode=chat`."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from ws_adapter.protocol.chat.content import ChatRules, Request, read_request
from ws_adapter.protocol.chat.realtime_chat_events import TurnAppend
from ws_adapter.protocol.core.config import (
    Catalogue,
    ChatSetup,
    Mode,
    capabilities_of,
    check_model,
    listed,
    read_config,
    session_slices,
)
from ws_adapter.protocol.core.signals import Ready
from ws_adapter.protocol.duplex.realtime import init_voice, public_path, unhonoured
from ws_adapter.protocol.duplex.realtime_events import SessionClose, SessionInit
from ws_adapter.protocol.wire.codec import EventDecoder
from ws_adapter.protocol.wire.errors import (
    NOT_UTF8,
    ErrorCode,
    InvalidUtf8,
    Refusal,
    Verdict,
    missing,
    no_json,
)


class Update(Struct, frozen=True, tag_field="type", tag="session.update"):
    """The opening event of the earlier dialect, which has no chat."""


Event: TypeAlias = SessionInit | TurnAppend | SessionClose | Update

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[EventDecoder[Event]] = EventDecoder(Event)

_HONOURED: Final = frozenset({"generate_audio", "max_slice_nums"})
"""Keys of `config` that have an effect in a chat."""


@dataclass(frozen=True)
class ReadEvent:
    """A decoded event, with its parsed settings or request, or its refusal."""

    event: Event
    request: Request | Refusal | None = None
    settings: "Settings | Refusal | None" = None

    @property
    def input_id(self) -> str | None:
        """The client's name for its input."""
        fields = self.event.input if isinstance(self.event, TurnAppend) else None
        return fields.input_id if fields is not None else None


def read_event(
    frame: bytes, rules: ChatRules, model: str, catalogue: Catalogue | None, *, drops_input: bool
) -> ReadEvent | Refusal | Verdict:
    """Return the event in a text frame, with validated content; a `Verdict` if the frame ends the session.

    `rules` and `model` are those of the session. The caller checks whether its state allows the event. With
    `drops_input` a request is refused without decoding.
    """
    try:
        event = _DECODER.decode(frame)
    except InvalidUtf8:
        return NOT_UTF8
    except Refusal as refusal:
        return no_json(refusal) if refusal.code is ErrorCode.INVALID_JSON else refusal
    if isinstance(event, SessionInit):
        return ReadEvent(event, settings=_settings(event, catalogue))
    if not isinstance(event, TurnAppend):
        return ReadEvent(event)
    try:
        if event.input is None:
            raise missing("input", "an object")
        if drops_input:
            message = "the server is too busy for this input; send it again later"
            raise Refusal(ErrorCode.SERVICE_UNAVAILABLE, message)
        return ReadEvent(event, read_request(event.input, rules, capabilities_of(model, catalogue)))
    except Refusal as refusal:
        return ReadEvent(event, refusal)


@dataclass(frozen=True)
class Settings:
    """The parsed settings of `session.init`. `unsupported` are paths of accepted fields without effect."""

    setup: ChatSetup
    rules: ChatRules
    unsupported: tuple[str, ...]
    slices_field: str = ""
    """The path of the field that limits the slices of a picture; empty without one."""

    @cached_property
    def saved(self) -> bytes:
        """The serialised settings, cached."""
        return _ENCODER.encode(self)

    @classmethod
    def restored(cls, state: bytes) -> "Settings":
        """Return settings from a saved state. Raises `ValueError`."""
        return msgspec.msgpack.decode(state, type=cls)

    def unsupported_by(self, ready: Ready) -> list[str]:
        """Return the public paths of all fields without effect on the model that runs the session."""
        paths = [*self.unsupported, *map(public_path, ready.ignored_fields)]
        return list(listed([*paths, self.slices_field] if self._ignores_slices(ready) else paths))

    def _ignores_slices(self, ready: Ready) -> bool:
        return bool(self.slices_field) and not ready.cuts_pictures


BEFORE_SETTINGS: Final = ChatRules("input.", speaks=False)


def _settings(event: SessionInit, catalogue: Catalogue | None) -> Settings | Refusal:
    try:
        return read_settings(event, catalogue)
    except Refusal as refusal:
        return refusal


def read_settings(event: SessionInit, catalogue: Catalogue | None) -> Settings:
    """Return the chat settings in `session.init`; raises `Refusal`."""
    payload = event.payload
    if payload is None:
        raise missing("payload", "an object, which may be empty,")
    name = "config" if payload.config is not None else "duplex"
    given = payload.config if payload.config is not None else payload.duplex or {}
    config = read_config(given, f"payload.{name}")
    slices, slices_field = session_slices(payload.max_slice_nums, config, name)
    prompts = (payload.system_prompt, payload.instructions)
    unused = [f"{name}.{key}" for key, value in given.items() if key not in _HONOURED and value is not None]
    return Settings(
        ChatSetup(
            # A turn has its whole conversation: only a prompt of the client precedes it, never the default.
            system_prompt=next((prompt for prompt in prompts if prompt is not None), ""),
            voice=init_voice(payload, catalogue),
            model=check_model(payload.model, catalogue, "payload.model"),
            seed=payload.seed,
        ),
        ChatRules(
            "input.",
            speaks=False,
            max_slice_nums=slices,
            is_mute=payload.use_tts is False or config.generate_audio is False,
        ),
        listed([*unused, *unhonoured(payload, Mode.CHAT)]),
        slices_field,
    )
