"""How much memory a model takes on its device: its weights, and what each session adds."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open

from inference_service.engine.memory import free_bytes
from inference_service.errors import ConfigurationError

_GIB = 2**30


@dataclass(frozen=True)
class Footprint:
    """Bytes, by part of the model, by kind of a session's state, and by step of a tick."""

    weights: dict[str, int]
    session: dict[str, int]
    """The most that one session holds, however long it goes on."""
    shared: dict[str, int] = field(default_factory=dict)
    """What sessions have in common, beside the weights."""

    working: dict[str, int] = field(default_factory=dict)
    """What the steps of a tick take at the most, whoever is in them; nothing of it stays."""

    @property
    def common(self) -> int:
        """What is there for all sessions together, beside the weights."""
        return sum(self.shared.values()) + sum(self.working.values())

    def states(self, slots: int) -> int:
        """Of so many sessions, with what they have in common."""
        return self.common + slots * sum(self.session.values())

    def total(self, slots: int) -> int:
        """With the weights."""
        return sum(self.weights.values()) + self.states(slots)

    def slots_within(self, free: int) -> int:
        """How many sessions fit beside the weights into so many bytes."""
        return max(0, (free - self.common) // sum(self.session.values()))

    def require(self, slots: int, device: torch.device) -> None:
        """Raises `ConfigurationError` unless the states of all slots fit beside the loaded weights."""
        free = free_bytes(device)
        if free is None or self.states(slots) <= free:
            return
        kinds = ", ".join(f"{kind} {gib(size)}" for kind, size in self.session.items())
        common = self.shared | self.working
        shared = "".join(f" and {gib(size)} for the {kind}" for kind, size in common.items())
        fits = self.slots_within(free)
        remedy = f"Pass --slots {fits} or less" if fits else "Pass a smaller --context-limit"
        raise ConfigurationError(
            f"{slots} slots need {gib(self.states(slots))}: {gib(sum(self.session.values()))} each ({kinds})"
            f"{shared}; {gib(free)} are free on {device}. {remedy}, or see antiphon check-config --help."
        )


def gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / _GIB:.2f} GiB" if size >= _GIB / 10 else f"{size / 2**20:.1f} MiB"


def stored(folder: Path, dtype: torch.dtype) -> dict[str, int]:
    """Bytes of the weights in a folder's safetensors files once they are in `dtype`, by part of the model."""
    parts: dict[str, int] = defaultdict(int)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                parts[name.split(".")[0]] += math.prod(file.get_slice(name).get_shape()) * dtype.itemsize
    return dict(parts)
