"""Sampling decisions of one session alone, with their scores and probabilities."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from inference_service.engine.batch.candidates import Candidates, SamplingOptions
from inference_service.engine.batch.draw import Draw, TextSampler
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.sampler import DrawTable, adjust, choose_by_rows
from inference_service.interface.setups import DuplexSettings

Way = Callable[[Tensor, Sequence[Draw]], list[int | None]]


def chosen(scores: Tensor, draw: Draw, way: Way = choose_by_rows) -> int | None:
    """Return the id drawn from scores [vocabulary]; leave the scores unchanged."""
    return way(scores[None].clone(), [draw])[0]


def decide(
    sampler: TextSampler, scores: Tensor, settings: DuplexSettings, noise: Noise | None = None
) -> int | None:
    """Draw a token of a duplex session from scores [vocabulary], and record it in the sampler."""
    token = chosen(scores, sampler.draw(settings, noise))
    if token is not None:
        sampler.decided(token, settings, noise)
    return token


def adjusted(scores: Tensor, draw: Draw) -> Tensor:
    """The scores [vocabulary] after all rules but temperature, top-k and top-p."""
    rows = scores[None].clone()
    table = DrawTable([draw])
    table.attach(torch.from_numpy(table.cells))
    adjust(rows, [draw], table)
    return rows[0]


def probabilities(scores: Tensor, draw: Draw) -> Tensor:
    """Return the probabilities [vocabulary] of the ids after all sampling rules."""
    values, ids = scores[None].topk(len(scores))
    mass, kept, _ = Candidates(values.numpy(), ids.int().numpy()).kept(
        SamplingOptions.of([draw], len(scores)), None
    )
    part = np.diff(mass[0, : kept[0]], prepend=0) / mass[0, kept[0] - 1]
    return torch.zeros_like(scores).scatter_(0, ids[0, : len(part)], torch.from_numpy(part).float())
