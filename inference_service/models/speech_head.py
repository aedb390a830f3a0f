"""The speech head: text tokens with their hidden states in, 25 speech codes per second out.

Layout and names are those of the published MiniCPM-o speech model: the condition of a unit is, per
text token, `emb_text(token) + normalise(projector_semantic(hidden))`, then the embedding of
`audio_bos`; codes follow, and positions continue over the whole turn.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaModel

from inference_service.models.config import SpeechConfig


class Projector(nn.Module):
    """Two linear layers with a ReLU between."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(source, target)
        self.linear2 = nn.Linear(target, target)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.linear2(F.relu(self.linear1(x)))
        return projected


class SpeechHead(nn.Module):
    """A Llama decoder over one codebook, conditioned on text and meaning."""

    def __init__(self, config: SpeechConfig, language_hidden: int, text_tokens: int) -> None:
        super().__init__()
        self.config = config
        hidden = config.backbone.hidden_size
        self.emb_text = nn.Embedding(text_tokens, hidden)
        self.emb_code = nn.ModuleList([nn.Embedding(config.codes + 1, hidden)])
        self.projector_semantic = Projector(language_hidden, hidden)
        self.model = LlamaModel(config.backbone)
        self.model.embed_tokens = None
        self.head_code = nn.ModuleList([nn.Linear(hidden, config.codes + 1, bias=False)])

    def condition(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Return the condition [n + 1, speech hidden] of n text tokens with hidden states [n, language
        hidden].
        """
        meaning = F.normalize(self.projector_semantic(hidden), p=2, dim=-1)
        begin = self.emb_text.weight[self.config.audio_bos_token_id][None]
        return torch.cat([self.emb_text(tokens) + meaning, begin])

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return embeddings [..., hidden] of speech codes [...]."""
        embedded: Tensor = self.emb_code[0](codes)
        return embedded

    def logits(self, hidden: Tensor) -> Tensor:
        """Return scores [..., codes + 1] of `hidden` [..., hidden]; the last entry ends the turn's speech."""
        scores: Tensor = self.head_code[0](hidden)
        return scores
