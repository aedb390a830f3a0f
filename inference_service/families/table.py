"""The families of models that there is a runtime for, and how a folder's is told."""

import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from inference_service.checkpoints import causal, voxtral
from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.folder import load_duplex
from inference_service.checkpoints.minicpmo import load_minicpmo, read_minicpmo
from inference_service.engine.batch.rope import UNBOUNDED, require_independent
from inference_service.engine.runtime import Runtime
from inference_service.errors import ConfigurationError, FootprintUnknown
from inference_service.families import antiphon_mini, minicpmo, minicpmo_voice
from inference_service.families.causal_runtime import CausalRuntime, causal_footprint, require_packable
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.families.footprint import Footprint, stored
from inference_service.families.voxtral_runtime import VoxtralRuntime
from inference_service.models.causality import require_causal
from inference_service.models.config import ModelConfig, parse_config
from inference_service.models.minicpmo.config import MODEL_TYPE
from inference_service.options import USUAL_SPEECH, SpeechOptions

T = TypeVar("T")


@dataclass(frozen=True)
class Build:
    """Makes a runtime with so many slots; the weights are loaded once."""

    make: Callable[[int], Runtime]
    device: torch.device
    footprint: Footprint | None = None
    """None where it is known no sooner than the runtime is made, which then looks itself."""

    def __call__(self, slots: int) -> Runtime:
        """Raises `ConfigurationError` if so many do not fit into what is free."""
        if self.footprint is not None:
            self.footprint.require(slots, self.device)
        return self.make(slots)

    def try_out(self, slots: int, use: Callable[[Runtime], T]) -> T:
        """Return what `use` makes of a runtime with so many slots, whose memory is free afterwards.

        A runtime and its kinds of session refer to each other, as do a graph and its step, so that only the
        garbage collector frees them.
        """
        try:
            return use(self(slots))
        finally:
            gc.collect()


def load(
    folder: Path,
    device: torch.device,
    context_limit: int | None = None,
    dtype: str | None = None,
    speech: SpeechOptions = USUAL_SPEECH,
) -> Build:
    """Loads the checkpoint in `folder`.

    Raises `CheckpointError` if it cannot be used, `ConfigurationError` if the settings do not suit it.
    """
    raw = read_json(folder, "config.json")
    kind = raw.get("model_type")
    if kind == MODEL_TYPE:
        return _minicpmo(folder, device, context_limit, dtype, speech)
    if speech != USUAL_SPEECH:
        raise ConfigurationError(
            "no_speech, vocoder, vocoder_steps, vocoder_dtype and voice are for MiniCPM-o; leave them out "
            "for this model."
        )
    is_ours = kind == voxtral.MODEL_TYPE or "duplex" in raw or kind is None
    if is_ours and dtype is not None:
        raise ConfigurationError(
            "dtype is for MiniCPM-o and for causal language models; leave it out for this model."
        )
    if kind == voxtral.MODEL_TYPE:
        return _voxtral(folder, device, context_limit)
    if is_ours:
        return _duplex(folder, device, context_limit)
    require_causal(raw)
    return _causal(folder, device, context_limit, dtype)


def _minicpmo(
    folder: Path, device: torch.device, context_limit: int | None, dtype: str | None, speech: SpeechOptions
) -> Build:
    number = numbers(device, dtype)
    if not speech.no_speech:
        minicpmo_voice.require_folder(speech.vocoder or folder / minicpmo_voice.FOLDER, folder)
    footprint(folder, device, context_limit, dtype, speech).require_weights(folder, device)
    loaded = load_minicpmo(folder, device, number, speech=not speech.no_speech)
    limit = minicpmo.limit(loaded.config, context_limit)
    voice = needs = None
    if loaded.model.tts is not None:
        voice, needs = minicpmo_voice.load(folder, loaded.model.tts, minicpmo.SPEECH_CAPACITY, device, speech)
    require_independent(loaded.model.llm.model, UNBOUNDED)
    components = minicpmo.components(loaded, voice, context_limit=limit)
    told = minicpmo.footprint(loaded.config, number, limit, needs, device)

    def make(slots: int) -> DuplexRuntime:
        if voice is not None and isinstance(voice.mouth, minicpmo_voice.Token2WavMouth):
            voice.mouth.room = slots
        return DuplexRuntime(components, slots)

    return Build(make, device, told)


