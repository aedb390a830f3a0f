"""A generator over a model of transformers: one request after another, a whole forward for each token."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor

from inference_service.engine_vllm.generator import (
    Expanded,
    GeneratorDead,
    Load,
    MediaInput,
    MediaRefused,
    OnStep,
    Request,
    Sampled,
)
from inference_service.models.chat_template import Media
from tests.inference_service.engine_vllm.support.tiny_media import PICTURE_TOKENS


class Plain:
    """Base class of the generators over transformers; it computes one request after another."""

    device = "cpu"
    tensor_parallel_size = pipeline_parallel_size = 1
    load = Load(0, 64, 16, 0)
    whole_contexts = 10
    media: frozenset[Media] = frozenset()
    most_embeddings = 0

    def __init__(self, model: Any, context_limit: int) -> None:
        self._model = model.eval()
        self.vocabulary: int = model.config.get_text_config().vocab_size
        self.context_limit = context_limit
        self.is_dead = False
        self.on_step: OnStep = lambda requests, tokens: None
        self.open = 0
        """Requests or utterances that have not ended."""
        self.requests: list[Request] = []

    def stop(self) -> None:
        """Nothing runs beside the loop."""


class PlainGenerator(Plain):
    """Generates greedily, and for other requests by torch's own draws."""

    def __init__(self, folder: Path, context_limit: int) -> None:
        sees = (folder / "processor_config.json").exists()
        kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        super().__init__(kind.from_pretrained(folder, dtype=torch.float32), context_limit)
        self._processor = AutoProcessor.from_pretrained(folder) if sees else None
        self.media = frozenset({Media.PICTURE} if sees else ())
        self.most_embeddings = 4 * PICTURE_TOKENS
        self.names: list[str] = []
        """Names of all media that were prepared."""

    def placeholder(self, kind: Media, number: int) -> str:
        return "<image>"

    async def expand(self, ids: list[int], media: Sequence[MediaInput]) -> Expanded:
        assert self._processor is not None
        self.names += [medium.name for medium in media]
        mark, expanded = self._model.config.image_token_id, list[int]()
        if ids.count(mark) != len(media):
            raise MediaRefused(f"{len(media)} pictures have {ids.count(mark)} places")
        for token in ids:
            expanded += [token] * (PICTURE_TOKENS if token == mark else 1)
        pictures = [Image.fromarray(medium.content) for medium in media]
        pixels = self._processor.image_processor(pictures, return_tensors="pt")["pixel_values"]
        return Expanded(tuple(expanded), ((Media.PICTURE, PICTURE_TOKENS),) * len(media), pixels)

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
                token = self._next(ids, request.payload, given["temperature"], drawn)
                ids.append(token)
                self.on_step(self.open, 1)
                yield Sampled((token,))
                if token in given["stop_token_ids"]:
                    return
        finally:
            self.open -= 1

    @torch.inference_mode()
    def _next(
        self, ids: list[int], pixels: torch.Tensor | None, temperature: float, drawn: torch.Generator
    ) -> int:
        seen = {} if pixels is None else {"pixel_values": pixels}
        scores = self._model(torch.tensor([ids]), **seen).logits[0, -1]
        if temperature == 0:
            return int(scores.argmax())
        return int(torch.multinomial((scores / temperature).softmax(-1), 1, generator=drawn))
