"""From the input of a unit to what the engine works on: on the media thread, beside the engine's own."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from torch import Tensor

from inference_service.engine.api import Content, UnitInput, VoiceReference
from inference_service.engine.parts import Senses, Sound, View, VoicePrompts
from inference_service.media.mel import SAMPLE_RATE

Prepared = TypeVar("Prepared")


class Intake(ABC, Generic[Prepared]):
    """Prepares the units of one session, in their order. Nothing else of the session is touched here."""

    is_quick: ClassVar[bool] = True
    """Whether its units are small, and soon due: they never wait for one that is not."""

    @property
    def is_ready(self) -> bool:
        """Whether nothing is to be prepared before the session begins."""
        return True

    def begin(self) -> None:
        """Prepares what the session begins with; may take long. Raises `UnitRefused`."""

    @abstractmethod
    def prepare(self, content: Content) -> Prepared:
        """What the engine is given. Raises `UnitRefused` for input that cannot be used."""


class VoiceIntake:
    """The voice of one session, on its way from reference audio to what ear and mouth take."""

    def __init__(self, reference: VoiceReference, senses: Senses, prompts: VoicePrompts | None) -> None:
        """`prompts` is None where nothing is said aloud, or there is one voice only."""
        self._reference = reference
        self._senses = senses
        self._prompts = prompts
        self.heard: list[Sound] = []
        """The voice as the language model hears it in its prompt."""
        self.spoken: Any = None
        """What the mouth needs of it; None for the model's own voice."""

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to be done."""
        return self._reference.is_unset

    def begin(self) -> None:
        """Does it. Raises `UnitRefused`."""
        reference = self._reference
        if reference.heard is not None:
            self.heard = list(self._senses.sounds(reference.heard))
        if self._prompts is not None:
            self.spoken = self._prompts.prompt(reference)


@dataclass(frozen=True)
class Perceived:
    """One second: what the ear is given of it, or None, and its pictures, oldest first."""

    heard: Tensor | None
    pictures: tuple[View, ...] = ()


class DuplexIntake(Intake[Perceived]):
    """Hears one second after another, and sees pictures."""

    def __init__(self, senses: Senses, voice: VoiceIntake) -> None:
        self._senses = senses
        self._hearing = senses.hearing()
        self.voice = voice

    @property
    def is_ready(self) -> bool:
        return self.voice.is_ready

    def begin(self) -> None:
        self.voice.begin()

    def prepare(self, content: Content) -> Perceived:
        if not isinstance(content, UnitInput):
            raise TypeError(f"A duplex session takes UnitInput, not {type(content).__name__}.")
        pictures = tuple(
            self._senses.look(data, field=f"duplex.frames[{i}]", max_slices=content.max_slice_nums)
            for i, data in enumerate(content.frames)
        )
        if content.pcm is None:
            return Perceived(None, pictures)
        if len(content.pcm) > SAMPLE_RATE:
            raise ValueError(f"A unit has at most {SAMPLE_RATE} samples, not {len(content.pcm)}.")
        pcm = np.pad(content.pcm, (0, SAMPLE_RATE - len(content.pcm)))
        return Perceived(self._hearing.feed(pcm), pictures)
