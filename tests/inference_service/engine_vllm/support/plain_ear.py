"""A generator over transformers' Voxtral Realtime: a whole forward over all the sound for each token."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import numpy as np
import torch
from transformers import VoxtralRealtimeForConditionalGeneration

from inference_service.engine_vllm.generator import GeneratorDead, Request, Sampled
from tests.inference_service.engine.support import tiny_voxtral
from tests.inference_service.engine_vllm.support.plain_generator import Plain

_REPEATED = 840
"""Samples at the start of a step's sound that the step before has brought."""


class PlainEar(Plain):
    """Transcribes greedily."""

    def __init__(self, folder: Path, context_limit: int) -> None:
        network = VoxtralRealtimeForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        super().__init__(network, context_limit)

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
