"""The memory of a model on its device: its weights, and the states of sessions."""

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
    """Bytes of memory by part of the model, by kind of session state, and by step of a tick."""

    weights: dict[str, int]
    session: dict[str, int]
    """Maximum of one session, however long it runs."""
    shared: dict[str, int] = field(default_factory=dict)
    """Memory that sessions share, besides the weights."""

    working: dict[str, int] = field(default_factory=dict)
    """Memory of each step of a tick, for any number of sessions; steps run one after the other."""
    voices: dict[str, int] = field(default_factory=dict)
    """Memory for each session of a step that has at most `VOICES_AT_ONCE` sessions."""

    together: dict[str, int] = field(default_factory=dict)
    """Memory for each session of a step that may have all sessions."""

    separate: bool = False
    """Whether steps of `voices` and `together` have separate memory, as streams and captured graphs do on
    CUDA; otherwise all steps share that of the largest.
    """

    def step(self, slots: int) -> int:
        """Return the bytes of the largest step, or of all steps with separate memory."""
        each = {kind: size * min(slots, VOICES_AT_ONCE) for kind, size in self.voices.items()}
        each |= {kind: size * slots for kind, size in self.together.items()}
        if self.separate:
            return max(self.working.values(), default=0) + sum(each.values())
        return max((self.working | each).values(), default=0)

    def states(self, slots: int) -> int:
        """Return the bytes of `slots` sessions, with their shared memory and that of a tick."""
        return sum(self.shared.values()) + self.step(slots) + slots * sum(self.session.values())

    def total(self, slots: int) -> int:
        """Return the bytes of the weights and of `slots` sessions."""
        return sum(self.weights.values()) + self.states(slots)

    def slots_within(self, free: int) -> int:
        """Return how many sessions fit into `free` bytes besides the weights."""
        left = free - sum(self.shared.values()) - self.step(VOICES_AT_ONCE)
        slots = max(0, left // sum(self.session.values()))
        while self.states(slots + 1) <= free:  # fewer than `VOICES_AT_ONCE` sessions need smaller steps
            slots += 1
        while slots and self.states(slots) > free:
            slots -= 1
        return slots

    def require_weights(self, folder: Path, device: torch.device) -> None:
        """Raise `ConfigurationError` unless the weights in `folder` and the state of one session fit.

        It must be called before anything is loaded.
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
        """Raise `ConfigurationError` unless the states of all slots fit besides the loaded weights."""
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
    """Return bytes as text in GiB, or in MiB below 0.1 GiB."""
    return f"{size / _GIB:.2f} GiB" if size >= _GIB / 10 else f"{size / 2**20:.1f} MiB"


def stored(folder: Path, dtype: torch.dtype) -> dict[str, int]:
    """Return the bytes of a folder's safetensors weights in `dtype`, by part of the model.

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
