"""Moshi and PersonaPlex checkpoints of a few thousand random weights, in the layouts of published ones."""

import copy
import json
import re
import struct
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor
from transformers import MimiConfig, MimiModel, MoshiConfig, MoshiForConditionalGeneration

from inference_service.families.moshi.framing import Resampler

TEXTS, CODES, SIZE = 320, 4, 32
"""Text tokens, codebooks of a stream, and codes of a codebook."""
WINDOW = 96
"""Frames that the temporal transformer sees."""
EAR_WINDOW = 10
CODEC_FILE = "tokenizer-e351c8d8-checkpoint125.safetensors"
TOKENIZER_FILE = "tokenizer_spm_32k_3.model"
VOICES = ("NATF0", "NATM1")
_SPACE = "\u2581"
_PAD = 3
PIECES = [
    *[("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<pad>", 0.0, 3)],
    *[(f"<0x{byte:02X}>", -20.0, 6) for byte in range(256)],
    *[(f"{_SPACE}{letter}", -3.0, 1) for letter in "aeinorst"],
    *[(letter, -4.0, 1) for letter in "aeinorstdlu"],
    *[(f"{_SPACE}{word}", -2.0, 1) for word in ("yes", "no", "hello", "you")],
]
PIECES += [(f"{_SPACE}{a}{b}", -5.0, 1) for a in "bcdfghjkmp" for b in "aeiou"][: TEXTS - len(PIECES)]
"""Text tokens with their scores and kinds; the tokens at 0 and 3 say nothing."""


def config() -> MoshiConfig:
    """Return a config with two layers per module, and windows shorter than every conversation."""
    mimi = MimiConfig(
        hidden_size=32, num_filters=2, codebook_size=SIZE, codebook_dim=8, num_quantizers=6,
        vector_quantization_hidden_dimension=8, upsample_groups=32, num_hidden_layers=2,
        intermediate_size=48, num_attention_heads=2, num_key_value_heads=2, sliding_window=EAR_WINDOW,
        layer_scale_initial_scale=0.5,
    )  # fmt: skip
    depth = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 96,
        "sliding_window": CODES,
    }  # fmt: skip
    return MoshiConfig(
        vocab_size=TEXTS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=192,
        num_codebooks=CODES, sliding_window=WINDOW, max_position_embeddings=WINDOW,
        audio_encoder_config=mimi.to_dict(), depth_decoder_config=depth,
    )  # fmt: skip


def network() -> MoshiForConditionalGeneration:
    """Return a copy of a model with random weights, so large that its output depends on its input."""
    return copy.deepcopy(_network())


@cache
def _network() -> MoshiForConditionalGeneration:
    torch.manual_seed(3)
    built = MoshiForConditionalGeneration(config())
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() > 1 and not name.startswith("audio_encoder"):
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            if "embed_tokens" in name:
                parameter.normal_()
        for name, buffer in built.named_buffers():
            if name.endswith("embed_sum"):
                buffer.normal_()
    return built.eval()


def save(folder: Path) -> Path:
    """Write the folder as transformers saves it."""
    _network().save_pretrained(folder)
    tokens = [(piece, score) for piece, score, _ in PIECES]
    fast = FastTokenizer(models.Unigram(tokens, unk_id=0, byte_fallback=True))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    fast.add_special_tokens(["<unk>", "<s>", "</s>", "<pad>"])
    fast.save(str(folder / "tokenizer.json"))
    return folder


def publish(folder: Path, *, personaplex: bool = False, yields: bool = False) -> Path:
    """Write the folder as Kyutai publishes Moshi, or as NVIDIA publishes PersonaPlex, voices converted.

    With `yields` the model speaks while the user is silent, and is silent during a tone of the user.
    """
    folder.mkdir(parents=True)
    described = config()
    codec, depth = described.audio_encoder_config, described.depth_decoder_config
    raw = {
        "model_type": "personaplex" if personaplex else "moshi",
        "n_q": 2 * CODES, "num_heads": described.num_attention_heads, "context": WINDOW,
        "max_period": 10_000, "depformer_num_heads": depth.num_attention_heads,
        "existing_text_padding_id": 3, "mimi_config_name": "mimi.json", "depformer_dim": depth.hidden_size,
    }  # fmt: skip
    seanet = {"dimension": codec.hidden_size, "n_filters": codec.num_filters}
    quantizer = {"dimension": codec.codebook_dim, "bins": SIZE, "n_q": codec.num_quantizers}
    stack = {
        "num_heads": codec.num_attention_heads, "num_layers": codec.num_hidden_layers,
        "context": codec.sliding_window, "dim_feedforward": codec.intermediate_size,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "mimi.json").write_text(
        json.dumps({"seanet": seanet, "quantizer": quantizer, "transformer": stack})
    )
    language = _published_language(personaplex)
    save_file(language | (_yielding(language) if yields else {}), folder / "model.safetensors")
    save_file(_published_codec() | (_hearing() if yields else {}), folder / CODEC_FILE)
    (folder / TOKENIZER_FILE).write_bytes(sentencepiece())
    if personaplex:
        for name in VOICES:
            save_voice(folder, name)
    return folder


