"""The cost of a tick of the published Moshi on an assumed GPU, as a sum of parts that do not overlap."""

from dataclasses import dataclass, field
from functools import cache
from typing import Final

import torch
from transformers import MoshiConfig

from inference_service.checkpoints.moshi.folder import weight_bytes
from inference_service.checkpoints.moshi.kyutai import codec_config
from inference_service.engine.batch.memory import bytes_per_row
from inference_service.families.memory.footprint import Footprint
from inference_service.families.moshi.footprint import footprint
from inference_service.models.moshi.temporal import temporal_config

GIB: Final = 2**30


@dataclass(frozen=True)
class Card:
    """An assumed GPU. Sizes and rates of the defaults are from the data sheet of an H100 with 80 GB."""

    name: str = "H100, 80 GB"
    memory_bytes: int = 80 * GIB
    share_of_memory: float = 0.9
    """The share of the memory that a worker without `--slots` uses."""
    bytes_per_s: float = 3.35e12
    flops_16: float = 990e12
    """Dense bfloat16."""
    flops_32: float = 67e12
    """Float32 without tensor cores, which the codec uses."""
    share_of_bandwidth: float = 0.6
    share_of_flops: float = 0.3
    launch_s: float = 8e-6
    """The time of the Python thread per operator outside captured regions."""
    launches: int = 190
    """The launches of a tick, for any number of sessions; `test_moshi_launches.py` counts them."""
    kernel_s: float = 2.5e-6
    """The GPU time per kernel in a captured region."""
    kernels: int = 1200
    """The kernels in the captured regions of depth and temporal transformer: about 16 per layer."""
    codec_flops: float = 0.8e9
    """The FLOP of both halves of the codec per frame."""


@dataclass(frozen=True)
class TickCost:
    """Seconds of a tick, from the sizes of the published model in bfloat16."""

    card: Card = field(default_factory=Card)

    def seconds(self, frames: int, prompt_rows: int, context_rows: int) -> float:
        """Return the time of a tick with `frames` sessions that attend to `context_rows` rows each."""
        card, sizes = self.card, published()
        if not frames and not prompt_rows:
            return 0.0
        memory = sum(sizes.weights.values()) + frames * context_rows * row_bytes()
        parameters = (sum(sizes.weights.values()) - sizes.weights["audio_encoder"]) / 2
        flops_16 = 2 * parameters * (frames + prompt_rows)
        seconds = card.launches * card.launch_s + card.kernels * card.kernel_s
        seconds += memory / (card.bytes_per_s * card.share_of_bandwidth)
        seconds += flops_16 / (card.flops_16 * card.share_of_flops)
        return seconds + frames * card.codec_flops / (card.flops_32 * card.share_of_flops)

    @property
    def most_sessions(self) -> int:
        """The number of sessions that fit into the card's memory, as `antiphon check-config` counts them."""
        return published().slots_within(int(self.card.memory_bytes * self.card.share_of_memory - _weights()))


def _weights() -> int:
    return sum(published().weights.values())


@cache
def config() -> MoshiConfig:
    """Return the configuration of the published model."""
    depth = {
        "hidden_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "ffn_dim": 5632,
        "sliding_window": 8,
    }
    return MoshiConfig(
        vocab_size=32_000,
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        ffn_dim=22_528,
        num_codebooks=8,
        sliding_window=3000,
        max_position_embeddings=3000,
        audio_vocab_size=2048,
        audio_encoder_config=codec_config({}).to_dict(),
        depth_decoder_config=depth,
    )


@cache
def published() -> Footprint:
    """Return the memory of the published sizes, in bfloat16; nothing is loaded."""
    weights = weight_bytes(config(), torch.bfloat16)
    return footprint(config(), weights, torch.bfloat16, torch.device("cpu"))


@cache
def row_bytes() -> int:
    """Return the bytes of a row of context: keys and values of all layers."""
    return bytes_per_row(temporal_config(config()), torch.bfloat16)


def window() -> int:
    """Return the rows that a frame of the published model attends to."""
    return int(config().sliding_window)
