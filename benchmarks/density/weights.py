"""Parameters of MiniCPM-o 4.5 and memory of its sessions, from the published sizes; nothing is loaded."""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import nn

from benchmarks.density.card import Card
from benchmarks.full_size.sizes import FULL
from inference_service.engine.batch.memory import bytes_per_row
from inference_service.families import minicpmo
from inference_service.families.memory.footprint import Footprint
from inference_service.families.minicpmo_voice import LONGEST_FRAMES, voice_memory
from inference_service.models.minicpmo.model import MiniCPMO
from inference_service.models.minicpmo.sizes import sizes
from inference_service.models.token2wav.config import MELS
from inference_service.models.token2wav.flow import Flow
from inference_service.models.token2wav.hift import Hift
from inference_service.models.token2wav.model import DEFAULT_STEPS
from inference_service.models.token2wav.sizes import stream_bytes
from inference_service.options import SpeechOptions

DTYPE: Final = torch.bfloat16
"""Dtype of all parts but the vocoder."""


@dataclass(frozen=True)
class Weights:
    """Parameters that a step of each part reads, without embedding tables, and bytes of states."""

    language: int
    ear: int
    eye: int
    speech: int
    encoder: int
    """The parameters of the vocoder's flow, without its estimator."""
    estimator: int
    hift: int
    row_bytes: int
    """Keys and values of a row of the language model."""
    speech_row_bytes: int
    ear_state_bytes: int


@cache
def weights() -> Weights:
    """Return the counts for the published sizes."""
    config = FULL.config
    model = MiniCPMO.hollow(config, speech=True)
    assert model.tts is not None
    with torch.device("meta"):
        nothing = torch.zeros(MELS, 0)
        flow = Flow(FULL.vocoder, nothing, steps=1, dtype=DTYPE, cache_dtype=DTYPE, reference_quirks=False)
        hift = Hift(FULL.vocoder.vocoder)
    return Weights(
        language=_count(model.llm),
        ear=_count(model.apm, model.audio_projection_layer),
        eye=_count(model.vpm, model.resampler),
        speech=_count(model.tts),
        encoder=_count(flow.encoder, flow.encoder_proj),
        estimator=_count(flow.decoder),
        hift=_count(hift),
        row_bytes=bytes_per_row(config.language, DTYPE),
        speech_row_bytes=bytes_per_row(config.speech.backbone, DTYPE),
        ear_state_bytes=sizes(config, DTYPE, context_entries=1, speech_entries=1).session["ear"],
    )


def _count(*modules: nn.Module) -> int:
    """Return the number of parameters without embedding tables: a forward reads few rows of these."""
    inner = [it for module in modules for it in module.modules() if not isinstance(it, nn.Embedding)]
    return sum(it.numel() for module in inner for it in module.parameters(recurse=False))


@cache
def footprint(context_limit: int, vocoder_dtype: str) -> Footprint:
    """Return the memory of a worker on CUDA whose sessions may have voices of their own."""
    options = SpeechOptions(vocoder_dtype=vocoder_dtype)
    voice = voice_memory(FULL.vocoder, options, LONGEST_FRAMES, can_clone=True)
    return minicpmo.footprint(FULL.config, DTYPE, context_limit, voice, torch.device("cuda"))


def slots_of(card: Card, context_limit: int, vocoder_dtype: str) -> int:
    """Return how many sessions fit into memory with the weights, as `antiphon check-config` counts."""
    needed = footprint(context_limit, vocoder_dtype)
    return needed.slots_within(card.free_bytes - sum(needed.weights.values()))


@cache
def voice_bytes(vocoder_dtype: str) -> int:
    """Return the bytes of the vocoder's state for a session whose voice has the longest recording."""
    dtype: torch.dtype = getattr(torch, vocoder_dtype)
    return stream_bytes(FULL.vocoder, LONGEST_FRAMES, steps=DEFAULT_STEPS, dtype=dtype, cache_dtype=dtype)
