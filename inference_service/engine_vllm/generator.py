"""What the engine needs of vLLM: something that continues ids."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inference_service.engine_vllm.requests import Request


class GeneratorDead(Exception):
    """The processes that compute are gone; the message says what is known."""


@dataclass(frozen=True)
class Sampled:
    """What one step of the engine added to a request."""

    ids: Sequence[int]
    cached: int = 0
    """Ids of the request's context that the prefix cache held."""


@dataclass(frozen=True)
class Load:
    """How full the engine is."""

    used_blocks: int = 0
    blocks: int = 0
    block_tokens: int = 0
    prefix_tokens: int = 0
    """Tokens so far that were found in the prefix cache."""


OnStep = Callable[[int, int], None]
"""Gets the running requests and the tokens of each step, prompt and output together, on the loop's thread."""


class Generator(Protocol):
    """Continues requests, many at a time, on the thread of one event loop."""

    on_step: OnStep

    @property
    def is_dead(self) -> bool:
        """Whether nothing can be computed any more."""

    @property
    def load(self) -> Load:
        """How full it is now."""

    def generate(self, request: Request) -> AsyncGenerator[Sampled, None]:
        """Sample until a stop id or `most`; closing the generator aborts the request.

        Raises `GeneratorDead`.
        """

    def stop(self) -> None:
        """End its processes and wait for them."""
