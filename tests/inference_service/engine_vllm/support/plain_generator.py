"""A generator over a model of transformers: one request after another, a whole forward for each token."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from inference_service.engine_vllm.generator import GeneratorDead, Load, OnStep, Sampled
from inference_service.engine_vllm.requests import Request


class PlainGenerator:
    """Implements `Generator` for greedy requests, and for others by torch's own draws."""

    device = "cpu"
    tensor_parallel_size = pipeline_parallel_size = 1
    load = Load(0, 64, 16, 0)

    def __init__(self, folder: Path, context_limit: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.vocabulary: int = self._model.config.vocab_size
        self.context_limit = context_limit
        self.is_dead = False
        self.on_step: OnStep = lambda requests, tokens: None
        self.open = 0
        """Requests that have not ended."""
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> AsyncGenerator[Sampled, None]:
        given = request.parameters()
        self.requests.append(request)
        assert len(request.ids) < self.context_limit
        ids, drawn = list(request.ids), torch.Generator()
        if given["seed"] is not None:
            drawn.manual_seed(given["seed"])
        self.open += 1
        try:
            for _ in range(given["max_tokens"]):
                await asyncio.sleep(0)  # orders come between two tokens
                if self.is_dead:
                    raise GeneratorDead("gone")
                token = self._next(ids, given["temperature"], drawn)
                ids.append(token)
                self.on_step(self.open, 1)
                yield Sampled((token,))
                if token in given["stop_token_ids"]:
                    return
        finally:
            self.open -= 1

    @torch.inference_mode()
    def _next(self, ids: list[int], temperature: float, drawn: torch.Generator) -> int:
        scores = self._model(torch.tensor([ids])).logits[0, -1]
        if temperature == 0:
            return int(scores.argmax())
        return int(torch.multinomial((scores / temperature).softmax(-1), 1, generator=drawn))

    def stop(self) -> None:
        """Nothing runs beside the loop."""