def tone(seconds: float, rate: int = 16_000) -> NDArray[np.float32]:
    """Return the tone at which a model with `yields` is silent."""
    times = np.arange(round(seconds * rate)) / rate
    return (0.8 * np.sin(2 * np.pi * 307 * times)).astype(np.float32)


def save_voice(folder: Path, name: str, suffix: str = ".safetensors") -> Path:
    """Write a voice of random embeddings: as it is published, or as a worker reads it."""
    torch.manual_seed(len(name) + ord(name[-1]))
    voice = {
        "embeddings": torch.randn(5, 1, 1, config().hidden_size) * 3,
        "cache": torch.randint(0, SIZE, (1, 1 + 2 * CODES, 4)),
    }
    path = folder / "voices" / f"{name}{suffix}"
    path.parent.mkdir(exist_ok=True)
    if suffix == ".pt":
        torch.save(voice, path)
    else:
        save_file(voice, path)
    return path


def sentencepiece(given: list[tuple[str, float, int]] = PIECES) -> bytes:
    """The tokenizer as a SentencePiece model."""
    pieces = (
        _field(
            1,
            _field(1, piece.encode())
            + bytes([2 << 3 | 5])
            + struct.pack("<f", score)
            + bytes([3 << 3, kind]),
        )
        for piece, score, kind in given
    )
    return b"".join(pieces) + _field(2, bytes([3 << 3, 1])) + _field(3, bytes([3 << 3, 1]))


def _field(number: int, value: bytes) -> bytes:
    size, length = len(value), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def _published_language(personaplex: bool) -> dict[str, Tensor]:
    """The language model's tensors under Kyutai's names; PersonaPlex's depth has twice as many steps."""
    described, source = config(), _network().state_dict()
    depth = described.depth_decoder_config
    steps = 2 * CODES if personaplex else CODES
    made = {
        "text_emb.weight": source["decoder.model.embed_tokens.weight"],
        "text_linear.weight": source["decoder.lm_head.weight"],
        "out_norm.alpha": source["decoder.model.norm.weight"].view(1, 1, -1),
        "depformer_text_emb.weight": source["depth_decoder.text_embed_tokens.weight"],
    }
    for code in range(2 * CODES):
        made[f"emb.{code}.weight"] = source[f"embed_tokens.{code}.weight"]
    for code in range(steps - 1):
        known = f"depth_decoder.embed_tokens.{code}.weight"
        made[f"depformer_emb.{code}.weight"] = source.get(
            known, source["depth_decoder.embed_tokens.0.weight"]
        )
    for code in range(steps):
        made[f"depformer_in.{code}.weight"] = source["depth_decoder.input_projections.weight"][code % CODES]
        made[f"linears.{code}.weight"] = source["depth_decoder.lm_heads.weight"][code % CODES]
    for number in range(described.num_hidden_layers):
        own, theirs = f"transformer.layers.{number}", f"decoder.model.layers.{number}"
        made |= _norms(own, source, theirs)
        made[f"{own}.self_attn.in_proj_weight"] = _joined(
            source, f"{theirs}.self_attn", ".linear", described.num_attention_heads
        )
        made[f"{own}.self_attn.out_proj.weight"] = source[f"{theirs}.self_attn.o_proj.linear.weight"]
        made[f"{own}.gating.linear_in.weight"] = source[f"{theirs}.mlp.fc1.weight"]
        made[f"{own}.gating.linear_out.weight"] = source[f"{theirs}.mlp.fc2.weight"]
    for number in range(depth.num_hidden_layers):
        own, theirs = f"depformer.layers.{number}", f"depth_decoder.layers.{number}"
        made |= _norms(own, source, theirs)
        parts = [source[f"{theirs}.self_attn.{part}_proj.linear.weight"] for part in "qkv"]
        joined, out = torch.cat(parts, dim=1), source[f"{theirs}.self_attn.o_proj.linear.weight"]
        copies = steps // CODES
        made[f"{own}.self_attn.in_proj_weight"] = joined.repeat(copies, 1, 1).flatten(0, 1)
        made[f"{own}.self_attn.out_proj.weight"] = out.repeat(copies, 1, 1).flatten(0, 1)
        for code in range(steps):
            gating = f"{own}.gating.{code}"
            made[f"{gating}.linear_in.weight"] = source[f"{theirs}.mlp.fc1.weight"][code % CODES]
            made[f"{gating}.linear_out.weight"] = source[f"{theirs}.mlp.fc2.weight"][code % CODES]
    return {name: tensor.clone() for name, tensor in made.items()}


