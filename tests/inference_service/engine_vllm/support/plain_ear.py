"""A generator over transformers' Voxtral Realtime: a whole forward over all the sound for each token."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import VoxtralRealtimeForConditionalGeneration

from inference_service.engine_vllm.generator import (
    Expanded,
    GeneratorDead,
    Load,
    MediaInput,
    OnStep,
    Request,
    Sampled,
)
from inference_service.models.chat_template import Media
from tests.inference_service.engine.support import tiny_voxtral

_REPEATED = 840
"""Samples at the start of a step's sound that the step before has brought."""


class PlainEar:
    """Implements `Generator` for greedy transcriptions."""

    device = "cpu"
    tensor_parallel_size = pipeline_parallel_size = 1
    load = Load(0, 64, 16, 0)
    whole_contexts = 10
    media: frozenset[Media] = frozenset()
    most_embeddings = 0

    def __init__(self, folder: Path, context_limit: int) -> None:
        self._model = VoxtralRealtimeForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.vocabulary: int = self._model.config.text_config.vocab_size
        self.context_limit = context_limit
        self.is_dead = False
        self.on_step: OnStep = lambda requests, tokens: None
        self.open = 0
        """Utterances that have not ended."""
        self.requests: list[Request] = []

    def placeholder(self, kind: Media, number: int) -> str:
        raise NotImplementedError

    async def expand(self, ids: list[int], media: Sequence[MediaInput]) -> Expanded:
        raise NotImplementedError

    def generate(self, request: Request) -> AsyncGenerator[Sampled, None]:
        raise NotImplementedError

    async def listen(self, steps: AsyncGenerator[Request, None]) -> AsyncGenerator[Sampled, None]:
        ids, sound = list[int](), np.zeros(0, np.float32)
        self.open += 1
        try:
            async for step in steps:
                await asyncio.sleep(0)  # orders come between two steps
                if self.is_dead:
                    raise GeneratorDead("gone")
                self.requests.append(step)
                sound = np.concatenate([sound, step.payload[_REPEATED:] if ids else step.payload])
                ids += step.ids
                assert len(ids) < self.context_limit
                self.on_step(self.open, len(step.ids))
                yield Sampled((self._next(ids, sound),))
        finally:
            self.open -= 1

    @torch.inference_mode()
    def _next(self, ids: list[int], sound: np.ndarray) -> int:
        mel = tiny_voxtral.features()(sound, sampling_rate=16_000, return_tensors="pt").input_features
        scores = self._model(
            input_ids=torch.tensor([ids]),
            input_features=mel[:, :, : len(ids) * 8],
            num_delay_tokens=tiny_voxtral.DELAY,
            use_cache=False,
        ).logits
        return int(scores[0, -1].argmax())

    def stop(self) -> None:
        """Nothing runs beside the loop."""
