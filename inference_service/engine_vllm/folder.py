"""The protocol of a checkpoint folder that vLLM serves, and the running vLLM that has loaded one."""

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
    """A vLLM that has loaded a checkpoint, with the callbacks for its sessions."""

    generator: "LlmGenerator"
    thread: LoopThread
    info: EngineInfo
    slots: int | None
    """Number of slots; None for as many as whole contexts fit in the cache."""
    deliver: Deliver
    on_fatal: OnFatal

    @property
    def context_limit(self) -> int:
        """Limit of tokens of a session: vLLM counts the last sampled token, which needs no entry."""
        return self.generator.context_limit - 1

    @property
    def whole_contexts(self) -> int:
        """Contexts of the greatest length that fit in the cache: 1 to `MOST_SLOTS`."""
        return max(1, min(MOST_SLOTS, self.generator.whole_contexts))


def positions_of(folder: Path) -> int | None:
    """Return the number of a model's positions from its folder; None where the folder does not state it."""
    positions = getattr(read_config(folder), "max_position_embeddings", None)
    return positions if isinstance(positions, int) else None


class ServedFolder(Protocol):
    """A checkpoint without its weights."""

    @property
    def has_mistral_layout(self) -> bool:
        """Whether its files have Mistral's layout and formats."""

    @property
    def positions(self) -> int | None:
        """The number of the model's positions; None where the folder does not state it."""

    async def compute_first(self, generator: Generator, context_limit: int) -> None:
        """Compute one token to compile kernels. Raises `GeneratorDead`."""

    def assemble(self, vllm: RunningVllm) -> VllmEngine:
        """Return the engine.

        Raises `CheckpointError` if the folder does not fit the model, `ConfigurationError` if the cache has
        no room for so many slots.
        """
