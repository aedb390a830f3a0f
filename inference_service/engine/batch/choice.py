"""The choice of one token by a session's `Sampling`."""

from collections.abc import Collection

import torch
from torch import Tensor

from inference_service.api.setups import Sampling
from inference_service.engine.batch.sampler import COLDEST, PoisonedLogits, draw, keep_likely, penalise


def choose(
    logits: Tensor,
    sampling: Sampling,
    said: Collection[int],
    ends: Collection[int],
    generator: torch.Generator,
) -> int:
    """The next id for float32 scores [vocabulary], in which -inf forbids.

    `said` is what repetition is counted over, `ends` the ids that the length penalty makes less likely.
    Raises `PoisonedLogits` for scores that are not numbers.
    """
    if bool(logits.isnan().any()) or not bool(logits.max().isfinite()):
        raise PoisonedLogits
    logits = logits.clone()
    if said:
        penalise(logits, torch.tensor(sorted(set(said))), sampling.repetition_penalty)
    if ends:
        penalise(logits, torch.tensor(sorted(ends)), sampling.length_penalty)
    if sampling.temperature < COLDEST:
        return int(logits.argmax())
    return draw(keep_likely(logits, sampling.temperature, sampling.top_k, sampling.top_p), generator)
