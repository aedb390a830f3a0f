"""The protocol of a checkpoint folder that vLLM serves, and the vLLM that has loaded one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from inference_service.checkpoints.causal import read_config
from inference_service.engine_vllm.engine import VllmEngine
from inference_service.engine_vllm.generator import Generator
from inference_service.engine_vllm.loop import LoopThread
from inference_service.interface.engine import Deliver, EngineInfo, OnFatal
from inference_service.options import MOST_SLOTS

if TYPE_CHECKING:
    from inference_service.engine_vllm.llm import LlmGenerator


@dataclass(frozen=True)
class RunningVllm:
    """A vLLM that has loaded a checkpoint, and the callbacks that hear of its sessions."""

    generator: "LlmGenerator"
    thread: LoopThread
    info: EngineInfo
    slots: int | None
    """Number of slots; None for as many as the cache holds whole contexts."""
    deliver: Deliver
    on_fatal: OnFatal

    @property
    def context_limit(self) -> int:
        """Most tokens of a session: vLLM counts the token sampled last, which needs no entry."""
        return self.generator.context_limit - 1

    @property
    def whole_contexts(self) -> int:
        """Contexts of the greatest length that the cache holds at a time: 1 to `MOST_SLOTS`."""
        return max(1, min(MOST_SLOTS, self.generator.whole_contexts))


def positions_of(folder: Path) -> int | None:
    """Return how many positions a model has, as its folder says."""
    positions = getattr(read_config(folder), "max_position_embeddings", None)
    return positions if isinstance(positions, int) else None


class ServedFolder(Protocol):
    """A checkpoint without its weights."""

    @property
    def is_mistrals(self) -> bool:
        """Whether its files have Mistral's own names and formats."""

    @property
    def positions(self) -> int | None:
        """Most tokens that the model has positions for; None where the folder does not say."""

    async def compute_first(self, generator: Generator, context_limit: int) -> None:
        """Compute one token, which compiles kernels. Raises `GeneratorDead`."""

    def assemble(self, vllm: RunningVllm) -> VllmEngine:
        """Make the engine.

        Raises `CheckpointError` if the folder does not fit the model, `ConfigurationError` if the cache has
        no room for so many slots.
        """
