"""The likeliest ids of each session, and sampling among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from inference_service.engine.batch.draw import Draw

Floats = NDArray[np.float64]

POISONED, OPEN = -1, -2
"""Values in place of an id: a score is not finite; the draw may fall beyond the candidates."""


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling settings of each row, each [n]."""

    temperature: Floats
    top_k: NDArray[np.int64]
    top_p: Floats
    uniform: Floats
    vocabulary: int

    @classmethod
    def of(cls, draws: Sequence[Draw], vocabulary: int) -> "SamplingOptions":
        """Return the settings of all rows."""
        greedy = [draw.is_greedy for draw in draws]
        top_k = [1 if sure else min(draw.top_k, vocabulary) for draw, sure in zip(draws, greedy, strict=True)]
        return cls(
            np.array([1.0 if sure else d.temperature for d, sure in zip(draws, greedy, strict=True)]),
            np.array(top_k),
            np.array([draw.top_p for draw in draws]),
            np.array([draw.uniforms[1] for draw in draws]),
            vocabulary,
        )

    @property
    def are_greedy(self) -> bool:
        """Whether every row takes its likeliest id."""
        return bool(self.top_k.max() == 1)

    @property
    def keeps_all(self) -> NDArray[np.bool_]:
        """Whether `top_k` keeps all ids, by row."""
        return self.top_k >= self.vocabulary

    def rows(self, rows: list[int]) -> "SamplingOptions":
        """Return the settings of some rows."""
        return SamplingOptions(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.uniform[rows], self.vocabulary
        )


@dataclass(frozen=True)
class Candidates:
    """The likeliest ids [n, width] of each row with their scores, best first; ties are in any order.

    With a width of 1, the lowest of several tied ids is taken.
    """

    scores: NDArray[np.float32]
    ids: NDArray[np.int32]

    def draw(self, options: SamplingOptions, shares: Floats | None) -> list[int]:
        """Return for each row the kept id that its uniform number selects, in order of probability.

        `shares` [n] are the probabilities of the likeliest ids among all ids, for rows that keep all. The
        result is `OPEN` where the draw needs more candidates, and `POISONED` where scores are not finite.
        """
        rows, width = np.arange(len(self.ids)), self.ids.shape[1]
        if width == 1:
            return self.first()
        at, is_settled = self._places(options, shares)
        equal = self.scores == self.scores[rows, at][:, None]
        if width < options.vocabulary:
            is_settled &= ~equal[:, -1]
        found = np.where(is_settled, self.ids[rows, at], OPEN)
        for row in np.flatnonzero(is_settled & (equal.sum(1) > 1)):
            same = np.flatnonzero(equal[row])
            found[row] = np.sort(self.ids[row, same])[at[row] - same[0]]
        found[~np.isfinite(self.scores[:, 0])] = POISONED
        tokens: list[int] = found.tolist()
        return tokens

    def first(self) -> list[int]:
        """Return the likeliest id of each row, with one candidate a row; `POISONED` as in `draw`."""
        return [
            token if isfinite(score) else POISONED
            for (token,), (score,) in zip(self.ids.tolist(), self.scores.tolist(), strict=True)
        ]

    def _places(
        self, options: SamplingOptions, shares: Floats | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the place of each draw among the candidates, and whether that is certain."""
        if options.are_greedy:
            return np.zeros(len(self.ids), np.int64), np.ones(len(self.ids), np.bool_)
        with np.errstate(invalid="ignore"):
            mass, kept, whole = self.kept(options, shares)
            seen = mass[:, -1]
            reaches = (options.top_k <= mass.shape[1]) | (options.keeps_all & (seen >= options.top_p * whole))
            point = options.uniform * np.where(reaches, mass[np.arange(len(kept)), kept - 1], whole)
            at = np.minimum((mass <= point[:, None]).sum(1), kept - 1)
            return at, reaches | (options.keeps_all & (options.top_p >= 1) & (point < seen))

    def kept(
        self, options: SamplingOptions, shares: Floats | None
    ) -> tuple[Floats, NDArray[np.int64], Floats]:
        """Return the cumulative weights of the candidates [n, width], the number of kept ones [n], and the
        total weight [n] within `top_k`; the likeliest weighs 1.
        """
        scores = self.scores.astype(np.float64)
        weights = np.exp((scores - scores[:, :1]) / options.temperature[:, None])
        weights[np.arange(scores.shape[1]) >= options.top_k[:, None]] = 0
        mass = weights.cumsum(1)
        whole = mass[:, -1]
        if shares is not None:
            whole = np.where(options.top_k <= scores.shape[1], whole, 1 / shares)
        kept = 1 + (mass[:, :-1] < (options.top_p * whole)[:, None]).sum(1)
        return mass, kept, whole
