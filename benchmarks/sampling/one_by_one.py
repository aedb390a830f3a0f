"""Sampling one session at a time, each with its own generator and over the whole vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference_service.interface.setups import DuplexSettings, Sampling


@dataclass
class SequentialSampler:
    """The sampler of one session. The special ids `first`, `end` and `listen` are arbitrary."""

    seed: int
    history: list[int] = field(default_factory=list)
    first: int = 5
    end: int = 6
    listen: int = 7
    forbidden: Tensor = field(default_factory=lambda: torch.tensor([5, 9]))

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def duplex(self, scores: Tensor, settings: DuplexSettings) -> int:
        """Draw a token of a duplex unit from scores [vocabulary]. Raises `ValueError` for infinite ones."""
        if not bool(torch.isfinite(scores).all()):
            raise ValueError("The scores are not finite.")
        greedy = settings.greedy
        if int(scores.argmax()) == self.first if greedy else self._draw(scores.softmax(0)) == self.first:
            return self.first
        scores = scores.clone()
        scores[self.forbidden] = -torch.inf
        penalise(scores, torch.tensor(self.history).unique(), settings.text_repetition_penalty)
        penalise(scores, torch.tensor([self.end]), settings.length_penalty)
        scores[self.listen] += torch.tensor(settings.listen_prob_scale).log()
        if greedy:
            return int(scores.argmax())
        return self._draw(likely(scores, settings.temperature, settings.top_k, settings.top_p))

    def chat(self, scores: Tensor, sampling: Sampling) -> int:
        """Draw a token of a chat from scores [vocabulary]. Raises `ValueError` if they are invalid."""
        if bool(scores.isnan().any()) or not bool(scores.max().isfinite()):
            raise ValueError("The scores are not finite.")
        scores = scores.clone()
        penalise(scores, torch.tensor(sorted(set(self.history))), sampling.repetition_penalty)
        penalise(scores, torch.tensor([self.end]), sampling.length_penalty)
        return self._draw(likely(scores, sampling.temperature, sampling.top_k, sampling.top_p))

    def code(self, scores: Tensor, said: Sequence[int], penalty: float, top_k: int) -> int:
        """Draw a speech code from scores [codes + 1]; `said` are the earlier codes."""
        if not bool(torch.isfinite(scores).all()):
            raise ValueError("The scores are not finite.")
        if said:
            codes, counts = torch.tensor(said).unique(return_counts=True)
            penalise(scores, codes, penalty**counts)
        scores[-1] = -torch.inf
        return self._draw(likely(scores, 0.8, top_k, 1.0))

    def _draw(self, probabilities: Tensor) -> int:
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def penalise(scores: Tensor, ids: Tensor, penalty: float | Tensor) -> None:
    """Apply a repetition penalty to the scores of `ids`, in place."""
    old = scores[ids]
    scores[ids] = torch.where(old > 0, old / penalty, old * penalty)


def likely(scores: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Return probabilities [vocabulary] after temperature, top-k and top-p."""
    values, ids = scores.topk(min(top_k, len(scores)))
    weights = ((values - values[0]) / temperature).softmax(0)
    cut = weights.cumsum(0) - weights >= top_p
    cut[0] = False
    weights[cut] = 0
    return torch.zeros_like(scores).scatter_(0, ids, weights / weights.sum())
