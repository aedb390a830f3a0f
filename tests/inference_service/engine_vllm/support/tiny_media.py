"""Tiny models with random weights that see or hear, as transformers saves them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2AudioConfig,
    Qwen2AudioEncoderConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    Qwen2Config,
    SiglipVisionConfig,
    WhisperFeatureExtractor,
)

from tests.inference_service.engine.support import tiny_causal

PICTURE, CLIP, VIDEO = "<image>", "<|AUDIO|>", "<video>"
SIDE, PATCH = 56, 14
PICTURE_TOKENS = (SIDE // PATCH) ** 2
LIST_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}" + PICTURE + "{% elif part.type == 'audio' %}"
    "<|audio_bos|>"
    + CLIP
    + "<|audio_eos|>{% elif part.type == 'video' %}"
    + VIDEO
    + "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "pad_token_id": None,
}


def _tokenizer(*more: str) -> PreTrainedTokenizerFast:
    words = tiny_causal.tokenizer()
    words.add_special_tokens({"additional_special_tokens": list(more)})
    words.chat_template = LIST_TEMPLATE
    return words


def _wander(model: torch.nn.Module, words: float = 6, senses: float = 6) -> None:
    """Make greedy words depend on what was seen, heard and said."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(senses if "audio" in name or "vision" in name else words)


def save_seeing(folder: Path) -> Path:
    """Write a LLaVA of two layers, whose pictures are 16 tokens each."""
    torch.manual_seed(7)
    words = _tokenizer(PICTURE)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=SIDE,
            patch_size=PATCH,
            projection_dim=32,
        ),
        text_config=LlamaConfig(**_TEXT, vocab_size=len(words) + 5, eos_token_id=words.eos_token_id),
        image_token_id=words.convert_tokens_to_ids(PICTURE),
        image_token_index=words.convert_tokens_to_ids(PICTURE),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    with torch.inference_mode(mode=False):
        model = LlavaForConditionalGeneration(config)
        _wander(model)
        model.save_pretrained(folder)
    _as_published(folder / "model.safetensors")
    LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        words,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=LIST_TEMPLATE,
        image_token=PICTURE,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    return folder


def _as_published(file: Path) -> None:
    """Give weights the names of published checkpoints, which vLLM reads; releases of transformers differ."""
    names = {
        "vision_tower.": "vision_tower.vision_model.",
        "language_model.model.model.": "language_model.model.",
    }
    weights = load_file(file)
    for new, old in names.items():
        weights = {name.replace(new, old): it for name, it in weights.items()}
    save_file(weights, file, {"format": "pt"})


def picture(seed: int) -> NDArray[np.uint8]:
    """A picture of noise."""
    return np.random.default_rng(seed).integers(0, 255, (40, 60, 3), np.uint8)


def seen(folder: Path, text: str, pictures: Sequence[NDArray[np.uint8]], count: int) -> list[int]:
    """Return the greedy answer of transformers' `generate` to pictures and a text."""
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    given = processor(text=prompt, images=list(map(Image.fromarray, pictures)), return_tensors="pt")
    out = model.generate(**given, do_sample=False, max_new_tokens=count, pad_token_id=0)
    return [int(token) for token in out[0, given["input_ids"].shape[1] :]]


def save_hearing(folder: Path) -> Path:
    """Write a Qwen2-Audio of two layers, which hears 25 tokens a second."""
    torch.manual_seed(7)
    words = _tokenizer("<|audio_bos|>", CLIP, "<|audio_eos|>")
    text = {**_TEXT, "num_attention_heads": 2, "num_key_value_heads": 2}
    del text["head_dim"]
    config = Qwen2AudioConfig(
        audio_config=Qwen2AudioEncoderConfig(
            d_model=32,
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=48,
            num_mel_bins=16,
            max_source_positions=1500,
        ),
        text_config=Qwen2Config(**text, vocab_size=len(words) + 5, eos_token_id=words.eos_token_id),
        audio_token_index=words.convert_tokens_to_ids(CLIP),
        audio_token_id=words.convert_tokens_to_ids(CLIP),
        tie_word_embeddings=False,
    )
    with torch.inference_mode(mode=False):
        model = Qwen2AudioForConditionalGeneration(config)
        _wander(model, 20)
        model.save_pretrained(folder)
    _as_published(folder / "model.safetensors")
    Qwen2AudioProcessor(
        WhisperFeatureExtractor(feature_size=16), words, chat_template=LIST_TEMPLATE, audio_token=CLIP
    ).save_pretrained(folder)
    return folder


def clip(seed: int, seconds: float = 1.0) -> NDArray[np.float32]:
    """Noise at 16 kHz."""
    return np.random.default_rng(seed).uniform(-1, 1, round(16_000 * seconds)).astype(np.float32)


def heard(folder: Path, text: str, sound: NDArray[np.float32], count: int) -> list[int]:
    """Return the greedy answer of transformers' `generate` to a clip and a text."""
    processor = AutoProcessor.from_pretrained(folder)
    model = Qwen2AudioForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    content = [{"type": "audio"}, {"type": "text", "text": text}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    given = processor(text=prompt, audio=[sound], sampling_rate=16_000, return_tensors="pt")
    out = model.generate(**given, do_sample=False, max_new_tokens=count, pad_token_id=0)
    return [int(token) for token in out[0, given["input_ids"].shape[1] :]]


def save_watching(folder: Path) -> Path:
    """Write a LLaVA-OneVision of two layers, which sees four tokens of each frame and one behind the last."""
    torch.manual_seed(7)
    words = _tokenizer(PICTURE, VIDEO)
    text = {**_TEXT, "num_attention_heads": 2, "num_key_value_heads": 2}
    del text["head_dim"]
    grid = [[SIDE, SIDE]]
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=SIDE,
            patch_size=PATCH,
            vision_use_head=False,
        ),
        text_config=Qwen2Config(**text, vocab_size=len(words) + 5, eos_token_id=words.eos_token_id),
        image_token_index=words.convert_tokens_to_ids(PICTURE),
        video_token_index=words.convert_tokens_to_ids(VIDEO),
        image_token_id=words.convert_tokens_to_ids(PICTURE),
        video_token_id=words.convert_tokens_to_ids(VIDEO),
        image_grid_pinpoints=grid,
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    with torch.inference_mode(mode=False):
        model = LlavaOnevisionForConditionalGeneration(config)
        _wander(model, 12)
        model.save_pretrained(folder)
    _as_published(folder / "model.safetensors")
    size = {"height": SIDE, "width": SIDE}
    LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=grid),
        words,
        LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        chat_template=LIST_TEMPLATE,
        image_token=PICTURE,
        video_token=VIDEO,
    ).save_pretrained(folder)
    return folder


def watched(folder: Path, text: str, frames: NDArray[np.uint8], count: int) -> list[int]:
    """Return the greedy answer of transformers' `generate` to a video and a text."""
    processor = AutoProcessor.from_pretrained(folder)
    model = LlavaOnevisionForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    content = [{"type": "video"}, {"type": "text", "text": text}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    given = processor(
        text=prompt, videos=[torch.tensor(frames).permute(0, 3, 1, 2)], do_sample_frames=False,
        return_tensors="pt",
    )  # fmt: skip
    out = model.generate(**given, do_sample=False, max_new_tokens=count, pad_token_id=0)
    return [int(token) for token in out[0, given["input_ids"].shape[1] :]]
