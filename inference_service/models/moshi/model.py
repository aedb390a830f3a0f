"""A whole Moshi model without streams: its parts, and its tokens for silence."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import MoshiForConditionalGeneration

from inference_service.models.moshi.depth import DepthTransformer
from inference_service.models.moshi.mimi import Mimi
from inference_service.models.moshi.temporal import FrameEmbeddings, temporal_of

SILENCE = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
SINE = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
"""Codes of a frame of silence and of one of 440 Hz, as PersonaPlex reads them in its prompts."""
_PUBLISHED_SIZE = 2048
_SETTLED = 25
"""Frames of silence after which a codec repeats the same codes."""

Codes = tuple[int, ...]


@dataclass(frozen=True)
class SilentTokens:
    """Text tokens that stand for no text."""

    pad: int
    """Padding: no word begins or continues."""
    pad_ends: int
    """Marks the last frame without a word before a word begins."""

    @property
    def silent(self) -> frozenset[int]:
        """Both tokens."""
        return frozenset((self.pad, self.pad_ends))


class MoshiModel(nn.Module):
    """The network of one checkpoint. A frame of a stream has `codes` codes."""

    def __init__(self, network: MoshiForConditionalGeneration, words: SilentTokens) -> None:
        """Wrap the network. Raises `CheckpointError` if its codec cannot be streamed."""
        super().__init__()
        config = network.config
        self.words = words
        self.codes = int(config.num_codebooks)
        self.texts = int(config.vocab_size)
        self.config = config
        self.codec = Mimi(network.audio_encoder, self.codes)
        self.embeddings = FrameEmbeddings(network.decoder.model.embed_tokens, list(network.embed_tokens))
        self.temporal = temporal_of(network)
        self.head = network.decoder.lm_head
        self.depth = DepthTransformer(network.depth_decoder, self.codes)
        self.window = int(config.sliding_window)
        """Frames that a frame attends to, itself included."""
        self.begin_text, self.begin_code = self.texts, int(config.audio_vocab_size)
        """Initial tokens before the first frame."""
        self.silence = self._codes_of(SILENCE, 0.0)
        self.sine = self._codes_of(SINE, 0.5)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.head.weight.device
        return device

    def _codes_of(self, published: Codes, loudness: float) -> Codes:
        """Return codes of a steady tone of 440 Hz: the published ones, or computed ones for another codec."""
        if self.codec.size == _PUBLISHED_SIZE and self.codes == len(published):
            return published
        codec = self.codec
        times = np.arange(_SETTLED * codec.samples) / codec.sample_rate_hz
        sound = torch.from_numpy((loudness * np.sin(2 * np.pi * 440 * times)).astype(np.float32))
        sound = sound.to(codec.network.encoder.downsample.conv.weight)
        with torch.inference_mode():
            written = codec.network.encode(sound[None, None], num_quantizers=self.codes).audio_codes
        return tuple(written[0, :, -1].tolist())


@dataclass(frozen=True)
class Frame:
    """The tokens of one frame: text, the model's codes, and the user's codes."""

    text: int
    said: Codes
    heard: Codes


def rows_of(frames: list[Frame], before: Frame) -> NDArray[np.int64]:
    """Return the temporal transformer's input, [n, 1 + 2 * codes], for frames after the frame `before`.

    All codes of a stream except the first come one row late.
    """
    rows = []
    for earlier, frame in zip([before, *frames[:-1]], frames, strict=True):
        said = frame.said[0], *earlier.said[1:]
        heard = frame.heard[0], *earlier.heard[1:]
        rows.append([frame.text, *said, *heard])
    return np.array(rows, np.int64).reshape(len(rows), -1)


def no_codes(count: int, begin: int) -> Codes:
    """Return the codes before the first frame."""
    return (begin,) * count
