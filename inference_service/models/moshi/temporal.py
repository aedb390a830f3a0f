"""The temporal transformer: one row for each frame, the sum of the embeddings of all its tokens.

Its layers are those of Mistral (norm, attention with a sliding window, gated network) under other names, so
it is built as a `MistralModel`. Mistral's layers pass their window to transformers' attention interface,
unlike those of transformers' `MoshiModel`, and the engine's common layers support them.
"""

import torch
from torch import Tensor, nn
from transformers import MistralConfig, MistralModel, MoshiConfig, MoshiForConditionalGeneration


class FrameEmbeddings(nn.Module):
    """Embeddings of a frame's tokens: one of text, then the codes of the model and those of the user."""

    def __init__(self, text: nn.Embedding, audio: list[nn.Embedding]) -> None:
        super().__init__()
        self.text = text
        table = torch.cat([it.weight.detach() for it in audio])
        self.audio = nn.Parameter(table, requires_grad=False)
        """Embeddings of all codebooks, concatenated."""
        sizes = torch.tensor([0, *(it.num_embeddings for it in audio[:-1])])
        self.register_buffer("_offsets", sizes.cumsum(0), persistent=False)
        self._offsets: Tensor

    def forward(self, frames: Tensor) -> Tensor:
        """Return rows [n, hidden] of frames, int64 [n, 1 + codebooks]."""
        codes = self.audio[(frames[:, 1:] + self._offsets).flatten()]
        rows: Tensor = self.text(frames[:, 0]) + codes.view(len(frames), -1, codes.shape[1]).sum(1)
        return rows


def temporal_config(config: MoshiConfig) -> MistralConfig:
    """Return the shape of the temporal transformer of a Moshi."""
    return MistralConfig(
        vocab_size=1,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_dim // 2,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        hidden_act=config.hidden_act,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        sliding_window=config.sliding_window,
        rope_parameters=dict(config.rope_parameters),
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )


@torch.no_grad()
def temporal_of(network: MoshiForConditionalGeneration) -> MistralModel:
    """Return the temporal transformer of `network`, which shares its weights."""
    config, source = network.config, network.decoder.model
    with torch.device("meta"):
        built = MistralModel(temporal_config(config))
    built.embed_tokens = None  # rows come from `FrameEmbeddings`
    built.rotary_emb = type(built.rotary_emb)(built.config).to(source.norm.weight.device)
    state = {"norm.weight": source.norm.weight}
    for number, layer in enumerate(source.layers):
        gate, up = layer.mlp.fc1.weight.chunk(2)
        parts = {
            **{f"self_attn.{name}": getattr(layer.self_attn, name).linear.weight for name in _ATTENTION},
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.mlp.fc2.weight,
            "input_layernorm": layer.input_layernorm.weight,
            "post_attention_layernorm": layer.post_attention_layernorm.weight,
        }
        state |= {f"layers.{number}.{name}.weight": weight for name, weight in parts.items()}
    built.load_state_dict(state, assign=True)
    return built.requires_grad_(False).eval()


_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
