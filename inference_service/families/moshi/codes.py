"""Sampling of a frame's codes, all in one captured region."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference_service.device.graph import SIZES, Region, size_for
from inference_service.device.transfer import Array
from inference_service.engine.batch.draw import COLDEST
from inference_service.models.moshi.depth import DepthTransformer, Past

TOP_K = 250
"""The number of likeliest codes to keep, as in Kyutai's server."""
_POISONED = -1
"""Stands for the codes of a frame whose numbers are not finite."""
_NUMBERS = 2
"""Numbers of each frame: temperature, and whether it is greedy."""


class FrameCodes:
    """Runs the depth transformer over the frames of a batch; holds no state of a session."""

    def __init__(self, depth: DepthTransformer, device: torch.device) -> None:
        self._depth = depth
        self._device = device
        self._region = Region(device, self._compute)
        self._is_captured = False

    def arrays(
        self, texts: Sequence[int], temperatures: Sequence[float], uniforms: Sequence[list[float]]
    ) -> list[Array]:
        """Return the arrays for `draw`: texts, and numbers [n, 2 + codes] for sampling."""
        rows = [
            [1.0 if heat < COLDEST else heat, float(heat < COLDEST), *numbers]
            for heat, numbers in zip(temperatures, uniforms, strict=True)
        ]
        return [np.array(texts, np.int64), np.array(rows, np.float32)]

    def draw(self, hidden: Tensor, texts: Tensor, numbers: Tensor) -> Tensor:
        """Return codes, int64 [n, codes], for hidden states [n, hidden] and texts [n]; negative where numbers
        are not finite.
        """
        count = len(hidden)
        size = size_for(count) if self._is_captured else count
        if size is not None and size > count:
            hidden, texts, numbers = (_filled(it, size) for it in (hidden, texts, numbers))
        (codes,) = self._region("codes", hidden, texts, numbers)
        return codes[:count]

    def capture(self, slots: int, hidden: Tensor) -> None:
        """Capture the region for each number of frames; `hidden` [1, hidden] is an example of its input."""
        for size in reversed([it for it in SIZES if it < 2 * slots]):
            texts = torch.zeros(size, dtype=torch.int64, device=self._device)
            numbers = torch.ones(size, _NUMBERS + self._depth.codes, device=self._device)
            self._region.prepare("codes", [hidden.expand(size, -1).contiguous(), texts, numbers])
        self._is_captured = True

    def _compute(self, name: object, hidden: Tensor, texts: Tensor, numbers: Tensor) -> tuple[Tensor]:
        before, past, codes = texts, Past(), list[Tensor]()
        is_finite = hidden.isfinite().all(1)
        temperature, greedy = numbers[:, :1], numbers[:, 1:2] > 0
        for number, step in enumerate(self._depth.steps):
            scores, past = step(hidden, before, past)
            is_finite = is_finite & scores.isfinite().all(1)
            at = _NUMBERS + number
            before = _chosen(scores, temperature, greedy, numbers[:, at : at + 1])
            codes.append(before)
        return (torch.stack(codes, dim=1).where(is_finite[:, None], _POISONED),)


def _chosen(scores: Tensor, temperature: Tensor, greedy: Tensor, uniforms: Tensor) -> Tensor:
    """Return a code [n] of each row of scores [n, codes]; scores equal to the last of `TOP_K` stay too."""
    best = scores.topk(min(TOP_K, scores.shape[1]), dim=1).values
    least = torch.where(greedy, best[:, :1], best[:, -1:])
    weights = ((scores - best[:, :1]) / temperature).exp().masked_fill(scores < least, 0.0)
    mass = weights.cumsum(1)
    chosen: Tensor = (mass <= uniforms * mass[:, -1:]).sum(1).clamp(max=scores.shape[1] - 1)
    return chosen


def _filled(rows: Tensor, size: int) -> Tensor:
    return torch.cat([rows, rows[:1].expand(size - len(rows), *rows.shape[1:])])
