"""A family of models: how its folders are told, what they take, and how they become a runtime.

Packages add families by an entry point in the group `antiphon.families` that names a `Family`.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from inference_service.engine.runtime import Runtime
from inference_service.families.memory.footprint import Footprint
from inference_service.options import USUAL_SPEECH, SpeechOptions

T = TypeVar("T")

DTYPE: Final = "dtype"
EAR: Final = "ear"
SPEECH: Final = "no_speech, vocoder, vocoder_steps, vocoder_dtype and voice"


@dataclass(frozen=True)
class Settings:
    """Options of a worker that concern its model; None is the family's usual value."""

    device: torch.device
    context_limit: int | None = None
    """Most rows of one context."""
    dtype: str | None = None
    """Name of the numbers in which it computes: one of `inference_service.options.DTYPES`."""
    speech: SpeechOptions = USUAL_SPEECH
    ear: str | None = None
    """One of `inference_service.options.EARS`."""

    @property
    def numbers(self) -> torch.dtype:
        """Return the numbers that are asked for, or float32 on the CPU and bfloat16 elsewhere."""
        usual = "float32" if self.device.type == "cpu" else "bfloat16"
        chosen: torch.dtype = getattr(torch, self.dtype or usual)
        return chosen

    @property
    def given(self) -> list[str]:
        """Return those of the options `DTYPE`, `SPEECH` and `EAR` that are not as usual."""
        unusual = {
            SPEECH: self.speech != USUAL_SPEECH,
            DTYPE: self.dtype is not None,
            EAR: self.ear is not None,
        }
        return [option for option, is_given in unusual.items() if is_given]


@dataclass(frozen=True)
class Build:
    """Makes a runtime with so many slots; the weights are loaded once."""

    make: Callable[[int], Runtime]
    device: torch.device
    footprint: Footprint | None = None
    """None where it is known no sooner than the runtime is made, which then looks itself."""

    def __call__(self, slots: int) -> Runtime:
        """Raise `ConfigurationError` if so many do not fit into what is free."""
        if self.footprint is not None:
            self.footprint.require(slots, self.device)
        return self.make(slots)

    def try_out(self, slots: int, use: Callable[[Runtime], T]) -> T:
        """Return what `use` makes of a runtime with so many slots, whose memory is free afterwards.

        A runtime and its kinds of session refer to each other, as do a graph and its step, so that only the
        garbage collector frees them.
        """
        try:
            return use(self(slots))
        finally:
            gc.collect()


@dataclass(frozen=True)
class Family:
    """One family. Its functions raise `CheckpointError` for a folder that cannot be used, and
    `ConfigurationError` for settings that do not suit it."""

    name: str
    """For people, as a noun that follows `for`: `MiniCPM-o`, `causal language models`."""
    matches: Callable[[Mapping[str, Any]], bool]
    """Whether a folder with this `config.json` is of the family."""
    load: Callable[[Path, Settings], Build]
    """Load the weights of a folder."""
    footprint: Callable[[Path, Settings], Footprint]
    """Tell without loading what `load` and its sessions will take. Raises `FootprintUnknown`, too."""
    takes: frozenset[str] = frozenset()
    """Options of `DTYPE`, `SPEECH` and `EAR` that mean something here; others are refused."""
