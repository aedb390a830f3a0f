"""A family of models: how it recognises its folders, its options, and how it makes a runtime.

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
    """Options of a worker for its model; None is the family's default."""

    device: torch.device
    context_limit: int | None = None
    """Limit of rows of one context."""
    dtype: str | None = None
    """Name of the data type for computing: one of `inference_service.options.DTYPES`."""
    speech: SpeechOptions = USUAL_SPEECH
    ear: str | None = None
    """One of `inference_service.options.EARS`."""

    @property
    def numbers(self) -> torch.dtype:
        """Return the data type that is set; the default is float32 on the CPU and bfloat16 elsewhere."""
        usual = "float32" if self.device.type == "cpu" else "bfloat16"
        chosen: torch.dtype = getattr(torch, self.dtype or usual)
        return chosen

    @property
    def given(self) -> list[str]:
        """Return the options among `DTYPE`, `SPEECH` and `EAR` that do not have their defaults."""
        unusual = {
            SPEECH: self.speech != USUAL_SPEECH,
            DTYPE: self.dtype is not None,
            EAR: self.ear is not None,
        }
        return [option for option, is_given in unusual.items() if is_given]


@dataclass(frozen=True)
class Build:
    """Makes a runtime with a number of slots; the weights are loaded once."""

    make: Callable[[int], Runtime]
    device: torch.device
    footprint: Footprint | None = None
    """The memory; None if it is known only once the runtime exists, which then checks it itself."""

    def __call__(self, slots: int) -> Runtime:
        """Return a runtime. Raises `ConfigurationError` if the slots do not fit into the free memory."""
        if self.footprint is not None:
            self.footprint.require(slots, self.device)
        return self.make(slots)

    def try_out(self, slots: int, use: Callable[[Runtime], T]) -> T:
        """Return the result of `use` for a temporary runtime with `slots` slots, and free its memory.

        A runtime and its kinds of session refer to each other, as do a graph and its step, so that only the
        garbage collector frees them.
        """
        try:
            return use(self(slots))
        finally:
            gc.collect()


@dataclass(frozen=True)
class Family:
    """One family of models. Its functions raise `CheckpointError` for a folder that cannot be used, and
    `ConfigurationError` for unsuitable settings.
    """

    name: str
    """The name in messages, as a noun that follows `for`: `MiniCPM-o`, `causal language models`."""
    matches: Callable[[Mapping[str, Any]], bool]
    """Return whether a folder with this `config.json` is of the family."""
    load: Callable[[Path, Settings], Build]
    """Load the weights of a folder."""
    footprint: Callable[[Path, Settings], Footprint]
    """Estimate the memory of `load` and its sessions without loading. Also raises `FootprintUnknown`."""
    takes: frozenset[str] = frozenset()
    """Options among `DTYPE`, `SPEECH` and `EAR` that have an effect here; others are refused."""