def numbers(device: torch.device, dtype: str | None) -> torch.dtype:
    """The numbers of a model: what is asked for, or float32 on the CPU and bfloat16 elsewhere."""
    usual = "float32" if device.type == "cpu" else "bfloat16"
    chosen: torch.dtype = getattr(torch, dtype or usual)
    return chosen


def _voxtral(folder: Path, device: torch.device, context_limit: int | None) -> Build:
    if context_limit is not None:
        raise ConfigurationError(
            "context_limit cannot be set for a Voxtral Realtime model: its context is the sliding window of "
            "its attention."
        )
    loaded = voxtral.load(folder, device)
    require_independent(loaded.model.language, UNBOUNDED, {"t_cond": loaded.model.condition()})
    require_independent(loaded.model.encoder, UNBOUNDED)
    return Build(lambda slots: VoxtralRuntime(loaded, slots), device)


def _duplex(folder: Path, device: torch.device, context_limit: int | None) -> Build:
    model, tokenizer, config = load_duplex(folder, device)
    if context_limit is not None:
        config = limited(config, context_limit)
    footprint = antiphon_mini.footprint(folder, config)

    def make(slots: int) -> DuplexRuntime:
        return DuplexRuntime(antiphon_mini.components(model, tokenizer, config), slots)

    return Build(make, device, footprint)


def _causal(folder: Path, device: torch.device, context_limit: int | None, dtype: str | None) -> Build:
    with suppress(FootprintUnknown):  # loading says why the model cannot be served
        footprint(folder, device, context_limit, dtype).require_weights(folder, device)
    loaded = causal.load(folder, device, numbers(device, dtype))
    limit = context_limit or loaded.context_limit
    if limit > loaded.context_limit:
        raise ConfigurationError(
            f"context_limit must be at most the model's {loaded.context_limit}, not {limit}."
        )
    require_packable(loaded)
    require_independent(loaded.model.get_decoder(), limit - 1)

    config = loaded.model.config.get_text_config(decoder=True)
    told = causal_footprint(config, loaded.model.dtype, limit, device)
    return Build(lambda slots: CausalRuntime(loaded, limit, slots), device, told)


def limited(config: ModelConfig, context_limit: int) -> ModelConfig:
    """`config` with a smaller context. Raises `ConfigurationError` if it would be a larger one."""
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


def footprint(
    folder: Path,
    device: torch.device,
    context_limit: int | None = None,
    dtype: str | None = None,
    speech: SpeechOptions = USUAL_SPEECH,
) -> Footprint:
    """The memory that `load` and its sessions will take, told without loading.

    Raises `CheckpointError`, or `FootprintUnknown`.
    """
    raw = read_json(folder, "config.json")
    number = numbers(device, dtype)
    if raw.get("model_type") == MODEL_TYPE:
        config = read_minicpmo(folder)
        needs = None if speech.no_speech else minicpmo_voice.planned(folder, speech)
        return minicpmo.footprint(config, number, minicpmo.limit(config, context_limit), needs, device)
    if "duplex" in raw:
        ours = parse_config(raw)
        return antiphon_mini.footprint(folder, limited(ours, context_limit) if context_limit else ours)
    if raw.get("model_type") == voxtral.MODEL_TYPE:
        raise FootprintUnknown("What a Voxtral Realtime model takes is not known before it is loaded.")
    require_causal(raw)
    limit = context_limit or int(raw.get("max_position_embeddings", 0))
    try:
        return causal_footprint(causal.read_config(folder), number, limit, device, stored(folder, number))
    except AttributeError:
        raise FootprintUnknown(
            f"What a model of type {raw.get('model_type')!r} takes is not known before it is loaded."
        ) from None
