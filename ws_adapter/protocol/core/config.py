"""Settings of a session: the `config` object, and the parsed initialising event."""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from ws_adapter.protocol.core.signals import Ready
from ws_adapter.protocol.media.reference_voice import NO_VOICE, Voice
from ws_adapter.protocol.wire.codec import convert
from ws_adapter.protocol.wire.errors import invalid
from ws_adapter.protocol.wire.events import Slices
from ws_adapter.protocol.wire.faults import shown

DEFAULT_PROMPT: Final = "You are a helpful assistant."

USUAL_UNIT_MS: Final = 1000
"""The length of a unit in dialects with units of one second, and for models that name no other length."""

_LISTED_CHARACTERS: Final = 128
_LISTED_FIELDS: Final = 64


class DuplexConfig(Struct, frozen=True):
    """Decoding settings of a full-duplex session. None means the model's own default."""

    generate_audio: bool | None = None
    """False: text only."""
    ls_mode: Literal["explicit"] | None = None
    force_listen_count: Annotated[int, Meta(ge=0, le=60)] | None = None
    """The number of units at the beginning in which the model always listens."""
    max_new_speak_tokens_per_chunk: Annotated[int, Meta(ge=1, le=100)] | None = None
    """The most text tokens spoken in one unit."""
    decode_mode: Literal["sampling", "greedy"] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=1, le=1000)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    text_repetition_penalty: Annotated[float, Meta(ge=0.5, le=2)] | None = None
    text_repetition_window_size: Annotated[int, Meta(ge=0, le=8192)] | None = None
    """The number of latest tokens to which the repetition penalty applies."""
    length_penalty: Annotated[float, Meta(ge=0.1, le=5)] | None = None
    """Penalty on ending the turn; above 1, the end is less likely."""
    listen_prob_scale: Annotated[float, Meta(ge=0, le=10)] | None = None
    """Factor on the probability of listening."""
    listen_top_k: Annotated[int, Meta(ge=1, le=2**32 - 1)] | None = None
    """The model always listens if listening is among this many most likely choices."""
    tts_temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    chunk_ms: Literal[1000] | None = None
    sample_rate: Literal[16000] | None = None


class ConfigFields(DuplexConfig, frozen=True):
    """Decoding settings. An absent field is the model's default; other keys are accepted and named in
    `unsupported_fields`."""

    max_slice_nums: Slices | None = None


class Mode(StrEnum):
    """The mode of a session: `?mode=` on `/v1/realtime`."""

    AUDIO = "audio"
    VIDEO = "video"
    CHAT = "chat"
    TRANSCRIPTION = "transcription"


@dataclass(frozen=True)
class SessionSetup:
    """Settings of a full-duplex session. `unsupported` are paths of accepted fields without effect.

    `unit_ms` is the length of a unit in milliseconds. `slices_field` and `speech_field` are the paths of the
    fields that request slices of pictures and speech, empty without such a field; the model decides whether
    they have an effect.
    """

    mode: Mode
    system_prompt: str
    duplex: DuplexConfig
    voice: Voice
    model: str = ""
    seed: int | None = None
    max_slice_nums: int | None = None
    unit_ms: int = USUAL_UNIT_MS
    unsupported: tuple[str, ...] = ()
    slices_field: str = ""
    speech_field: str = ""

    def unsupported_by(self, ready: Ready, public_path: Callable[[str], str]) -> list[str]:
        """Return the public paths of all fields without effect on the model that runs the session.

        `public_path` converts a path in `antiphon.v1.SessionConfig` to a path of the dialect.
        """
        # The client did not send the default prompt, so it is not reported.
        is_usual = self.system_prompt == DEFAULT_PROMPT
        ignored = [it for it in ready.ignored_fields if it != "system_prompt" or not is_usual]
        paths = [*self.unsupported, *map(public_path, ignored)]
        if self.slices_field and (self.mode is Mode.AUDIO or not ready.cuts_pictures):
            paths.append(self.slices_field)
        if self.speech_field and not ready.speaks:
            paths.append(self.speech_field)
        return list(listed(paths))


@dataclass(frozen=True)
class ChatSetup:
    """Settings of a session of chat turns. `system_prompt` is for turns without one of their own."""

    system_prompt: str = ""
    voice: Voice = NO_VOICE
    model: str = ""
    seed: int | None = None


@dataclass(frozen=True)
class TranscriptionSetup:
    """Settings of a session of utterances. `is_background`: the worker runs all other sessions first."""

    model: str = ""
    is_background: bool = False


