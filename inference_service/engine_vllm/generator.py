"""The protocol of a generator, which samples tokens for requests; `LlmGenerator` implements it with vLLM.

This module imports no vLLM.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Protocol

from inference_service.engine.batch.draw import COLDEST
from inference_service.interface.setups import KEEP_ALL, Sampling, Tenant
from inference_service.models.chat_template import Media

SAMPLE_RATE: Final = 16_000
"""Sample rate of clips in Hz; vLLM resamples them for a model with another rate."""


class GeneratorDead(Exception):
    """Raised when vLLM's processes are gone; the message says what is known."""


@dataclass(frozen=True)
class Request:
    """A context, with the settings of its continuation."""

    ids: tuple[int, ...]
    most: int
    """Limit of sampled tokens."""
    sampling: Sampling
    ends: frozenset[int]
    """The model's end-of-sequence ids."""
    seed: int
    tenant: Tenant
    payload: Any = None
    """Prepared media among `ids`; None without media."""

    @property
    def cache_salt(self) -> str | None:
        """The salt in the name of every cached block, so that tenants share none."""
        return self.tenant.salt.hex() or None

    def parameters(self) -> dict[str, Any]:
        """Return the keyword arguments of vLLM's `SamplingParams`.

        Ids that end a sequence are passed as stop ids: vLLM would read its own from files by other rules. The
        worker detokenizes, so vLLM does not.
        """
        drawn = self.sampling
        is_greedy = drawn.temperature < COLDEST
        ends = () if drawn.ignore_eos else self.ends
        return {
            "max_tokens": self.most,
            "temperature": 0.0 if is_greedy else drawn.temperature,
            "top_p": drawn.top_p,
            "top_k": 0 if drawn.top_k == KEEP_ALL else drawn.top_k,
            "repetition_penalty": drawn.repetition_penalty,
            "stop_token_ids": sorted({*drawn.stop_token_ids, *ends}),
            "ignore_eos": True,
            "seed": None if is_greedy else self.seed,
            "detokenize": False,
        }


def medium_name(tenant: Tenant, kind: str, data: bytes) -> str:
    """Return the name of a medium in vLLM's caches, which key its results by this name only.

    The name includes the kind, because one name with two numbers of embeddings would crash the engine.
    """
    parts = (tenant.salt, kind.encode(), data)
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def seed_of(seed: int, unit: int) -> int:
    """Return the seed of one unit of a session, below 2 ** 63: vLLM seeds each request by itself."""
    return int.from_bytes(sha256(f"{seed}/{unit}".encode()).digest()[:8]) >> 1


@dataclass(frozen=True)
class Sampled:
    """The result of one step of the engine for a request."""

    ids: Sequence[int]
    cached: int = 0
    """Ids of the request's context that the prefix cache held."""


@dataclass(frozen=True)
class Load:
    """The load of the engine."""

    used_blocks: int = 0
    blocks: int = 0
    block_tokens: int = 0
    prefix_tokens: int = 0
    """Tokens so far that were found in the prefix cache."""


OnStep = Callable[[int, int], None]
"""Receives the running requests and the tokens of each step, prompt and output together, on the loop's
thread.
"""


class MediaRefused(ValueError):
    """Raised when the model cannot take these pictures, clips or videos; the text says why."""


@dataclass(frozen=True)
class MediaInput:
    """A picture (RGB uint8 [height, width, 3]), a clip (float32 at 16 kHz) or a video (uint8 [frames, height,
    width, 3])."""

    kind: Media
    content: Any
    name: str
    """Name in vLLM's caches, different for each tenant."""
    frames_per_s: float = 1.0
    """Frames in a second of a video."""


@dataclass(frozen=True)
class Expanded:
    """A prompt with as many ids for each medium as it has embeddings."""

    ids: tuple[int, ...]
    embeddings: tuple[tuple[Media, int], ...]
    """Kind and embeddings of each medium."""
    payload: Any
    """Media of one request, in vLLM's form."""


class Generator(Protocol):
    """Continues many requests concurrently, on the thread of one event loop."""

    on_step: OnStep
    media: frozenset[Media]
    """Kinds of media that the model supports."""
    most_embeddings: int
    """Limit of embeddings of one medium."""
    whole_contexts: int
    """Contexts of the greatest length that fit in the cache."""

    def placeholder(self, kind: Media, number: int) -> str:
        """Return the text for the `number`-th medium of its kind, from 1, where the chat template writes
        none.
        """

    async def expand(self, ids: list[int], media: Sequence[MediaInput]) -> Expanded:
        """Prepare media for the places that `ids` hold, in order for each kind. Raises `MediaRefused`."""

    @property
    def is_dead(self) -> bool:
        """Whether the generator cannot compute any more."""

    @property
    def load(self) -> Load:
        """Return the current load."""

    def generate(self, request: Request) -> AsyncGenerator[Sampled, None]:
        """Sample until a stop id or `most`; closing the generator aborts the request.

        Raises `GeneratorDead`.
        """

    def listen(self, steps: AsyncGenerator[Request, None]) -> AsyncGenerator[Sampled, None]:
        """Sample one token for each step that extends a context; closing the generator aborts the request.

        A step's payload is its sound, float32 [samples] at `SAMPLE_RATE`. Raises `GeneratorDead`.
        """

    def stop(self) -> None:
        """End the generator's processes and wait for them."""
