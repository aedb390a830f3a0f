"""Sampling settings of a session's next token; the same for all kinds of session."""

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
"""The temperature below which sampling is greedy."""
UNIFORMS = 2
"""Random numbers for each token: one for the id that is tested first, and one for the draw."""


@dataclass(slots=True)
class Draw:
    """The rules by which the next token of one session is drawn."""

    temperature: float
    top_k: int
    """The number of likeliest ids to keep; of tied ids, the lower ones."""
    top_p: float
    """Keeps the fewest of these ids whose probabilities reach this sum."""
    uniforms: Sequence[float]
    """`UNIFORMS` random numbers in [0, 1)."""
    first: int | None = None
    """An id that is tested before any rule, with the probability that the model gives it."""
    forbidden: Tensor | None = None
    """Ids on the model's device; sessions of a kind have one tensor."""
    recent: Sequence[int] | NDArray[np.int32] = ()
    """Ids that `repetition_penalty` makes less likely; a repeated id counts once."""
    repetition_penalty: float = 1.0
    ends: Sequence[int] = ()
    """Ids that `length_penalty` makes less likely, after the repetition penalty."""
    length_penalty: float = 1.0
    favoured: int = 0
    """The id to which `bias`, `scale` and `sure_within` apply."""
    bias: float = 0.0
    """Added to the score of the favoured id."""
    scale: float = 1.0
    """Multiplies the score of the favoured id."""
    sure_within: int = 0
    """The favoured id is chosen if it is among this many best ids."""
    divides: bool = False
    """Whether `repetition_penalty` divides negative scores as well, which makes these ids more likely."""
    allowed: NDArray[np.int32] | None = None
    """Bit mask of the allowed ids, lowest bit first. None allows all."""

    @property
    def is_greedy(self) -> bool:
        """Whether it takes the likeliest id."""
        return self.temperature < COLDEST

    @property
    def is_plain(self) -> bool:
        """Whether it takes the likeliest id by unmodified scores."""
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
        """Return whether both choose the same id from equal scores."""
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
    """Return the draw for a session's `Sampling`. Repetitions are counted in `said`; `ends` end an answer."""
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
    """The draws of one duplex session, with the history that they need."""

    special: SpecialTokens
    forbidden: Tensor
    noise: Noise
    history: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """The latest decided ids, including those not fed, as far back as repetitions count."""
    reference_quirks: bool = False
    """Whether to repeat two errors of the reference implementation: a repeated id with a negative score
    becomes more likely, and the rules for listening apply to `<|im_end|>`, whose score is multiplied.
    """
    _asked: tuple[DuplexSettings, Noise, int, Draw] | None = None
    """The latest draw with its arguments, because it is requested twice."""

    def draw(self, settings: DuplexSettings, noise: Noise | None = None) -> Draw:
        """Return the draw of the next decision; no state changes before `decided`.

        `<|chunk_eos|>` is tested on the untouched distribution. Listening becomes `listen_prob_scale` times
        as likely, and certain if it is among the best `listen_top_k`.
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
        """Add a drawn token to the history, unless it is `<|chunk_eos|>`."""
        (noise or self.noise).use(UNIFORMS)
        if token == self.special.chunk_eos or self._is_quirk(token, settings):
            return
        window = settings.text_repetition_window_size
        history = np.empty(len(self.history) + 1, np.int32)
        history[:-1], history[-1] = self.history, token
        self.history = history[max(0, len(history) - window) :]

    def _is_quirk(self, token: int, settings: DuplexSettings) -> bool:
        """Return whether the reference implementation omits this token from its history."""
        return self.reference_quirks and token == self.special.im_end and settings.listen_top_k is not None
