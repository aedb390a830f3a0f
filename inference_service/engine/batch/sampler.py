"""How a session draws its next token: by its `Sampling`, or by the rules of a duplex unit."""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference_service.api.setups import DuplexSettings, Sampling
from inference_service.models.tokenizer import SpecialTokens

COLDEST = 1e-3
"""Below this temperature, drawing is taking the likeliest."""
_SURE = 50.0
"""So far above every other score, nothing else is drawn."""


class PoisonedLogits(Exception):
    """The model gave a score that is not a number; this session's unit fails, no other."""


def penalise(logits: Tensor, ids: Tensor, penalty: float | Tensor) -> None:
    """Makes ids less likely in place: positive scores are divided, negative ones multiplied."""
    scores = logits[ids]
    logits[ids] = torch.where(scores > 0, scores / penalty, scores * penalty)


def keep_likely(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Probabilities of the `top_k` likeliest, then of the smallest set of them whose mass reaches `top_p`."""
    values, ids = logits.topk(min(top_k, len(logits)))
    probs = ((values - values[0]) / temperature).softmax(0)
    cut = probs.cumsum(0) - probs >= top_p
    cut[0] = False
    probs[cut] = 0
    return torch.zeros_like(logits).scatter_(0, ids, probs / probs.sum())


def draw(probs: Tensor, generator: torch.Generator) -> int:
    """One index, drawn with the session's own generator."""
    return int(torch.multinomial(probs, 1, generator=generator))


def sample(
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


@dataclass
class TextSampler:
    """Decides the tokens of one session; all randomness comes from its own generator."""

    special: SpecialTokens
    forbidden: Tensor
    generator: torch.Generator
    history: list[int] = field(default_factory=list)
    """The ids decided last, also those not fed, as far back as repetition counts."""
    reference_quirks: bool = False
    """Repeats what the reference got wrong: a repeated id with a negative score becomes more likely, and
    what is meant for listening happens to `<|im_end|>`, whose score is multiplied."""

    def decide(
        self, logits: Tensor, settings: DuplexSettings, generator: torch.Generator | None = None
    ) -> int:
        """The next id for float32 scores [vocabulary].

        `<|chunk_eos|>` is tested on the untouched distribution first and then leaves no trace in the
        history. Raises `PoisonedLogits`.
        """
        if not bool(torch.isfinite(logits).all()):
            raise PoisonedLogits
        generator = generator or self.generator
        greedy = settings.greedy or settings.temperature < COLDEST
        raw = int(logits.argmax()) if greedy else draw(logits.softmax(0), generator)
        if raw == self.special.chunk_eos:
            return raw
        logits = self.adjusted(logits, settings)
        if self.reference_quirks and self._is_among_best(self.special.im_end, logits, settings):
            return self.special.im_end
        if greedy:
            token = int(logits.argmax())
        else:
            probs = keep_likely(logits, settings.temperature, settings.top_k, settings.top_p)
            token = draw(probs, generator)
        window = settings.text_repetition_window_size
        self.history = [*self.history, token][-window:] if window else []
        return token

    def adjusted(self, logits: Tensor, settings: DuplexSettings) -> Tensor:
        """Scores after all rules but temperature, top-k and top-p."""
        logits = logits.clone()
        logits[self.forbidden] = -torch.inf
        if self.history:
            repeated = torch.tensor(self.history).unique()
            if self.reference_quirks:
                logits[repeated] /= settings.text_repetition_penalty
            else:
                penalise(logits, repeated, settings.text_repetition_penalty)
        penalise(logits, torch.tensor([self.special.turn_eos]), settings.length_penalty)
        self._scale_listen(logits, settings)
        return logits

    def _scale_listen(self, logits: Tensor, settings: DuplexSettings) -> None:
        """Makes listening `listen_prob_scale` times as likely; sure if among the best `listen_top_k`."""
        if self.reference_quirks:
            logits[self.special.im_end] *= settings.listen_prob_scale
            return
        listen = self.special.listen
        logits[listen] += torch.tensor(settings.listen_prob_scale).log()
        if settings.listen_prob_scale > 0 and self._is_among_best(listen, logits, settings):
            logits[listen] = logits.max() + _SURE

    def _is_among_best(self, token: int, logits: Tensor, settings: DuplexSettings) -> bool:
        """Whether it is one of the best `listen_top_k`."""
        if settings.listen_top_k is None:
            return False
        return int((logits > logits[token]).sum()) < settings.listen_top_k
