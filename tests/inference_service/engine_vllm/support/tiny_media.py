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
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
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
    **tiny_causal.SIZES,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
_QWEN2 = {name: size for name, size in _TEXT.items() if name != "head_dim"} | {"num_attention_heads": 2}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}


def _tokenizer(*more: str) -> PreTrainedTokenizerFast:
    words = tiny_causal.tokenizer()
    words.add_special_tokens({"additional_special_tokens": list(more)})
    words.chat_template = LIST_TEMPLATE
    return words


def _save(model: PreTrainedModel, processor: ProcessorMixin, folder: Path, words: float = 6) -> Path:
    """Write a model whose greedy words depend on what was seen, heard and said.

    Its weights have the names of published checkpoints, which vLLM reads; releases of transformers differ.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(6 if "audio" in name or "vision" in name else words)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    names = {
        "vision_tower.": "vision_tower.vision_model.",
        "language_model.model.model.": "language_model.model.",
    }
    weights = load_file(folder / "model.safetensors")
    for new, old in names.items():
        weights = {name.replace(new, old): it for name, it in weights.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@torch.inference_mode(mode=False)
def save_seeing(folder: Path) -> Path:
    """Write a LLaVA of two layers, whose pictures are 16 tokens each."""
    torch.manual_seed(7)
    words = _tokenizer(PICTURE)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_VISION, num_hidden_layers=3, projection_dim=32),
        text_config=LlamaConfig(**_TEXT, vocab_size=len(words) + 5, eos_token_id=words.eos_token_id),
        image_token_id=words.convert_tokens_to_ids(PICTURE),
        image_token_index=words.convert_tokens_to_ids(PICTURE),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        words,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=LIST_TEMPLATE,
        image_token=PICTURE,
        num_additional_image_tokens=1,
    )
    return _save(LlavaForConditionalGeneration(config), processor, folder)


def picture(seed: int) -> NDArray[np.uint8]:
    """A picture of noise."""
    return np.random.default_rng(seed).integers(0, 255, (40, 60, 3), np.uint8)


def _answer(folder: Path, kind: Any, senses: Sequence[str], text: str, count: int, **given: Any) -> list[int]:
    """Return the greedy answer of transformers' `generate` to media and a text."""
    processor = AutoProcessor.from_pretrained(folder)
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    content = [*({"type": sense} for sense in senses), {"type": "text", "text": text}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=prompt, return_tensors="pt", **given)
    out = model.generate(**inputs, do_sample=False, max_new_tokens=count, pad_token_id=0)
    return [int(token) for token in out[0, inputs["input_ids"].shape[1] :]]


def seen(folder: Path, text: str, pictures: Sequence[NDArray[np.uint8]], count: int) -> list[int]:
    """Return the answer to pictures and a text."""
    images = list(map(Image.fromarray, pictures))
    return _answer(folder, AutoModelForImageTextToText, ["image"] * len(images), text, count, images=images)


@torch.inference_mode(mode=False)
def save_hearing(folder: Path) -> Path:
    """Write a Qwen2-Audio of two layers, which hears 25 tokens a second."""
    torch.manual_seed(7)
    words = _tokenizer("<|audio_bos|>", CLIP, "<|audio_eos|>")
    config = Qwen2AudioConfig(
        audio_config=Qwen2AudioEncoderConfig(
            d_model=32,
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=48,
            num_mel_bins=16,
            max_source_positions=1500,
        ),
        text_config=Qwen2Config(**_QWEN2, vocab_size=len(words) + 5, eos_token_id=words.eos_token_id),
        audio_token_index=words.convert_tokens_to_ids(CLIP),
        audio_token_id=words.convert_tokens_to_ids(CLIP),
        tie_word_embeddings=False,
    )
    processor = Qwen2AudioProcessor(
        WhisperFeatureExtractor(feature_size=16), words, chat_template=LIST_TEMPLATE, audio_token=CLIP
    )
    return _save(Qwen2AudioForConditionalGeneration(config), processor, folder, words=20)


def clip(seed: int, seconds: float = 1.0) -> NDArray[np.float32]:
    """Noise at 16 kHz."""
    return np.random.default_rng(seed).uniform(-1, 1, round(16_000 * seconds)).astype(np.float32)


def heard(folder: Path, text: str, sound: NDArray[np.float32], count: int) -> list[int]:
    """Return the answer to a clip and a text."""
    kind, given = Qwen2AudioForConditionalGeneration, {"audio": [sound], "sampling_rate": 16_000}
    return _answer(folder, kind, ["audio"], text, count, **given)


@torch.inference_mode(mode=False)
def save_watching(folder: Path) -> Path:
    """Write a LLaVA-OneVision of two layers, which sees four tokens of each frame and one behind the last."""
    torch.manual_seed(7)
    words = _tokenizer(PICTURE, VIDEO)
    grid, size = [[SIDE, SIDE]], {"height": SIDE, "width": SIDE}
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(**_VISION, num_hidden_layers=2, vision_use_head=False),
        text_config=Qwen2Config(**_QWEN2, vocab_size=len(words) + 5, eos_token_id=words.eos_token_id),
        image_token_index=words.convert_tokens_to_ids(PICTURE),
        video_token_index=words.convert_tokens_to_ids(VIDEO),
        image_token_id=words.convert_tokens_to_ids(PICTURE),
        video_token_id=words.convert_tokens_to_ids(VIDEO),
        image_grid_pinpoints=grid,
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    processor = LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=grid),
        words,
        LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        chat_template=LIST_TEMPLATE,
        image_token=PICTURE,
        video_token=VIDEO,
    )
    return _save(LlavaOnevisionForConditionalGeneration(config), processor, folder, words=12)


def watched(folder: Path, text: str, frames: NDArray[np.uint8], count: int) -> list[int]:
    """Return the answer to a video and a text."""
    videos = [torch.tensor(frames).permute(0, 3, 1, 2)]
    kind, given = AutoModelForImageTextToText, {"videos": videos, "do_sample_frames": False}
    return _answer(folder, kind, ["video"], text, count, **given)
