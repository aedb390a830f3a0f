"""Sizes of a token2wav checkpoint. Defaults are those of the published one."""

from dataclasses import dataclass, field

MELS = 80
RATE_HZ = 24_000
HOP = 480
"""Samples of one mel frame."""
FRAMES_PER_TOKEN = 2
TOKENS_PER_SECOND = 25
LOOK_AHEAD = 3
"""Later tokens that a chunk's last token needs."""
SILENT_TOKEN = 4218
"""The token of silence, before a turn and after a prompt."""
GENERATED_FRAMES = 100
"""Generated mel frames that stay in the caches, besides the prompt."""


@dataclass(frozen=True)
class EncoderConfig:
    """The conformer between speech tokens and mel frames."""

    vocabulary: int = 6561
    width: int = 512
    heads: int = 8
    feed_forward: int = 2048
    blocks: int = 6
    up_blocks: int = 4


@dataclass(frozen=True)
class EstimatorConfig:
    """The diffusion transformer that estimates the flow."""

    width: int = 512
    depth: int = 16
    heads: int = 8
    head_dim: int = 64
    mlp_ratio: float = 4.0


@dataclass(frozen=True)
class VocoderConfig:
    """HiFT. `is_causal` is the variant of `minicpmo-utils` 1.0.7, which has its own weights."""

    channels: int = 512
    f0_channels: int = 512
    harmonics: int = 8
    is_causal: bool = False


@dataclass(frozen=True)
class Token2WavConfig:
    """All sizes of a checkpoint."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    vocoder: VocoderConfig = field(default_factory=VocoderConfig)
    speaker: int = 192
    """Width of a speaker vector."""
    guidance: float = 0.7
