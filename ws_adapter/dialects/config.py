"""Settings of a session: the `config` object, and what `session.init` comes to."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from ws_adapter.codec import convert
from ws_adapter.dialects.errors import invalid, missing
from ws_adapter.dialects.events import InitPayload, SessionInit, Slices
from ws_adapter.dialects.voice import Voice, read_voice

DEFAULT_PROMPT: Final = "You are a helpful assistant."

_LISTED_CHARACTERS: Final = 128
_LISTED_FIELDS: Final = 64


class DuplexConfig(Struct, frozen=True):
    """Decoding settings of a full-duplex session. None means the model's own default."""

    generate_audio: bool | None = None
    ls_mode: Literal["explicit"] | None = None
    force_listen_count: Annotated[int, Meta(ge=0, le=60)] | None = None
    max_new_speak_tokens_per_chunk: Annotated[int, Meta(ge=1, le=100)] | None = None
    decode_mode: Literal["sampling", "greedy"] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=1, le=1000)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    text_repetition_penalty: Annotated[float, Meta(ge=0.5, le=2)] | None = None
    text_repetition_window_size: Annotated[int, Meta(ge=0, le=8192)] | None = None
    length_penalty: Annotated[float, Meta(ge=0.1, le=5)] | None = None
    listen_prob_scale: Annotated[float, Meta(ge=0, le=10)] | None = None
    listen_top_k: Annotated[int, Meta(ge=1, le=2**32 - 1)] | None = None
    tts_temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    chunk_ms: Literal[1000] | None = None
    sample_rate: Literal[16000] | None = None


class ConfigFields(DuplexConfig, frozen=True):
    """What `config` may hold on the wire."""

    max_slice_nums: Slices | None = None


@dataclass(frozen=True)
class Catalogue:
    """What the workers serve: names of models, and ids of registered voices."""

    models: Set[str]
    voices: Set[str]


@dataclass(frozen=True)
class SessionSetup:
    """A valid `session.init`. `unsupported`: paths of `payload` that were accepted but mean nothing here."""

    system_prompt: str
    duplex: DuplexConfig
    voice: Voice
    model: str
    seed: int | None
    unsupported: tuple[str, ...]


def read_init(event: SessionInit, catalogue: Catalogue | None) -> SessionSetup:
    """Checks a `session.init` whole; raises `Refusal`, and then nothing of it holds.

    Without a catalogue, while no worker is known, the worker is left to judge models and voices.
    """
    payload = event.payload
    if payload is None:
        raise missing("payload", "an object, which may be empty,")
    name = "config" if payload.config is not None else "duplex"
    given = payload.config if payload.config is not None else payload.duplex or {}
    duplex = _read_config(given, name)
    if payload.use_tts is False:
        duplex = msgspec.structs.replace(duplex, generate_audio=False)
    unsupported = [f"{name}.{key}" for key in given if key not in ConfigFields.__struct_fields__]
    if payload.tools:
        unsupported.append("tools")
    model = payload.model or ""
    if model and catalogue is not None and model not in catalogue.models:
        raise invalid("payload.model", "the model is not served here")
    return SessionSetup(
        system_prompt=_prompt(payload),
        duplex=duplex,
        voice=read_voice(payload, catalogue.voices if catalogue is not None else None),
        model=model,
        seed=payload.seed,
        unsupported=tuple(path[:_LISTED_CHARACTERS] for path in unsupported[:_LISTED_FIELDS]),
    )


def _prompt(payload: InitPayload) -> str:
    given = (payload.system_prompt, payload.instructions, DEFAULT_PROMPT)
    return next(text for text in given if text is not None)


def _read_config(given: dict[str, Any], name: str) -> DuplexConfig:
    fields: ConfigFields = convert(given, ConfigFields, f"payload.{name}")
    return DuplexConfig(**{key: getattr(fields, key) for key in DuplexConfig.__struct_fields__})


_PUBLIC_PATHS: Final = (
    ("duplex.", "config."),
    ("voice.llm_reference", "voice.ref_audio_base64"),
    ("voice.speech_reference", "voice.tts_ref_audio_base64"),
    ("voice.voice_id", "voice.ref_audio_path"),
)
"""Names of `antiphon.v1.SessionConfig` and what they are called in `payload`; others are equal."""


def public_path(worker_path: str) -> str:
    """The path in `payload` of a field that the worker calls `worker_path`."""
    for internal, public in _PUBLIC_PATHS:
        if worker_path.startswith(internal):
            return public + worker_path.removeprefix(internal) if internal.endswith(".") else public
    return worker_path
