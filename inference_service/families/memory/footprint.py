"""How much memory a model takes on its device: its weights, and what each session adds."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from inference_service.engine.batch.memory import free_bytes
from inference_service.errors import ConfigurationError
from inference_service.models.errors import CheckpointError
from inference_service.session.kinds.components import VOICES_AT_ONCE

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
    """What each step of a tick takes while it is made, whoever is in it; one is made after the other."""
    voices: dict[str, int] = field(default_factory=dict)
    """... of a step that has `VOICES_AT_ONCE` sessions in it at the most: for each of them."""

    together: dict[str, int] = field(default_factory=dict)
    """... of a step that may have all sessions in it: for each of them."""

    separate: bool = False
    """Whether steps of `voices` and `together` keep memory apart from the others, as streams and captured
    graphs do on CUDA; else all steps share that of the largest."""

    def step(self, slots: int) -> int:
        """Return bytes of the largest step, or of all that keep memory apart."""
        each = {kind: size * min(slots, VOICES_AT_ONCE) for kind, size in self.voices.items()}
        each |= {kind: size * slots for kind, size in self.together.items()}
        if self.separate:
            return max(self.working.values(), default=0) + sum(each.values())
        return max((self.working | each).values(), default=0)

    def states(self, slots: int) -> int:
        """Return the bytes of so many sessions, with what they share and what a tick takes beside."""
        return sum(self.shared.values()) + self.step(slots) + slots * sum(self.session.values())

    def total(self, slots: int) -> int:
        """Return the bytes of the weights and of so many sessions."""
        return sum(self.weights.values()) + self.states(slots)

    def slots_within(self, free: int) -> int:
        """Return how many sessions fit beside the weights into so many bytes."""
        left = free - sum(self.shared.values()) - self.step(VOICES_AT_ONCE)
        slots = max(0, left // sum(self.session.values()))
        while self.states(slots + 1) <= free:  # few sessions leave more to themselves
            slots += 1
        while slots and self.states(slots) > free:
            slots -= 1
        return slots

    def require_weights(self, folder: Path, device: torch.device) -> None:
        """Raise `ConfigurationError` unless the weights in `folder` and the state of one session fit.

        To be called before anything is loaded.
        """
        free = free_bytes(device)
        if free is None or self.total(1) <= free:
            return
        weights = gib(sum(self.weights.values()))
        parts = ", ".join(f"{part} {gib(size)}" for part, size in self.weights.items())
        raise ConfigurationError(
            f"{folder} needs {gib(self.total(1))}: {weights} for its weights ({parts}) and "
            f"{gib(self.states(1))} for one session; {gib(free)} are free on {device}. Pass a smaller "
            "--dtype or --context-limit, or use a device with more memory."
        )

    def require(self, slots: int, device: torch.device) -> None:
        """Raise `ConfigurationError` unless the states of all slots fit beside the loaded weights."""
        free = free_bytes(device)
        if free is None or self.states(slots) <= free:
            return
        kinds = ", ".join(f"{kind} {gib(size)}" for kind, size in self.session.items())
        steps = "steps of a tick" if self.separate else "largest step of a tick"
        common = self.shared | {steps: self.step(slots)}
        shared = "".join(f" and {gib(size)} for the {kind}" for kind, size in common.items())
        fits = self.slots_within(free)
        remedy = f"Pass --slots {fits} or less" if fits else "Pass a smaller --context-limit"
        raise ConfigurationError(
            f"{slots} slots need {gib(self.states(slots))}: {gib(sum(self.session.values()))} each ({kinds})"
            f"{shared}; {gib(free)} are free on {device}. {remedy}, or see antiphon check-config --help."
        )


def gib(size: int) -> str:
    """Return bytes for people."""
    return f"{size / _GIB:.2f} GiB" if size >= _GIB / 10 else f"{size / 2**20:.1f} MiB"


def stored(folder: Path, dtype: torch.dtype) -> dict[str, int]:
    """Return bytes of the weights in a folder's safetensors files once they are in `dtype`, by part of the
    model.

    Raises `CheckpointError` for a file that cannot be read.
    """
    parts: dict[str, int] = defaultdict(int)
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    parts[name.split(".")[0]] += math.prod(file.get_slice(name).get_shape()) * dtype.itemsize
        except (OSError, SafetensorError):
            raise CheckpointError(f"{path} is not a readable safetensors file. Download it again.") from None
    return dict(parts)
