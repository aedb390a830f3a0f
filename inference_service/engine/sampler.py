"""The rules by which a session decides its next token."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference_service.engine.api import DuplexSettings
from inference_service.models.tokenizer import SpecialTokens


class PoisonedLogits(Exception):
    """The model gave a score that is not a number; this session's unit fails, no other."""


def penalise(logits: Tensor, ids: Tensor, penalty: float) -> None:
    """Makes ids less likely in place: positive scores are divided, negative ones multiplied."""
    scores = logits[ids]
    logits[ids] = torch.where(scores > 0, scores / penalty, scores * penalty)


def keep_likely(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Probabilities after top-k, then the smallest set whose mass reaches `top_p`."""
    values, ids = logits.topk(min(top_k, len(logits)))
    probs = values.softmax(0)
    probs[probs.cumsum(0) - probs >= top_p] = 0
    return torch.zeros_like(logits).scatter_(0, ids, probs / probs.sum())


def draw(probs: Tensor, generator: torch.Generator) -> int:
    """One index, drawn with the session's own generator."""
    return int(torch.multinomial(probs, 1, generator=generator))


@dataclass
class TextSampler:
    """Decides the tokens of one session; all randomness comes from its own generator."""

    special: SpecialTokens
    forbidden: Tensor
    generator: torch.Generator
    history: list[int] = field(default_factory=list)
    """Every id decided so far, also those not fed."""

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
        greedy = settings.greedy or settings.temperature == 0
        raw = int(logits.argmax()) if greedy else draw(logits.softmax(0), generator)
        if raw == self.special.chunk_eos:
            return raw
        logits = logits.clone()
        recent = (
            self.history[-settings.text_repetition_window_size :]
            if settings.text_repetition_window_size
            else []
        )
        if recent and settings.text_repetition_penalty != 1:
            penalise(logits, torch.tensor(sorted(set(recent))), settings.text_repetition_penalty)
        if settings.length_penalty != 1:
            penalise(logits, torch.tensor([self.special.turn_eos]), settings.length_penalty)
        self._scale_listen(logits, settings)
        logits[self.forbidden] = -torch.inf
        if greedy:
            token = int(logits.argmax())
        else:
            token = draw(
                keep_likely(logits / settings.temperature, settings.top_k, settings.top_p), generator
            )
        self.history.append(token)
        return token

    def _scale_listen(self, logits: Tensor, settings: DuplexSettings) -> None:
        """Makes listening `listen_prob_scale` times as likely, or sure if it is among the best `listen_top_k`."""
        listen = self.special.listen
        if settings.listen_prob_scale == 0:
            logits[listen] = -torch.inf
        elif settings.listen_prob_scale != 1:
            logits[listen] += torch.log(torch.tensor(settings.listen_prob_scale))
        if settings.listen_top_k is not None:
            rank = int((logits > logits[listen]).sum())
            if rank < settings.listen_top_k and settings.listen_prob_scale > 0:
                logits[listen] = torch.inf if settings.greedy else logits.max() + 50
