"""The settings of a session's next decision; the kinds of session differ in nothing else."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference_service.engine.batch.noise import Noise
from inference_service.interface.setups import DuplexSettings, Sampling
from inference_service.models.tokenizer import SpecialTokens

COLDEST = 1e-3
"""Below this temperature, drawing is taking the likeliest."""
UNIFORMS = 2
"""Random numbers that a decision uses up: one for what is tested first, one for the draw."""


@dataclass(slots=True)
class Draw:
    """The rules by which the next token of one session is drawn."""

    temperature: float
    top_k: int
    """So many of the likeliest ids are kept; of equally likely ones the lower ids."""
    top_p: float
    """Of these the fewest whose probabilities come to so much."""
    uniforms: Sequence[float]
    """`UNIFORMS` random numbers in [0, 1)."""
    first: int | None = None
    """An id that is tested before any rule, with the probability that the model gives it."""
    forbidden: Tensor | None = None
    """Ids on the model's device; sessions of a kind have one tensor."""
    recent: Sequence[int] | NDArray[np.int32] = ()
    """Ids that `repetition_penalty` makes less likely; once, however often they are in it."""
    repetition_penalty: float = 1.0
    ends: Sequence[int] = ()
    """Ids that `length_penalty` makes less likely, after that."""
    length_penalty: float = 1.0
    favoured: int = 0
    """The id that the next three are about."""
    bias: float = 0.0
    """Is added to its score."""
    scale: float = 1.0
    """Its score is multiplied by it."""
    sure_within: int = 0
    """It is as good as sure if it is one of so many best."""
    divides: bool = False
    """Whether `repetition_penalty` divides negative scores as well, which makes these ids more likely."""
    allowed: NDArray[np.int32] | None = None
    """Of each id a bit, the lowest first: no others are drawn. None allows all."""

    @property
    def is_greedy(self) -> bool:
        """Whether it takes the likeliest."""
        return self.temperature < COLDEST

    @property
    def is_plain(self) -> bool:
        """Whether it takes the likeliest by the model's own scores."""
        return (
            self.temperature < COLDEST
            and self.first is None
            and self.allowed is None
            and (self.forbidden is None or not len(self.forbidden))
            and self.repetition_penalty == 1
            and self.length_penalty == 1
            and self.bias == 0
            and self.scale == 1
            and not self.sure_within
        )

    def is_like(self, other: "Draw") -> bool:
        """Return whether both say the same of equal scores."""
        return self is other or (
            self.forbidden is other.forbidden
            and self.allowed is other.allowed
            and self._numbers == other._numbers
            and (self.recent is other.recent or np.array_equal(self.recent, other.recent))
        )

    @property
    def _numbers(self) -> tuple[object, ...]:
        return (
            self.temperature, self.top_k, self.top_p, self.uniforms, self.first, self.repetition_penalty,
            self.ends, self.length_penalty, self.favoured, self.bias, self.scale, self.sure_within,
            self.divides,
        )  # fmt: skip


def drawn_by(
    sampling: Sampling,
    noise: Noise,
    said: Sequence[int] = (),
    ends: Collection[int] = (),
    forbidden: Tensor | None = None,
    allowed: NDArray[np.int32] | None = None,
) -> Draw:
    """Return the draw of a session's `Sampling`. Repetition is counted over `said`, and `ends` end an
    answer."""
    return Draw(
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        noise.ahead(UNIFORMS),
        forbidden=forbidden,
        recent=said,
        repetition_penalty=sampling.repetition_penalty,
        ends=tuple(ends),
        length_penalty=sampling.length_penalty,
        allowed=allowed,
    )


@dataclass
class TextSampler:
    """The decisions of one duplex session: what it asks of each, and what it remembers of them."""

    special: SpecialTokens
    forbidden: Tensor
    noise: Noise
    history: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """The ids decided last, also those not fed, as far back as repetition counts."""
    reference_quirks: bool = False
    """Repeats what the reference got wrong: a repeated id with a negative score becomes more likely, and
    what is meant for listening happens to `<|im_end|>`, whose score is multiplied."""
    _asked: tuple[DuplexSettings, Noise, int, Draw] | None = None
    """Its last decision, and by what: it is asked for twice."""

    def draw(self, settings: DuplexSettings, noise: Noise | None = None) -> Draw:
        """Return the draw of the next decision; no state changes before `decided`.

        `<|chunk_eos|>` is tested on the untouched distribution. Listening is made `listen_prob_scale` times
        as likely, and sure if it is among the best `listen_top_k`.
        """
        noise = noise or self.noise
        if self._asked is not None:
            by, source, drawn, draw = self._asked
            if by is settings and source is noise and drawn == noise.drawn and draw.recent is self.history:
                return draw
        draw = self._draw(settings, noise)
        self._asked = settings, noise, noise.drawn, draw
        return draw

    def _draw(self, settings: DuplexSettings, noise: Noise) -> Draw:
        special, scale, rank = self.special, settings.listen_prob_scale, settings.listen_top_k or 0
        quirks = self.reference_quirks
        return Draw(
            0.0 if settings.greedy else settings.temperature,
            settings.top_k,
            settings.top_p,
            noise.ahead(UNIFORMS),
            special.chunk_eos,
            self.forbidden,
            self.history,
            settings.text_repetition_penalty,
            (special.turn_eos,),
            settings.length_penalty,
            favoured=special.im_end if quirks else special.listen,
            bias=0.0 if quirks else (log(scale) if scale > 0 else -np.inf),
            scale=scale if quirks else 1.0,
            sure_within=rank if quirks or scale > 0 else 0,
            divides=quirks,
        )

    def decided(self, token: int, settings: DuplexSettings, noise: Noise | None = None) -> None:
        """Take a drawn token. `<|chunk_eos|>` leaves no trace in the history."""
        (noise or self.noise).use(UNIFORMS)
        if token == self.special.chunk_eos or self._is_quirk(token, settings):
            return
        window = settings.text_repetition_window_size
        history = np.empty(len(self.history) + 1, np.int32)
        history[:-1], history[-1] = self.history, token
        self.history = history[max(0, len(history) - window) :]

    def _is_quirk(self, token: int, settings: DuplexSettings) -> bool:
        """Return whether the reference forgets it: what is sure."""
        return self.reference_quirks and token == self.special.im_end and settings.listen_top_k is not None