def _hearing() -> dict[str, Tensor]:
    """A first codebook whose code 0 is silence; all others are frames of a tone, each in another phase."""
    codec = network().audio_encoder
    codebook, seen = codec.quantizer.semantic_residual_vector_quantizer.layers[0].codebook, list[Tensor]()
    quantize = codebook.quantize

    def noted(rows: Tensor) -> Tensor:
        seen.append(rows.reshape(-1, rows.shape[-1]))
        found: Tensor = quantize(rows)
        return found

    codebook.quantize = noted
    with torch.inference_mode():
        for sound in (np.zeros(4 * 16_000, np.float32), tone(4)):
            pcm = Resampler(16_000, 24_000).feed(sound)
            codec.encode(torch.from_numpy(pcm)[None, None], num_quantizers=1)
    silence, loud = seen
    stem = "quantizer.rvq_first.vq.layers.0._codebook"
    return {
        f"{stem}.embedding_sum": torch.cat([silence[-1:], loud[8 : 7 + SIZE]]),
        f"{stem}.cluster_usage": torch.ones(SIZE),
    }


def _yielding(language: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by which a tone of the user forces the padding token, and silence excludes it."""
    hears, scores = f"emb.{CODES}.weight", language["text_linear.weight"].clone()
    torch.manual_seed(4)
    direction = torch.randn(config().hidden_size).sign()
    signs = torch.ones(SIZE + 1, 1)
    signs[[0, SIZE]] = -1
    scores[_PAD] = direction / 2
    return {hears: 4 * signs * direction, "text_linear.weight": scores}


def _norms(own: str, source: dict[str, Tensor], theirs: str) -> dict[str, Tensor]:
    return {
        f"{own}.norm1.alpha": source[f"{theirs}.input_layernorm.weight"].view(1, 1, -1),
        f"{own}.norm2.alpha": source[f"{theirs}.post_attention_layernorm.weight"].view(1, 1, -1),
    }


def _joined(source: dict[str, Tensor], stem: str, behind: str, heads: int) -> Tensor:
    """Return queries, keys and values in one weight, with interleaved rotary pairs."""
    query, key, value = (source[f"{stem}.{part}_proj{behind}.weight"] for part in "qkv")

    def pairs(weight: Tensor) -> Tensor:
        halves = weight.view(heads, 2, len(weight) // heads // 2, weight.shape[1])
        return halves.transpose(1, 2).reshape(weight.shape)

    return torch.cat([pairs(query), pairs(key), value])


def _published_codec() -> dict[str, Tensor]:
    """The codec's tensors under Kyutai's names."""
    codec = _network().audio_encoder
    made: dict[str, Tensor] = {}
    for name, tensor in codec.state_dict().items():
        half = name.split(".")[0]
        new = name.replace(f"{half}.{half}_seanet.layers", f"{half}.model", 1)
        new = new.replace(f"{half}.{half}_transformer.layers", f"{half}_transformer.transformer.layers", 1)
        if "_transformer." in new:
            stem, _, rest = new.partition(".self_attn.")
            if rest.startswith("q_proj"):
                heads = codec.config.num_attention_heads
                source = name.partition(".self_attn.")[0]
                made[f"{stem}.self_attn.in_proj_weight"] = _joined(
                    codec.state_dict(), f"{source}.self_attn", "", heads
                )
            for theirs, own in _CODEC_NAMES:
                new = new.replace(theirs, own)
        elif ".model." in new:
            twice = ".convtr.convtr." if _is_transposed(codec, name) else ".conv.conv."
            new = new.replace(".conv.", twice)
        elif "sample" in new:
            which = "convtr" if "upsample" in new else "conv"
            new = f"{'up' if which == 'convtr' else 'down'}sample.{which}.{which}.{which}.weight"
        else:
            for theirs, own in _QUANTIZER_NAMES:
                new = new.replace(theirs, own)
        if not re.search(r"self_attn\.[qkv]_proj", new):
            made[new] = tensor
    return {name: tensor.clone() for name, tensor in made.items()}


def _is_transposed(codec: MimiModel, name: str) -> bool:
    return isinstance(codec.get_submodule(name.rpartition(".")[0]), torch.nn.ConvTranspose1d)


_CODEC_NAMES = (
    (".input_layernorm.", ".norm1."), (".post_attention_layernorm.", ".norm2."), (".mlp.fc", ".linear"),
    (".self_attn_layer_scale.", ".layer_scale_1."), (".mlp_layer_scale.", ".layer_scale_2."),
    (".self_attn.o_proj.", ".self_attn.out_proj."),
)  # fmt: skip
_QUANTIZER_NAMES = (
    ("semantic_residual_vector_quantizer.", "rvq_first."),
    ("acoustic_residual_vector_quantizer.", "rvq_rest."),
    (".layers.", ".vq.layers."), (".codebook.initialized", "._codebook._initialized"),
    (".codebook.embed_sum", "._codebook.embedding_sum"), (".codebook.", "._codebook."),
)  # fmt: skip