WorkerSetup: TypeAlias = SessionSetup | ChatSetup | TranscriptionSetup


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a pool; the defaults are those of a pool that is not known yet."""

    voices: Set[str] | None = None
    """Ids of registered voices; None if they are not known, so that the worker has to check the id."""
    modes: Set[Mode] = frozenset(Mode)
    calls_tools: bool = True
    """Whether chats take tools."""
    speaks: bool = True
    hears: bool = True
    unit_ms: int = USUAL_UNIT_MS
    """The shortest unit of full-duplex sessions in the pool, in milliseconds."""
    yields: bool = False
    """Whether the model supports barge-in by itself, so that the adapter need not interrupt it."""
    reads_prompts: bool = True
    """Whether instructions have an effect on full-duplex sessions."""


UNKNOWN: Final = Capabilities()


@dataclass(frozen=True)
class Pool:
    """One pool: interchangeable workers of one model. `name` is as `antiphon_service.pools` writes it."""

    name: str
    model: str
    capabilities: Capabilities


@dataclass(frozen=True)
class Catalogue:
    """The pools that a session may use. `slot` is the pool of its slot, None without a slot.

    `transcribes`: at least one pool can transcribe the user's speech; that pool need not be among `pools`.
    """

    pools: tuple[Pool, ...]
    slot: Pool | None = None
    transcribes: bool = False

    @property
    def models(self) -> Set[str]:
        """Names of the models."""
        return {pool.model for pool in self.pools}

    @property
    def choices(self) -> str:
        """The models, listed for an error."""
        return " or ".join(sorted(self.models)) or "a model of /v1/models that takes such sessions"

    @property
    def modes(self) -> Set[Mode]:
        """The modes that at least one pool serves."""
        return frozenset[Mode]().union(*(pool.capabilities.modes for pool in self.pools))

    def holds_chats(self, model: str) -> bool:
        """Return whether a pool with this model holds chats, or none is known; an empty `model` is any."""
        able = [pool.capabilities.modes for pool in self.pools if model in ("", pool.model)]
        return not able or any(Mode.CHAT in modes for modes in able)

    def of(self, model: str) -> Capabilities:
        """Return the capabilities for a session with this model; an empty `model` is any.

        The pool of the session's slot decides. Before the session has a slot, a named model has the
        capabilities that all of its pools have; without a model, a session has those that at least one pool
        has.
        """
        if self.slot is not None and model in ("", self.slot.model):
            return self.slot.capabilities
        able = [pool.capabilities for pool in self.pools if model in ("", pool.model)]
        if len(able) <= 1:
            return able[0] if able else Capabilities(frozenset(), frozenset(), calls_tools=False)
        return _common(able) if model else _combined(able)


def _common(able: Sequence[Capabilities]) -> Capabilities:
    voices = [each.voices for each in able if each.voices is not None]
    return Capabilities(
        frozenset(voices[0]).intersection(*voices) if voices else None,
        frozenset(able[0].modes).intersection(*(each.modes for each in able)),
        all(each.calls_tools for each in able),
        all(each.speaks for each in able),
        all(each.hears for each in able),
        max(each.unit_ms for each in able),
        all(each.yields for each in able),
        all(each.reads_prompts for each in able),
    )


def _combined(able: Sequence[Capabilities]) -> Capabilities:
    voices = [each.voices for each in able if each.voices is not None]
    return Capabilities(
        frozenset[str]().union(*voices) if len(voices) == len(able) else None,
        frozenset[Mode]().union(*(each.modes for each in able)),
        any(each.calls_tools for each in able),
        any(each.speaks for each in able),
        any(each.hears for each in able),
        max(each.unit_ms for each in able),
        all(each.yields for each in able),
        any(each.reads_prompts for each in able),
    )


def read_config(given: dict[str, Any], path: str) -> ConfigFields:
    """Validate and return a `config` object, which is at `path` in its event. Raises `Refusal`."""
    fields: ConfigFields = convert(given, ConfigFields, path)
    return fields


def duplex_settings(fields: ConfigFields, use_tts: bool | None = None) -> DuplexConfig:
    """Return the `config` settings for the model; `use_tts` false means no audio output."""
    settings = DuplexConfig(**{key: getattr(fields, key) for key in DuplexConfig.__struct_fields__})
    return msgspec.structs.replace(settings, generate_audio=False) if use_tts is False else settings


def session_slices(own: int | None, config: ConfigFields, name: str) -> tuple[int | None, str]:
    """Return the session's `max_slice_nums` and the path of the field that says so.

    `own` is the value outside the `config` object and takes precedence; `name` is the name of that object.
    """
    if own is not None:
        return own, "max_slice_nums"
    return config.max_slice_nums, f"{name}.max_slice_nums" if config.max_slice_nums is not None else ""


def unknown_keys(given: dict[str, Any], path: str) -> list[str]:
    """Return the paths of unknown keys of a `config` object; `path` is its own."""
    return [f"{path}.{key}" for key in given if key not in ConfigFields.__struct_fields__]


def listed(paths: Iterable[str]) -> tuple[str, ...]:
    """Return `paths` for `unsupported_fields`: without duplicates, and cut in length and number."""
    return tuple(path[:_LISTED_CHARACTERS] for path in list(dict.fromkeys(paths))[:_LISTED_FIELDS])


def first_text(*texts: str | None) -> str:
    """Return the first given text, even if it is empty; without any the default prompt."""
    return next((text for text in texts if text is not None), DEFAULT_PROMPT)


def capabilities_of(model: str, catalogue: Catalogue | None) -> Capabilities:
    """Return the capabilities for a session with this model; without a catalogue the worker checks."""
    return catalogue.of(model) if catalogue is not None else UNKNOWN


def check_model(model: str | None, catalogue: Catalogue | None, path: str) -> str:
    """Return the name of a served model, empty for any; raises `Refusal`.

    Without a catalogue, while no worker is known, the worker has to check the name.
    """
    if model and catalogue is not None and model not in catalogue.models:
        raise invalid(path, f"expected {catalogue.choices}, got {shown(model)}")
    return model or ""
