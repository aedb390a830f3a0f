"""The whole token2wav model: speech tokens of many streams to sound, in batches of equal shapes."""

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from inference_service.device.transfer import upload
from inference_service.models.token2wav.causal_vocoder import CausalVocoder
from inference_service.models.token2wav.config import Token2WavConfig
from inference_service.models.token2wav.faded_vocoder import FadedVocoder
from inference_service.models.token2wav.flow import Flow, VoicePrompt, drained
from inference_service.models.token2wav.hift import Hift
from inference_service.models.token2wav.noise import SourceNoise, flow_noise
from inference_service.models.token2wav.seconds import BATCHES, CapturedSeconds
from inference_service.models.token2wav.stream import (
    StreamCodes,
    StreamState,
    Vocoder,
    VocoderPass,
    VoiceCache,
)

DEFAULT_STEPS = 5
"""Steps of Euler's method along the flow; the default of the published class is 10, its demo takes 5."""


class _JobChunk(NamedTuple):
    """The next chunk of the job with this number."""

    job: int
    state: StreamState
    chunk: VocoderPass


class Token2Wav(nn.Module):
    """Speech tokens at 25 per second to float32 sound at 24 kHz.

    Weights are those of the published `flow.pt` under `flow.` and of `hift.pt` under `hift.`. The vocoder
    always computes in float32.
    """

    def __init__(
        self,
        config: Token2WavConfig,
        *,
        steps: int = DEFAULT_STEPS,
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype | None = None,
        reference_quirks: bool = False,
        noise: Tensor | None = None,
        source_noise: SourceNoise | None = None,
    ) -> None:
        """Create the model; `steps` and `cache_dtype` determine the cost of a stream, see `sizes`.

        `dtype` is the data type of the flow, and the default of `cache_dtype`. `reference_quirks` repeats the
        errors of the published package. `noise` [80, frames] and `source_noise` replace the drawn tables.
        """
        super().__init__()
        self.config = config
        self.flow = Flow(
            config,
            flow_noise() if noise is None else noise,
            steps=steps,
            dtype=dtype,
            cache_dtype=cache_dtype or dtype,
            reference_quirks=reference_quirks,
        )
        self.hift = Hift(config.vocoder)
        self.source_noise = source_noise or SourceNoise.drawn(config.vocoder.harmonics)
        self.vocoder: Vocoder
        if config.vocoder.is_causal:
            self.vocoder = CausalVocoder(self.hift, self.source_noise)
        else:
            self.vocoder = FadedVocoder(self.hift, self.source_noise, reference_quirks=reference_quirks)
        self._seconds: CapturedSeconds | None = None

    @torch.inference_mode()
    def capture(self, voice: VoiceCache) -> None:
        """Capture whole seconds of streams in this voice; other voices are not captured."""
        self._seconds = CapturedSeconds(self.flow, self.vocoder, voice.flow)

    @torch.inference_mode()
    def hear(self, prompt: VoicePrompt) -> VoiceCache:
        """Return the caches at the start of every turn in this voice. Raises `ValueError` if lengths
        disagree.
        """
        return drained(self.hearing(prompt))

    def hearing(self, prompt: VoicePrompt) -> Generator[None, None, VoiceCache]:
        """Compute `hear` in portions of about the same length, in inference mode."""
        self._check(prompt.tokens.tolist())
        return VoiceCache((yield from self.flow.beginning(prompt)))

    def initial_state(self, voice: VoiceCache) -> StreamState:
        """Return the state of a new stream."""
        silent = self.vocoder.initial_state()
        return StreamState(voice, voice.flow, silent, silent)

    @torch.inference_mode()
    def step(self, jobs: list[StreamCodes]) -> list[Tensor]:
        """Return the sound that each stream can output now, float32 [samples]; a turn that has ended is
        completed.

        The sounds are on the model's device, without synchronisation. A stream may occur only once. Streams
        of equal shapes share their passes, and are independent. Raises `ValueError` for a token out of range
        before any state changes.
        """
        for job in jobs:
            self._check(job.codes)
        for job in jobs:
            job.state.add(job.codes)
        said: list[list[Tensor]] = [[] for _ in jobs]
        while chunks := _next_chunks(jobs):
            for index, wave in self._say(chunks).items():
                said[index].append(wave)
        for job in jobs:
            if job.ends_turn:
                job.state.reset()
        return [torch.cat(waves) if waves else torch.zeros(0) for waves in said]

    def _check(self, codes: list[int]) -> None:
        size = self.config.encoder.vocabulary
        strange = [code for code in codes if not 0 <= code < size]
        if strange:
            raise ValueError(f"Speech tokens must be 0 to {size - 1}, not {strange[0]}.")

    def _say(self, chunks: list[_JobChunk]) -> dict[int, Tensor]:
        """Return samples of one chunk of each stream, and advance the states."""
        mels: dict[int, Tensor] = {}
        waves: dict[int, Tensor] = {}
        device = self.flow.noise.device
        for group in self._cut(_grouped(chunks, lambda it: (it.state.flow.shape, len(it.chunk.tokens)))):
            (tokens,) = upload(device, np.array([it.chunk.tokens for it in group]))
            flows = [it.state.flow for it in group]
            if self._seconds is None or group[0].chunk.is_last:
                mel, flows = self.flow.advance(tokens, flows, is_last=group[0].chunk.is_last)
            else:
                mel, flows = self._seconds.flow(tokens, flows)
            for it, frames, flow in zip(group, mel, flows, strict=True):
                mels[it.job], it.state.flow = frames, flow
        for group in self._cut(_grouped(chunks, lambda it: (it.state.vocoder.shape, len(mels[it.job])))):
            mel = torch.stack([mels[it.job].T for it in group])
            vocoders = [it.state.vocoder for it in group]
            if self._seconds is None or group[0].chunk.is_last:
                wave, vocoders = self.vocoder.advance(mel, vocoders, is_last=group[0].chunk.is_last)
            else:
                wave, vocoders = self._seconds.vocode(mel, vocoders)
            for it, samples, vocoder in zip(group, wave, vocoders, strict=True):
                waves[it.job], it.state.vocoder = samples, vocoder
        return waves

    def _cut(self, groups: list[list[_JobChunk]]) -> list[list[_JobChunk]]:
        """Cut groups to the numbers of streams that have captured passes."""
        if self._seconds is None:
            return groups
        cut = []
        for group in groups:
            begin = 0
            while begin < len(group):
                size = next(count for count in BATCHES if count <= len(group) - begin)
                cut.append(group[begin : begin + size])
                begin += size
        return cut


def _next_chunks(jobs: list[StreamCodes]) -> list[_JobChunk]:
    """Return the next chunk of every stream that has one."""
    chunks = [(i, job.state, job.state.next_chunk(is_last=job.ends_turn)) for i, job in enumerate(jobs)]
    return [_JobChunk(i, state, chunk) for i, state, chunk in chunks if chunk]


def _grouped(chunks: list[_JobChunk], shape: Callable[[_JobChunk], Hashable]) -> list[list[_JobChunk]]:
    """Group chunks of equal shape, last ones apart from others, in the order of the first of each group."""
    groups: dict[Hashable, list[_JobChunk]] = defaultdict(list)
    for it in chunks:
        groups[shape(it), it.chunk.is_last].append(it)
    return list(groups.values())
