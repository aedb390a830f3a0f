"""From the input of a unit to what the engine works on: in the media pool, beside the engine's own thread."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from inference_service.api.setups import Content, UnitInput, VoiceReference
from inference_service.engine.sessions.components import Opening, Senses, Sound, View, VoicePrompts
from inference_service.media.mel import SAMPLE_RATE
from inference_service.media.memo import Memo, digest
from inference_service.media.pool import Kind

Prepared = TypeVar("Prepared")


class Preprocessor(ABC, Generic[Prepared]):
    """Prepares the units of one session, in their order. Nothing else of the session is touched here."""

    def kind(self, content: Content | None) -> Kind:
        """What it is to prepare that; None is what the session begins with."""
        return Kind.SOUND

    def begin(self) -> None:
        """Prepares what the session begins with; may take long. Raises `UnitRefused`."""

    @abstractmethod
    def prepare(self, content: Content) -> Prepared:
        """What the engine is given. Raises `UnitRefused` for input that cannot be used."""


class VoicePreprocessor:
    """The voice of one session, on its way from reference audio to what ear and mouth take."""

    def __init__(
        self,
        reference: VoiceReference,
        senses: Senses | None,
        prompts: VoicePrompts | None,
        known: Memo[list[Sound]] | None = None,
    ) -> None:
        """`senses` is None where the language model does not hear it, and `prompts` where nothing is said
        aloud or there is one voice only. `known` are voices that were heard before.
        """
        self._reference = reference
        self._senses = senses
        self._prompts = prompts
        self._known = Memo(1) if known is None else known
        self.key = b""
        """Of what the language model hears: the hash of its samples."""
        self.heard: list[Sound] = []
        """The voice as the language model hears it in its prompt."""
        self.spoken: Any = None
        """What the mouth needs of it; None for the model's own voice."""

    @property
    def kind(self) -> Kind:
        """What it is to prepare it."""
        return Kind.SOUND if self._reference.is_unset else Kind.REST

    def begin(self) -> None:
        """Does it. Raises `UnitRefused`."""
        reference, senses, pcm = self._reference, self._senses, self._reference.heard
        if senses is not None and pcm is not None:
            self.key = digest(pcm)
            self.heard = self._known.get(self.key, lambda: list(senses.sounds(pcm)))
        if self._prompts is not None:
            self.spoken = self._prompts.prompt(reference)


@dataclass(frozen=True)
class Perceived:
    """One second: what the ear is given of it, or None, and its pictures, oldest first."""

    heard: Tensor | None
    pictures: tuple[View, ...] = ()


class DuplexPreprocessor(Preprocessor[Perceived]):
    """Hears one second after another, and sees pictures."""

    def __init__(
        self, senses: Senses, voice: VoicePreprocessor, write: Callable[[bool], Opening] | None = None
    ) -> None:
        """`write` gives the session's prompt, with or without a voice in it."""
        self._senses = senses
        self._hearing = senses.hearing()
        self._write = write
        self._opening: Opening | None = None
        self.voice = voice

    def kind(self, content: Content | None) -> Kind:
        if content is None:
            return self.voice.kind
        return Kind.PICTURES if isinstance(content, UnitInput) and content.frames else Kind.SOUND

    def begin(self) -> None:
        self.voice.begin()
        self.opening()

    def opening(self) -> Opening:
        """The session's prompt; made now if it was not made before."""
        if self._opening is None:
            assert self._write is not None
            self._opening = self._write(bool(self.voice.heard))
        return self._opening

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
