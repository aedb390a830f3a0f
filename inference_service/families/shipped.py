"""The shipped families: how each recognises, loads and measures its checkpoints."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from inference_service.checkpoints import causal as causal_folder
from inference_service.checkpoints import voxtral as voxtral_folder
from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.folder import load_duplex
from inference_service.checkpoints.minicpmo import load_minicpmo, read_minicpmo
from inference_service.checkpoints.moshi import folder as moshi_folder
from inference_service.engine.batch.rope import UNBOUNDED, require_independent
from inference_service.errors import ConfigurationError, FootprintUnknown
from inference_service.families import antiphon_mini, minicpmo, minicpmo_voice
from inference_service.families.causal_runtime import CausalRuntime, causal_footprint, require_packable
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.families.family import DTYPE, EAR, SPEECH, Build, Family, Settings
from inference_service.families.memory.footprint import Footprint, stored
from inference_service.families.moshi import footprint as moshi
from inference_service.families.moshi.runtime import MoshiRuntime
from inference_service.families.voxtral_runtime import VoxtralRuntime
from inference_service.models.config import ModelConfig, parse_config
from inference_service.models.minicpmo.config import MODEL_TYPE as MINICPMO
from inference_service.recogniser.decoder import GRAMMAR

# ------------------------------------------------------------------------------------------- MiniCPM-o


def _load_minicpmo(folder: Path, settings: Settings) -> Build:
    device, speech = settings.device, settings.speech
    if not speech.no_speech:
        minicpmo_voice.require_folder(speech.vocoder or folder / minicpmo_voice.FOLDER, folder)
    _minicpmo_footprint(folder, settings).require_weights(folder, device)
    loaded = load_minicpmo(folder, device, settings.numbers, speech=not speech.no_speech)
    limit = minicpmo.limit(loaded.config, settings.context_limit)
    voice = voice_memory = None
    if loaded.model.tts is not None:
        voice, voice_memory = minicpmo_voice.load(
            folder, loaded.model.tts, minicpmo.SPEECH_CAPACITY, device, speech
        )
    require_independent(loaded.model.llm.model, UNBOUNDED)
    components = minicpmo.components(loaded, voice, context_limit=limit)
    footprint = minicpmo.footprint(loaded.config, settings.numbers, limit, voice_memory, device)

    def make(slots: int) -> DuplexRuntime:
        if voice is not None and isinstance(voice.mouth, minicpmo_voice.Token2WavMouth):
            voice.mouth.room = slots
        return DuplexRuntime(components, slots)

    return Build(make, device, footprint)


def _minicpmo_footprint(folder: Path, settings: Settings) -> Footprint:
    config, speech = read_minicpmo(folder), settings.speech
    voice_memory = None if speech.no_speech else minicpmo_voice.planned(folder, speech)
    limit = minicpmo.limit(config, settings.context_limit)
    return minicpmo.footprint(config, settings.numbers, limit, voice_memory, settings.device)


# ------------------------------------------------------------------------------------- Voxtral Realtime


def _load_voxtral(folder: Path, settings: Settings) -> Build:
    _refuse_limit(settings, "Voxtral Realtime")
    loaded = voxtral_folder.load(folder, settings.device)
    require_independent(loaded.model.language, UNBOUNDED, {"t_cond": loaded.model.condition()})
    require_independent(loaded.model.encoder, UNBOUNDED)
    return Build(lambda slots: VoxtralRuntime(loaded, slots), settings.device)


def _refuse_limit(settings: Settings, name: str) -> None:
    if settings.context_limit is not None:
        raise ConfigurationError(
            f"context_limit cannot be set for a {name} model: its context is the sliding window of its "
            "attention."
        )


def _voxtral_footprint(folder: Path, settings: Settings) -> Footprint:
    raise FootprintUnknown("The memory of a Voxtral Realtime model is not known before it is loaded.")


# ------------------------------------------------------------------------------- Moshi and PersonaPlex


def _load_moshi(folder: Path, settings: Settings) -> Build:
    _refuse_limit(settings, "Moshi")
    footprint = _moshi_footprint(folder, settings)
    footprint.require_weights(folder, settings.device)
    loaded = moshi_folder.load(folder, settings.device, settings.numbers)
    require_independent(loaded.model.temporal, UNBOUNDED)
    return Build(lambda slots: MoshiRuntime(loaded, slots), settings.device, footprint)


def _moshi_footprint(folder: Path, settings: Settings) -> Footprint:
    config, number = moshi_folder.read_config(folder), settings.numbers
    return moshi.footprint(config, moshi_folder.weight_bytes(config, number), number, settings.device)


# --------------------------------------------------------------------------------------- antiphon-mini


def _is_mini(config: Mapping[str, Any]) -> bool:
    return "duplex" in config or config.get("model_type") is None


def _load_mini(folder: Path, settings: Settings) -> Build:
    model, tokenizer, config = load_duplex(folder, settings.device)
    config = limited(config, settings.context_limit)
    recogniser = antiphon_mini.recogniser(folder) if settings.ear != "fast" else None
    reads_words = (folder / GRAMMAR).exists()

    def make(slots: int) -> DuplexRuntime:
        parts = antiphon_mini.components(model, tokenizer, config, recogniser, reads_words=reads_words)
        return DuplexRuntime(parts, slots)

    return Build(make, settings.device, antiphon_mini.footprint(folder, config))


def _mini_footprint(folder: Path, settings: Settings) -> Footprint:
    config = parse_config(read_json(folder, "config.json"))
    return antiphon_mini.footprint(folder, limited(config, settings.context_limit))


def limited(config: ModelConfig, context_limit: int | None) -> ModelConfig:
    """Return `config` with a smaller context. Raises `ConfigurationError` for a larger one."""
    if context_limit is None:
        return config
    if context_limit > config.context_limit:
        raise ConfigurationError(
            f"context_limit must be at most the model's {config.context_limit}, not {context_limit}."
        )
    return replace(
        config,
        context_limit=context_limit,
        window_high=min(config.window_high, context_limit),
        window_low=min(config.window_low, context_limit * 3 // 4),
    )


# ------------------------------------------------------------------------------- causal language models


def _load_causal(folder: Path, settings: Settings) -> Build:
    with suppress(FootprintUnknown):  # loading raises an error with the reason
        _causal_footprint(folder, settings).require_weights(folder, settings.device)
    loaded = causal_folder.load(folder, settings.device, settings.numbers)
    limit = settings.context_limit or loaded.context_limit
    if limit > loaded.context_limit:
        raise ConfigurationError(
            f"context_limit must be at most the model's {loaded.context_limit}, not {limit}."
        )
    require_packable(loaded)
    require_independent(loaded.model.get_decoder(), limit - 1)
    config = loaded.model.config.get_text_config(decoder=True)
    footprint = causal_footprint(config, loaded.model.dtype, limit, settings.device)
    return Build(lambda slots: CausalRuntime(loaded, limit, slots), settings.device, footprint)


def _causal_footprint(folder: Path, settings: Settings) -> Footprint:
    config, number = causal_folder.read_config(folder), settings.numbers
    limit = settings.context_limit or int(getattr(config, "max_position_embeddings", 0))
    try:
        return causal_footprint(config, number, limit, settings.device, stored(folder, number))
    except AttributeError:
        raise FootprintUnknown(
            f"The memory of a model of type {config.model_type!r} is not known before it is loaded."
        ) from None


VOXTRAL: Final = Family(
    "Voxtral Realtime",
    lambda config: config.get("model_type") == voxtral_folder.MODEL_TYPE,
    _load_voxtral,
    _voxtral_footprint,
)

SHIPPED: Final = (
    Family(
        "MiniCPM-o",
        lambda config: config.get("model_type") == MINICPMO,
        _load_minicpmo,
        _minicpmo_footprint,
        frozenset({DTYPE, SPEECH}),
    ),
    VOXTRAL,
    Family(
        "Moshi",
        moshi_folder.is_moshi,
        _load_moshi,
        _moshi_footprint,
        frozenset({DTYPE}),
    ),
    Family("antiphon-mini", _is_mini, _load_mini, _mini_footprint, frozenset({EAR})),
)
"""The families that are recognised by a folder's `config.json`."""

CAUSAL: Final = Family(
    "causal language models", lambda config: True, _load_causal, _causal_footprint, frozenset({DTYPE})
)
"""The family of every other folder; it tests whether it can serve the model."""
